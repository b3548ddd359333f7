"""A Celery worker in a thread of the test process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from celery.contrib.testing.worker import start_worker

from console.project.celery import app


@contextmanager
def running_worker(shutdown_timeout: float) -> Iterator[None]:
    """Run a worker until the block ends, and restore the logging that Celery replaces.

    Celery sets the root logger's level to ERROR, which would hide the warnings of later tests. The timeout
    is in seconds.
    """
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=shutdown_timeout):
            yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
