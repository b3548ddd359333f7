"""Replication of stored positions in a group: members publish their changes as records of the log.

The records are on `$SLUICE.kept`. They have whole entries when these are new or their definition changes,
positions alone once a second and when a client leaves, and deletions. All members apply them in the log's
order. When a client moves to another member, its logon waits for the log as it is then, so that member has
its newest position. When a member was killed, records acknowledged in its last second are delivered again.

A member publishes nothing before it has applied the updates of the others. Positions only move forward. Of
two definitions with one name the later created wins. An update that failed to get into the log is published
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice, takewhile
from typing import Any, Final, Protocol

import msgspec
import structlog

from broker_core.batch import Batch, Rows
from broker_core.delivery.entries import SharedDelivery
from broker_core.journal.commit_log import PendingBatch
from broker_core.journal.journal import Journal
from broker_core.journal.log_reader import ReaderThread
from broker_core.names import POSITIONS_TOPIC
from broker_core.replay.positions.file import DurableSubscriptionRecord, Entry, ManagedReplayRecord
from broker_core.replay.positions.store import PositionStore

log = structlog.get_logger("sluice.kept")
IN_A_RECORD: Final = 256
"""Maximum number of entries in one record."""
RETRY_DELAY_S: Final = 24 * 3_600.0
"""Seconds after which whole entries are published again.

Journals lose their oldest segments, and the log service stores three days.
"""
MAX_DELETIONS: Final = 10_000
"""Maximum number of deletions that are remembered."""
READ_BYTES: Final = 4 * 1024 * 1024
"""Bytes per read while recovering from the journal."""

Key = tuple[str, str, str]
"""Kind, client and name of an entry."""


class PositionUpdate(msgspec.Struct, omit_defaults=True):
    """Body of one record on `$SLUICE.kept`. `run` identifies the process that published it."""

    run: str
    kept: list[DurableSubscriptionRecord | ManagedReplayRecord] = []
    """Whole entries."""
    at: list[tuple[str, str, int, int]] = []
    """Client, name, position and creation time of durable subscriptions."""
    gone: list[tuple[str, str, str, int]] = []
    """Kind, client, name and creation time of deleted entries."""


class PublishCallback(Protocol):
    """Function that publishes records of the broker itself; `engine.dispatch` implements it."""

    def __call__(self, topic: str, bodies: list[bytes]) -> Sequence[PendingBatch[Any]]: ...


class GroupPositionSync:
    """Exchange of stored entries between this member and the others. Used from the event loop only.

    The registry has it as the receiver of the topic. `on_merged` gets each managed replay that another member
    updated.
    """

    gets_unjournaled: Final = False
    """Whether it gets unjournaled records as well: no, because the whole topic is journaled."""

    def __init__(
        self,
        store: PositionStore,
        publish: PublishCallback,
        on_merged: Callable[[ManagedReplayRecord], None],
        is_current: Callable[[], bool],
        seconds: Callable[[], float],
        run: str,
    ) -> None:
        self._store, self._publish, self._on_merged = store, publish, on_merged
        self._is_current, self._seconds, self._run = is_current, seconds, run
        store.unpublished = dict.fromkeys(store)
        self._is_scheduled = False
        """Whether a publication at the end of this event-loop iteration is scheduled."""
        self._is_caught_up = False
        """Whether all updates from before the start were applied. Nothing is published before that:
        entries that other members deleted could come back."""
        self._published: dict[Key, tuple[object, int]] = {}
        """Definition and position of each entry as last published by any member."""
        self._published_at: dict[Key, float] = {}
        """Time of the last whole publication of each entry, in seconds of the clock, oldest first."""
        self._pending_updates: list[tuple[Sequence[PendingBatch[Any]], list[Key]]] = []
        """Updates that may not be in the log yet, with the keys of their entries."""
        self._deletions: dict[Key, int] = {}
        """Creation time of each deleted entry. A late update of such an entry does not restore it."""

    # Publishing.

    def publish_changes(self) -> None:
        """Publish all changes since the last call, and entries not published whole for RETRY_DELAY_S.

        The cost is proportional to the number of published entries.
        """
        self._is_caught_up = self._is_caught_up or self._is_current()
        if not self._is_caught_up:
            return
        self._retry_failed()
        full_entries, moved = list[Entry](), list[DurableSubscriptionRecord]()
        self._due()
        changed, self._store.unpublished = self._store.unpublished or {}, {}
        for entry in changed:
            if isinstance(entry, DurableSubscriptionRecord) and entry.sharing is not None:
                continue  # stored before the broker joined a group, which has no shared subscriptions
            key, state = _key(entry), _state(entry)
            before = self._published.get(key)
            if before is None or before[0] != state[0]:
                full_entries.append(entry)
                self._record_full_publication(key)
            elif before[1] < state[1] and isinstance(entry, DurableSubscriptionRecord):
                moved.append(entry)
            else:
                continue
            self._published[key] = state
        dropped, self._store.dropped = self._store.dropped, []
        for entry in dropped:
            self._forget(entry)
        self._publish_updates(full_entries, moved, dropped)

    def schedule_publish(self) -> None:
        """Publish at the end of this event-loop iteration, once for all clients that leave in it."""
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._publish_scheduled)

    def _publish_scheduled(self) -> None:
        self._is_scheduled = False
        self.publish_changes()

    async def publish_and_wait(self, wait_durable: Callable[[], Awaitable[None]]) -> None:
        """Publish the changes, and wait with `wait_durable` until they are in the log or have failed."""
        self.publish_changes()
        await wait_durable()

    def _publish_updates(
        self, full_entries: list[Entry], moved: list[DurableSubscriptionRecord], dropped: list[Entry]
    ) -> None:
        """Publish whole entries, moved positions and deletions, at most IN_A_RECORD per record."""
        for part in _parted(full_entries):
            self._send(PositionUpdate(self._run, kept=part), part)
        for part in _parted(moved):
            at = [(one.client, one.name, one.position, one.created_at) for one in part]
            self._send(PositionUpdate(self._run, at=at), part)
        for part in _parted(dropped):
            self._send(PositionUpdate(self._run, gone=[(*_key(one), one.created_at) for one in part]), ())

    def _send(self, update: PositionUpdate, of: Iterable[Entry]) -> None:
        batches = self._publish(POSITIONS_TOPIC, [bytes(memoryview(msgspec.json.encode(update)))])
        self._pending_updates.append((batches, [_key(one) for one in of]))

    def _due(self) -> None:
        """Mark entries as changed whose last whole publication is too old, at most IN_A_RECORD of them."""
        now = self._seconds()
        due = list(
            islice(
                takewhile(lambda item: now - item[1] > RETRY_DELAY_S, self._published_at.items()), IN_A_RECORD
            )
        )
        for key, _ in due:
            self._mark_unpublished(key)

    def _mark_unpublished(self, key: Key) -> None:
        """Treat an entry as never published, so that the next publication has it whole."""
        self._published.pop(key, None)
        self._published_at.pop(key, None)
        entry = self._find_entry(key)
        if entry is not None:
            self._store.mark_changed(entry)

    def _record_full_publication(self, key: Key) -> None:
        """Record the time of a whole publication of an entry."""
        self._published_at.pop(key, None)
        self._published_at[key] = self._seconds()

    def _retry_failed(self) -> None:
        """Mark the entries of failed updates as changed, and drop the updates that are in the log."""
        waiting = []
        for batches, keys in self._pending_updates:
            if any(one.failed for one in batches):
                for key in keys:
                    self._mark_unpublished(key)
            elif not all(one.batch.first_sequence for one in batches):
                waiting.append((batches, keys))
        self._pending_updates = waiting

    # Receiving. Implements `delivery.ports.MatchReceiver`.

    def receive(self, shared: SharedDelivery, rows: Rows | None) -> None:
        """Apply the updates of a batch that was dispatched."""
        if shared.journaled:
            self.apply_updates(_bodies(shared.batch))

    def on_gap(self) -> None:
        log.error("kept_not_taken", fix="Restart this member: it reads what others told from its journal.")

    async def recover(self, reader: ReaderThread, journal: Journal, last: int) -> None:
        """Apply the updates up to record `last` that are in this member's journal and not in its file."""
        at = self._store.applied_upto + 1
        while at <= last:
            bodies, at = await reader.run(read_updates, journal, at, last)
            self.apply_updates(bodies)

    def apply_updates(self, bodies: Iterable[bytes]) -> None:
        """Apply records of the log, in order.

        Updates of this process are skipped: they are in effect already.
        """
        for body in bodies:
            try:
                update = msgspec.json.decode(body, type=PositionUpdate)
            except msgspec.DecodeError as problem:
                log.warning("kept_not_understood", why=str(problem))
                continue
            if update.run != self._run:
                self._apply_update(update)

    def _apply_update(self, update: PositionUpdate) -> None:
        """Apply one update of another member: whole entries, positions, deletions."""
        for entry in update.kept:
            self._apply_entry(entry)
        for client, name, position, made in update.at:
            durable = self._store.durables.get((client, name))
            if durable is not None and durable.created_at == made:  # not a later one of the name
                self._move(durable, position)
        for kind, client, name, made in update.gone:
            found = self._find_entry((kind, client, name))
            self._record_deletion((kind, client, name), made)
            if found is not None and found.created_at <= made:
                self._store.remove(found, publish=False)
                self._published.pop(_key(found), None)
                self._published_at.pop(_key(found), None)

    def _apply_entry(self, entry: Entry) -> None:
        """Apply another member's whole entry, unless a later one of the name exists or it was deleted."""
        key = _key(entry)
        known = self._find_entry(key)
        if entry.created_at <= self._deletions.get(key, 0) or (
            known is not None and known.created_at > entry.created_at
        ):
            return
        if isinstance(entry, ManagedReplayRecord):
            entry.caught_up = False  # true only of the other member's subscription
        if known is None or known.created_at < entry.created_at:
            if known is not None:
                self._store.remove(known, publish=False)
            self._store.add_replicated(entry)
            self._published[key] = _state(entry)
        elif isinstance(known, DurableSubscriptionRecord):
            self._move(known, entry.position)
        else:
            assert isinstance(known, ManagedReplayRecord) and isinstance(entry, ManagedReplayRecord)
            known.merge(entry)
            # The merge may differ from both. It is then published in turn, so all members reach the same
            # entry.
            self._published[key] = _state(entry)
            self._store.mark_changed(known)
            self._on_merged(known)
        self._record_full_publication(key)

    def _move(self, durable: DurableSubscriptionRecord, position: int) -> None:
        """Move a durable subscription's position forward to another member's."""
        if position > durable.position:
            durable.position = position
            self._store.mark_changed(durable)
        key = _key(durable)
        before = self._published.get(key)
        if before is not None:
            self._published[key] = before[0], max(before[1], position)

    def _find_entry(self, key: Key) -> Entry | None:
        kind, client, name = key
        if kind == "durable":
            return self._store.durables.get((client, name))
        return self._store.replays.get(name)

    def _forget(self, entry: Entry) -> None:
        """Remember that this member deleted an entry."""
        self._published.pop(_key(entry), None)
        self._published_at.pop(_key(entry), None)
        self._record_deletion(_key(entry), entry.created_at)

    def _record_deletion(self, key: Key, made: int) -> None:
        self._deletions.pop(key, None)
        self._deletions[key] = made
        if len(self._deletions) > MAX_DELETIONS:
            del self._deletions[next(iter(self._deletions))]


def read_updates(journal: Journal, first: int, last: int) -> tuple[list[bytes], int]:
    """Return bodies of the next updates in a journal from sequence `first`, and the sequence to continue at.

    The latter is greater than `last` at the end. Runs in the reader thread; skips segments whose sidecar
    lists no update.
    """
    at = journal.next_sequence_of_topics((POSITIONS_TOPIC,), max(first, journal.first_sequence))
    if at > last:
        return [], last + 1
    batches = journal.read(at, READ_BYTES, last)
    if not batches:
        return [], max(journal.next_readable(at), at + 1)
    return [body for batch in batches for body in _bodies(batch)], batches[-1].last_sequence + 1


def _bodies(batch: Batch) -> list[bytes]:
    if POSITIONS_TOPIC not in batch.topics:
        return []
    return [bytes(record.body) for record in batch.records() if record.topic == POSITIONS_TOPIC]


def _key(entry: Entry) -> Key:
    # The name of a managed replay is unique in the group, whatever its client.
    return (
        ("durable", entry.client, entry.name)
        if isinstance(entry, DurableSubscriptionRecord)
        else ("managed", "", entry.name)
    )


def _state(entry: Entry) -> tuple[object, int]:
    """Return (definition, position) of an entry. A changed definition is published whole."""
    if isinstance(entry, DurableSubscriptionRecord):
        return entry.created_at, entry.position
    return msgspec.json.encode(msgspec.structs.replace(entry, caught_up=False)), entry.position


def _parted(entries: Sequence[Any]) -> Iterable[list[Any]]:
    """Split entries into lists of at most IN_A_RECORD."""
    return (list(entries[at : at + IN_A_RECORD]) for at in range(0, len(entries), IN_A_RECORD))
