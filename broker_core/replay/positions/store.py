"""Store of durable subscriptions and managed replays: in memory, and in one file that one task writes.

The whole file is replaced: immediately when a caller waits for it (`save`), and each second when a record has
changed (`save_soon`). After a crash a position may be one second old; records acknowledged in that second are
delivered again. The log stays pinned at the position on disk until a newer one is on disk.

`save` waits for a write that starts after the call. All calls during one write share the next one.
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
    load_applied_upto,
    load_deleted,
    load_positions,
)

log = structlog.get_logger("sluice.kept")
MAX_EMPTIED: Final = 10_000
"""Maximum number of deleted shared subscriptions that the file remembers."""
ENCODED_AT_ONCE: Final = 128
"""Records encoded per event-loop iteration: some tenths of a millisecond."""
MAX_RESUMED_AT_ONCE: Final = 8
"""Callers of `wait_durable` that continue per event-loop iteration after one write."""


class PositionStore:
    """Durable subscriptions and managed replays of one instance. Used from the event loop only.

    Callers change records in place and then call `mark_changed`. `pin(sequence, owner, holder)` pins the log.
    The constructor loads the file, and raises OperatorError and OSError as `load_positions` does.
    """

    def __init__(
        self, path: Path, pin: Callable[[int, str, str], Pin], files: FileSystem | None = None
    ) -> None:
        self.durables: dict[tuple[str, str], DurableSubscriptionRecord] = {}
        """Durable subscriptions by client and name."""
        self.durables_of: Counter[str] = Counter()
        """Number of durable subscriptions of each client."""
        self.replays: dict[str, ManagedReplayRecord] = {}
        """Managed replays by name, oldest first."""
        self.emptied: dict[str, int] = {}
        """Log's newest sequence at the deletion of each shared subscription, by name, oldest first.

        A new shared subscription of the same name starts after it, so it doesn't get the deleted records.
        """
        self.unpublished: dict[Entry, None] | None = None
        """Records changed since the last publication to the group, in order; None for a broker without a
        group."""
        self.dropped: list[Entry] = []
        """Records removed since the last publication to the group."""
        self.on_secured: Callable[[], Awaitable[None]] | None = None
        """Callback of a member of a group: publishes new records to the other members before the client gets
        a reply."""
        self.on_disconnect: Callable[[], None] | None = None
        """Callback of a member of a group: a client has left, and may log on at another member within a
        moment."""
        self.on_dropped: Callable[[Entry], None] = lambda entry: None
        """Callback set by the engine: gets each removed record, whichever member removed it."""
        self.newest_applied: Callable[[], int] = lambda: 0
        """Callback: returns the newest sequence of the group's log whose updates the records include."""
        self._path = path
        self._files = FileSystem() if files is None else files
        self._pin = pin
        self._pins: dict[Entry, Pin] = {}
        self._is_unsaved = False
        self._unsaved: set[Entry] = set()
        """New records that are not known to be on disk; no client was told about them."""
        self._next: asyncio.Future[None] | None = None
        """Future of the next write, shared by all who wait for it."""
        self._writer: asyncio.Task[None] | None = None
        self._resume_slots = asyncio.Semaphore(MAX_RESUMED_AT_ONCE)
        """Limit of the callers that continue after a write per event-loop iteration."""
        for entry in load_positions(self._files, path):
            self._enter(entry)
        self.emptied.update(load_deleted(path))
        self.applied_upto = load_applied_upto(path)
        """Newest sequence of the group's log whose updates the file included when it was read."""

    def __iter__(self) -> Iterator[Entry]:
        yield from self.durables.values()
        yield from self.replays.values()

    def add(self, entry: Entry) -> None:
        """Add a record and pin the log for it. It is on disk after the next `save`.

        A caller that confirms it to a client waits for `wait_durable` first.
        """
        self._enter(entry)
        self._unsaved.add(entry)
        self.mark_changed(entry)

    def is_new(self, entry: Entry) -> bool:
        """Whether the record is not yet known to be on disk, so that no client was told about it."""
        return entry in self._unsaved

    async def wait_durable(self, entry: Entry) -> None:
        """Wait until a new record is on disk and, in a group, published to the other members.

        Raises JournalError not_kept; the record is then removed, since no client was told about it.
        """
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
        # Up to a thousand callers may have waited for this write, and each starts a subscription next. Let
        # only MAX_RESUMED_AT_ONCE of them continue per event-loop iteration.
        await self._resume_slots.acquire()
        asyncio.get_running_loop().call_soon(self._resume_slots.release)

    def remove(self, entry: Entry, *, publish: bool = True) -> None:
        """Remove a record and release its pin. A record that was already removed or replaced is ignored.

        `publish`: also publish the removal to the other members of a group.
        """
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
        self._is_unsaved = True
        if self.unpublished is not None:
            self.unpublished.pop(entry, None)
            if publish:
                self.dropped.append(entry)
        self.on_dropped(entry)

    def mark_deleted(self, name: str, upto: int) -> None:
        """Remember that a shared subscription was deleted when `upto` was the newest sequence of the log."""
        self.emptied.pop(name, None)
        self.emptied[name] = upto
        if len(self.emptied) > MAX_EMPTIED:
            del self.emptied[next(iter(self.emptied))]
        self._is_unsaved = True

    def mark_changed(self, entry: Entry) -> None:
        """Schedule a changed record for the next write and, in a group, for publication."""
        self._is_unsaved = True
        if self.unpublished is not None:
            self.unpublished[entry] = None

    def record_disconnect(self, entry: Entry) -> None:
        """Record that a client has left and its position was updated; in a group, publish it soon."""
        self.mark_changed(entry)
        if self.on_disconnect is not None:
            self.on_disconnect()

    def add_replicated(self, entry: Entry) -> None:
        """Add a record that another member of the group created and has confirmed to its client."""
        self._enter(entry)
        self.mark_changed(entry)

    def _enter(self, entry: Entry) -> None:
        """Add a record to memory and pin the log for it."""
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
        """Wait until all current records are on disk.

        Raises JournalError not_kept when the write fails; it is repeated each second.
        """
        # shielded, because other callers wait for the same write
        await asyncio.shield(self._schedule_write())

    def save_soon(self) -> None:
        """Start a write if a record has changed, without waiting. A failure is logged."""
        if self._is_unsaved and self._next is None:
            self._schedule_write()

    async def close(self) -> None:
        """Write changed records and wait for the writer to end. A failure is logged."""
        self.save_soon()
        if self._writer is not None:
            await self._writer

    def _schedule_write(self) -> asyncio.Future[None]:
        """Return the future of the next write, and start the writer if necessary."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
            self._next.add_done_callback(_looked_at)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write(), name="kept positions")
        return self._next

    async def _write(self) -> None:
        """Write the file until no caller waits for another write.

        A pin moves only after its position is on disk.
        """
        while self._next is not None:
            # Later requests need a later write: this one may have encoded the records already.
            waiting, self._next, self._is_unsaved = self._next, None, False
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
                self._fail_waiters(
                    waiting, problem.strerror or str(problem), "Make room on the journal's disk."
                )
            except Exception as problem:
                # Report every error to the waiting callers, and keep the task alive for the next write.
                log.exception("positions_not_kept")
                self._fail_waiters(waiting, repr(problem), "See the broker's log.")
            else:
                waiting.set_result(None)
            finally:
                waiting.cancel()  # wakes the callers if this task was cancelled; else no effect

    async def _encoded(self) -> tuple[list[tuple[Entry, int | None]], bytes]:
        """Return the records whose pin changes, its new sequence (None: release), and the file's content.

        Encodes ENCODED_AT_ONCE records per event-loop iteration. Records that are added or removed meanwhile
        are in the next write, for which the caller waits.
        """
        upto = self.newest_applied()
        entries, moved, encoded = list(self), list[tuple[Entry, int | None]](), list[bytes]()
        for start in range(0, len(entries), ENCODED_AT_ONCE):
            chunk = entries[start : start + ENCODED_AT_ONCE]
            for entry in chunk:
                pin, sequence = self._pins.get(entry), entry.pinned_from
                if pin is not None and sequence != pin.sequence:
                    moved.append((entry, sequence))
            encoded.append(encode_entries(chunk))
            await asyncio.sleep(0)
        return moved, join_encoded(b",".join(encoded), self.emptied, upto)

    def _fail_waiters(self, waiting: asyncio.Future[None], reason: str, fix: str) -> None:
        """Pass an error to the callers of a write, and schedule another write."""
        self._is_unsaved = True
        waiting.set_exception(
            JournalError("not_kept", f"Where clients that are away go on can't be stored: {reason}.", fix)
        )


def _looked_at(write: asyncio.Future[None]) -> None:
    """Mark a failed write's exception as retrieved. It was logged, and possibly no caller waits for it."""
    if not write.cancelled():
        write.exception()
