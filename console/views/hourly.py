"""A client's hours, as the pipeline's client-history job left them, in the shape the client page draws."""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger(__name__)
HOURS = 14 * 24


def hourly_of(client: str) -> list[dict[str, Any]]:
    """Oldest first. Empty when the job has not run, or its output can't be read: the page then says how to make it."""
    return []
