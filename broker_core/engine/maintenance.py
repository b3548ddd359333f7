"""Journal tasks done once a second in threads, so that none delays a message; and interpreter settings."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable

import structlog

from broker_core.connections.name_owners import ClientNameOwners
from broker_core.delivery.ports import TaskSpawner
from broker_core.errors import JournalError
from broker_core.journal.journal import Journal

log = structlog.get_logger("sluice.engine")


class JournalMaintenance:
    """Background tasks of the journal, started once a second. Belongs to the event loop.

    `report_log_failure` is called with the error when the journal accepts no more records.
    """

    def __init__(
        self,
        journal: Journal,
        owners: ClientNameOwners,
        spawn: TaskSpawner,
        report_log_failure: Callable[[JournalError], None],
    ) -> None:
        self._journal = journal
        self._owners = owners
        self._spawn = spawn
        self._report_log_failure = report_log_failure
        self._checking: asyncio.Task[None] | None = None
        self._preallocating: asyncio.Task[None] | None = None
        self._refused = ""
        """Error code of the last attempt to create spare segments; "" after success."""

    def start_tasks(self) -> None:
        """Start the tasks that are not still running."""
        if self._checking is None or self._checking.done():
            self._checking = self._spawn(self._check_journal())
        if self._preallocating is None or self._preallocating.done():
            self._preallocating = self._spawn(self._preallocate())

    async def _check_journal(self) -> None:
        """Check that this process still owns the journal, save name owners, and finish sealed segments."""
        try:
            await asyncio.to_thread(self._journal.check)
            await self.save_owners()
            await asyncio.to_thread(self._journal.finish_sealed)
        except JournalError as error:
            self._report_log_failure(self._journal.failure or error)

    async def _preallocate(self) -> None:
        """Create spare segments, which takes time."""
        try:
            await asyncio.to_thread(self._journal.preallocate)
        except JournalError as error:
            if self._journal.failure is not None:
                self._report_log_failure(self._journal.failure)
                return
            # The journal works without spares, and a write reports a full disk itself. Logged once, not each
            # second: a full, unread pipe of the process's output would block it.
            if error.code != self._refused:
                log.warning("journal_chores_failed", code=error.code, why=error.sentence)
            self._refused = error.code
        else:
            self._refused = ""

    async def save_owners(self) -> None:
        """Write the owners of client names to disk, if they have changed."""
        if not self._owners.is_changed:
            return
        try:
            await asyncio.to_thread(self._owners.write, self._owners.encode())
        except OSError as problem:
            self._owners.is_changed = True  # the next second tries again
            log.warning("owners_not_kept", why=str(problem))


THRESHOLDS = (5_000, 500, 100)
"""Thresholds of the garbage collector: new objects before a young collection, and ratios of older ones.

Python's own are (700, 10, 10). A full collection visits all objects of 10,000 clients, and nothing is
delivered meanwhile (270 ms, bench/clients.py). With 50,000 young objects, each collection took 20 to 35 ms
while five clients started 5,000 subscriptions to queues. With 5,000 it takes 2 to 3 ms.
"""

SWITCH_INTERVAL_S = 0.000_05
"""How long the event loop may run while the commit thread waits for the interpreter lock, seconds.

The wait starts again each time the loop releases the lock for a system call and takes it back immediately. So
the interval must be shorter than the time between two system calls. With Python's default of 5 ms, a thread
beside a busy loop may never get the lock. Measured beside eight clients whose commands keep the loop busy
(`bench.hostile --only commands`), another client's message took: 64 ms (p99 189) with 0.5 ms, 13 ms (p99 44)
with 0.1 ms, 6 ms (p99 39) with 0.02 ms. Throughput and latency without load did not change.
"""


def tune_interpreter() -> None:
    """Set rare garbage collections and fast thread switches. Call once, after the start.

    Objects that exist now are never collected, because they live as long as the process.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
