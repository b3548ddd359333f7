"""Everything that is kept for clients that are away, in memory and on disk: one store, one file, one writer.

The file is replaced whole: at once when somebody waits for it (`save`), and each second when something has moved
(`save_soon`). After a crash a position may be a second old, and what was acknowledged in it comes again. Until a
position is on disk the log is held from the one before.

One task writes. A `save` is answered by a write that began after it was asked for; however many ask while one is
under way, they share the next.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

import structlog

from broker_core.errors import JournalError
from broker_core.journal.files import FileSystem, replace_durably
from broker_core.journal.open_segments import Pin
from broker_core.replay.positions.file import (
    DurableSubscriptionRecord,
    Entry,
    ManagedReplayRecord,
    encode_entries,
    join_encoded,
    load_deleted,
    load_positions,
    load_upto,
)

log = structlog.get_logger("sluice.kept")
MAX_EMPTIED: Final = 10_000
ENCODED_AT_ONCE: Final = 128
"""Of all that is kept, in a turn of the loop: some tenths of a millisecond."""
GO_ON_AT_ONCE: Final = 8
"""Of those that waited for one write, in a turn of the loop."""


class PositionStore:
    """What is kept. Belongs to the loop; entries are changed in place, and `note` tells the store.

    `pin(sequence, owner, holder)` holds the log. Raises OperatorError and OSError as `kept_file.load` does.
    """

    def __init__(
        self, path: Path, pin: Callable[[int, str, str], Pin], files: FileSystem | None = None
    ) -> None:
        self.durables: dict[tuple[str, str], DurableSubscriptionRecord] = {}
        """By client and name."""
        self.durables_of: Counter[str] = Counter()
        """How many of them each client has."""
        self.replays: dict[str, ManagedReplayRecord] = {}
        """By name, the oldest first."""
        self.emptied: dict[str, int] = {}
        """Of shared subscriptions that were deleted the last record of the log then, the longest ago first: who makes a queue of
        that name again doesn't get what was deleted with the first."""
        self.untold: dict[Entry, None] | None = None
        """What has changed since somebody asked, in that order, where somebody does: of a group's member."""
        self.dropped: list[Entry] = []
        """Likewise, of what is kept no longer."""
        self.on_secured: Callable[[], Awaitable[None]] | None = None
        """Of a group's member: what is new is told to the others, before anybody is told of it."""
        self.on_left: Callable[[], None] | None = None
        """Likewise: a client has left something behind, and may be at another member in a moment."""
        self.on_dropped: Callable[[Entry], None] = lambda entry: None
        """Called with each entry that is kept no longer, whichever member dropped it; set by the engine."""
        self.upto: Callable[[], int] = lambda: 0
        """Up to which record of the log what is kept has been taken from there."""
        self._path = path
        self._files = FileSystem() if files is None else files
        self._pin = pin
        self._pins: dict[Entry, Pin] = {}
        self._changed = False
        self._unsaved: set[Entry] = set()
        """New, and not known to be on disk: nobody was told of them."""
        self._next: asyncio.Future[None] | None = None
        """Of the write that hasn't begun, for all who wait for it."""
        self._writer: asyncio.Task[None] | None = None
        self._going_on = asyncio.Semaphore(GO_ON_AT_ONCE)
        for entry in load_positions(self._files, path):
            self._enter(entry)
        self.emptied.update(load_deleted(path))
        self.taken_upto = load_upto(path)
        """What the file says of that."""

    def __iter__(self) -> Iterator[Entry]:
        yield from self.durables.values()
        yield from self.replays.values()

    def add(self, entry: Entry) -> None:
        """Keep one more, and hold the log for it. It is on disk after the next `save`; who promises it calls `secure`."""
        self._enter(entry)
        self._unsaved.add(entry)
        self.mark_changed(entry)

    def is_new(self, entry: Entry) -> bool:
        """Whether nobody was told of it yet: it isn't known to be on disk."""
        return entry in self._unsaved

    async def wait_durable(self, entry: Entry) -> None:
        """Wait until a new one is on disk. JournalError not_kept, and then it is kept no longer: nobody was told of it."""
        if entry not in self._unsaved:
            return
        try:
            await self.save()
        except JournalError:
            self.remove(entry)
            raise
        self._unsaved.discard(entry)
        if self.on_secured is not None:
            await self.on_secured()
        # A thousand may have waited for that write, and whoever goes on begins a subscription: others want their turn meanwhile.
        await self._going_on.acquire()
        asyncio.get_running_loop().call_soon(self._going_on.release)

    def remove(self, entry: Entry, *, tell: bool = True) -> None:
        """Keep one no longer, and let go of the log. One that isn't kept is dropped already. `tell`: a group's other members too."""
        if isinstance(entry, DurableSubscriptionRecord):
            if self.durables.get((entry.client, entry.name)) is not entry:
                return
            del self.durables[entry.client, entry.name]
            self.durables_of[entry.client] -= 1
            if not self.durables_of[entry.client]:
                del self.durables_of[entry.client]
        else:
            if self.replays.get(entry.name) is not entry:
                return
            del self.replays[entry.name]
        self._let_go(entry)
        self._unsaved.discard(entry)
        self._changed = True
        if self.untold is not None:
            self.untold.pop(entry, None)
            if tell:
                self.dropped.append(entry)
        self.on_dropped(entry)

    def mark_deleted(self, name: str, upto: int) -> None:
        """A shared subscription is deleted, and with it all of the log up to there."""
        self.emptied.pop(name, None)
        self.emptied[name] = upto
        if len(self.emptied) > MAX_EMPTIED:
            del self.emptied[next(iter(self.emptied))]
        self._changed = True

    def mark_changed(self, entry: Entry) -> None:
        """One that is kept has changed."""
        self._changed = True
        if self.untold is not None:
            self.untold[entry] = None

    def on_client_left(self, entry: Entry) -> None:
        """Its client has left, and where it stands was written down."""
        self.mark_changed(entry)
        if self.on_left is not None:
            self.on_left()

    def add_replicated(self, entry: Entry) -> None:
        """Keep what another member of the group has made, and has told its client of."""
        self._enter(entry)
        self.mark_changed(entry)

    def _enter(self, entry: Entry) -> None:
        if isinstance(entry, DurableSubscriptionRecord):
            self.durables_of[entry.client] += (entry.client, entry.name) not in self.durables
            self.durables[entry.client, entry.name] = entry
        else:
            self.replays[entry.name] = entry
        if entry.pinned_from is not None:
            self._pins[entry] = self._pin(entry.pinned_from, entry.owner, entry.client)

    def _let_go(self, entry: Entry) -> None:
        pin = self._pins.pop(entry, None)
        if pin is not None:
            pin.release()

    # The file.

    async def save(self) -> None:
        """Wait until what is kept now is on disk. JournalError not_kept: it isn't, and is tried again each second."""
        # A waiter that is cancelled takes the write away from nobody else.
        await asyncio.shield(self._ask())

    def save_soon(self) -> None:
        """Have it written if something has changed, without waiting. A failure is logged."""
        if self._changed and self._next is None:
            self._ask()

    async def close(self) -> None:
        """Write what has changed, and end. A failure is logged."""
        self.save_soon()
        if self._writer is not None:
            await self._writer

    def _ask(self) -> asyncio.Future[None]:
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
            self._next.add_done_callback(_looked_at)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write(), name="kept positions")
        return self._next

    async def _write(self) -> None:
        while self._next is not None:
            # What is asked for from here on isn't in this write for certain.
            waiting, self._next, self._changed = self._next, None, False
            try:
                moved, content = await self._encoded()
                await asyncio.to_thread(replace_durably, self._files, self._path, content)
                for entry, sequence in moved:
                    if sequence is None:
                        self._let_go(entry)
                    elif entry in self._pins:
                        self._pins[entry].move(sequence)
            except OSError as problem:
                log.warning("positions_not_kept", why=str(problem))
                self._failed(waiting, problem.strerror or str(problem), "Make room on the journal's disk.")
            except Exception as problem:
                # Whoever waits must hear of it, and the next write must be tried all the same.
                log.exception("positions_not_kept")
                self._failed(waiting, repr(problem), "See the broker's log.")
            else:
                waiting.set_result(None)
            finally:
                waiting.cancel()  # it is done, but when the broker ends in the middle

    async def _encoded(self) -> tuple[list[tuple[Entry, int | None]], bytes]:
        """From where those hold the log that have moved, and the file that says so. Some in a turn of the loop: others want theirs. What is
        kept or dropped meanwhile is in the next write, which whoever did it waits for."""
        upto = self.upto()
        entries, moved, encoded = list(self), list[tuple[Entry, int | None]](), list[bytes]()
        for start in range(0, len(entries), ENCODED_AT_ONCE):
            some = entries[start : start + ENCODED_AT_ONCE]
            for entry in some:
                pin, sequence = self._pins.get(entry), entry.pinned_from
                if pin is not None and sequence != pin.sequence:
                    moved.append((entry, sequence))
            encoded.append(encode_entries(some))
            await asyncio.sleep(0)
        return moved, join_encoded(b",".join(encoded), self.emptied, upto)

    def _failed(self, waiting: asyncio.Future[None], why: str, fix: str) -> None:
        self._changed = True
        waiting.set_exception(
            JournalError("not_kept", f"Where clients that are away go on can't be stored: {why}.", fix)
        )


def _looked_at(write: asyncio.Future[None]) -> None:
    """A failed write that nobody waits for any more was logged: that's enough."""
    if not write.cancelled():
        write.exception()
