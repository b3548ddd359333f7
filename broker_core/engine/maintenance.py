"""What is done for the journal once a second, in threads: none of it may hold up a message.

What a process that has a loop to keep asks of Python's interpreter.
"""

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
    """`broken` is called with why the journal takes nothing more. Belongs to the loop."""

    def __init__(
        self,
        journal: Journal,
        owners: ClientNameOwners,
        spawn: TaskSpawner,
        broken: Callable[[JournalError], None],
    ) -> None:
        self._journal = journal
        self._owners = owners
        self._spawn = spawn
        self._broken = broken
        self._keeping: asyncio.Task[None] | None = None
        self._preallocating: asyncio.Task[None] | None = None
        self._refused = ""
        """The error code with which spare segments couldn't be made when it was tried last."""

    def start_round(self) -> None:
        """Begin those that aren't being done still."""
        if self._keeping is None or self._keeping.done():
            self._keeping = self._spawn(self._keep())
        if self._preallocating is None or self._preallocating.done():
            self._preallocating = self._spawn(self._preallocate())

    async def _keep(self) -> None:
        """See that the journal is still ours, and have full segments closed."""
        try:
            await asyncio.to_thread(self._journal.check)
            await self.save_owners()
            await asyncio.to_thread(self._journal.finish_sealed)
        except JournalError as error:
            self._broken(self._journal.failure or error)

    async def _preallocate(self) -> None:
        """Have spare segments made, which takes its time."""
        try:
            await asyncio.to_thread(self._journal.preallocate)
        except JournalError as error:
            if self._journal.failure is not None:
                self._broken(self._journal.failure)
                return
            # The journal goes on without spares, and writing says so itself when the disk is full. Said once, not each second: whoever
            # doesn't read what a process says stops it when the pipe is full.
            if error.code != self._refused:
                log.warning("journal_chores_failed", code=error.code, why=error.sentence)
            self._refused = error.code
        else:
            self._refused = ""

    async def save_owners(self) -> None:
        """Write down whose the clients' names are, where that has changed."""
        if not self._owners.changed:
            return
        try:
            await asyncio.to_thread(self._owners.write, self._owners.encode())
        except OSError as problem:
            self._owners.changed = True  # the next second tries again
            log.warning("owners_not_kept", why=str(problem))


THRESHOLDS = (5_000, 500, 100)
"""Objects made before the youngest are looked at, and how often older ones are. Python's own are (700, 10, 10): a full
collection walks everything that 10,000 clients are made of, and nothing is delivered meanwhile (270 ms, bench/clients.py). With
50,000 young ones each look took 20 to 35 ms while five clients began 5,000 subscriptions to queues; now 2 to 3."""

SWITCH_INTERVAL_S = 0.000_05
"""How long the loop may go on while the thread that commits waits for the interpreter. The wait begins anew each time that the loop
lets go of it for a system call and takes it back at once, so it must be shorter than what lies between two of these: with Python's
own 5 ms a thread that wants it beside a busy loop may never be due. Beside eight clients whose commands keep the loop busy another's
message took 64 ms (p99 189) with 0.5 ms, 13 (44) with 0.1 and 6 (39) with 0.02 (`bench.hostile --only commands`); rates and
latencies at rest didn't change."""


def tune_interpreter() -> None:
    """Collect seldom, never walk what is there now (it lives as long as the process), and let other threads in soon. Call once,
    after the start."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
