"""What is done for the journal once a second, in threads: none of it may hold up a message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from broker_core.connections.name_owners import ClientNameOwners
from broker_core.delivery.ports import TaskSpawner
from broker_core.errors import JournalError
from broker_core.journal.journal import Journal

log = structlog.get_logger("sluice.engine")


class Chores:
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

    def begin(self) -> None:
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
            self._broken(self._journal.failed or error)

    async def _preallocate(self) -> None:
        """Have spare segments made, which takes its time."""
        try:
            await asyncio.to_thread(self._journal.preallocate)
        except JournalError as error:
            if self._journal.failed is not None:
                self._broken(self._journal.failed)
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
            await asyncio.to_thread(self._owners.write, self._owners.encoded())
        except OSError as problem:
            self._owners.changed = True  # the next second tries again
            log.warning("owners_not_kept", why=str(problem))
