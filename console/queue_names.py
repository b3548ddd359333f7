"""Names of the Celery queues. Pure."""

from __future__ import annotations

from typing import Final

USUAL_QUEUE: Final = "celery"
"""Queue of tasks that may call other hosts or take long: actions, pipeline jobs, alerts, the audit log's
export.
"""
CHORES_QUEUE: Final = "sluice.chores"
"""Queue of tasks on local journals and of periodic tasks. It has its own worker slots."""


def journal_queue(broker: str) -> str:
    """Return the queue of tasks on a remote broker's journal. `broker` is a name like orders/a."""
    return f"sluice.{broker.replace('/', '.')}"
