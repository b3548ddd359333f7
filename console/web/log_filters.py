"""Filters for the log of the web process."""

from __future__ import annotations

import logging

from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.http import Http404

REFUSALS = (BadRequest, Http404, PermissionDenied, SuspiciousOperation)
"""Exceptions that refuse a request: the fault is the caller's, and a traceback would explain nothing."""


class RefusalFilter(logging.Filter):
    """Filter that removes the traceback of a refused request, so that it is one line."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True for every record."""
        if record.exc_info and isinstance(record.exc_info[1], REFUSALS):
            record.exc_info = record.exc_text = None
        return True
