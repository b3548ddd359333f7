"""The queues of Celery's workers. Pure."""

from __future__ import annotations

from typing import Final

USUAL_QUEUE: Final = "celery"
"""The queue of what may call other hosts or take long: actions, pipeline jobs, alerts, the audit's export."""
CHORES_QUEUE: Final = "sluice.chores"
"""The queue of journals on this machine, and of what is done each minute. It has slots of its own."""


def journal_queue(broker: str) -> str:
    """Return the queue of a broker's journal, where the console is on another machine; `broker` as orders/a."""
    return f"sluice.{broker.replace('/', '.')}"
