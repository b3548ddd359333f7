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
MAX_GONE: Final = 10_000
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

    takes_both: Final = False
    """Whether it gets unjournaled records as well: no, because the whole topic is journaled."""

    def __init__(
        self,
        kept: PositionStore,
        publish: PublishCallback,
        on_merged: Callable[[ManagedReplayRecord], None],
        is_current: Callable[[], bool],
        seconds: Callable[[], float],
        run: str,
    ) -> None:
        self._kept, self._publish, self._on_merged = kept, publish, on_merged
        self._is_current, self._seconds, self._run = is_current, seconds, run
        kept.untold = dict.fromkeys(kept)
        self._telling = False
        """Whether a publication at the end of this event-loop iteration is scheduled."""
        self._begun = False
        """Whether all updates from before the start were applied. Nothing is published before that:
        entries that other members deleted could come back."""
        self._told: dict[Key, tuple[object, int]] = {}
        """Definition and position of each entry as last published by any member."""
        self._told_at: dict[Key, float] = {}
        """Time of the last whole publication of each entry, in seconds of the clock, oldest first."""
        self._under_way: list[tuple[Sequence[PendingBatch[Any]], list[Key]]] = []
        """Updates that may not be in the log yet, with the keys of their entries."""
        self._gone: dict[Key, int] = {}
        """Creation time of each deleted entry. A late update of such an entry does not restore it."""

    # Publishing.

    def publish_changes(self) -> None:
        """Publish all changes since the last call, and entries not published whole for RETRY_DELAY_S.

        The cost is proportional to the number of published entries.
        """
        self._begun = self._begun or self._is_current()
        if not self._begun:
            return
        self._again()
        whole, moved = list[Entry](), list[DurableSubscriptionRecord]()
        self._due()
        changed, self._kept.untold = self._kept.untold or {}, {}
        for entry in changed:
            if isinstance(entry, DurableSubscriptionRecord) and entry.sharing is not None:
                continue  # stored before the broker joined a group, which has no shared subscriptions
            key, state = _key(entry), _state(entry)
            before = self._told.get(key)
            if before is None or before[0] != state[0]:
                whole.append(entry)
                self._told_whole(key)
            elif before[1] < state[1] and isinstance(entry, DurableSubscriptionRecord):
                moved.append(entry)
            else:
                continue
            self._told[key] = state
        dropped, self._kept.dropped = self._kept.dropped, []
        for entry in dropped:
            self._forget(entry)
        self._say(whole, moved, dropped)

    def schedule_publish(self) -> None:
        """Publish at the end of this event-loop iteration, once for all clients that leave in it."""
        if not self._telling:
            self._telling = True
            asyncio.get_running_loop().call_soon(self._tell_now)

    def _tell_now(self) -> None:
        self._telling = False
        self.publish_changes()

    async def publish_and_wait(self, settled: Callable[[], Awaitable[None]]) -> None:
        """Publish the changes, and wait with `settled` until they are in the log or have failed."""
        self.publish_changes()
        await settled()

    def _say(self, whole: list[Entry], moved: list[DurableSubscriptionRecord], dropped: list[Entry]) -> None:
        """Publish whole entries, moved positions and deletions, at most IN_A_RECORD per record."""
        for some in _parted(whole):
            self._send(PositionUpdate(self._run, kept=some), some)
        for some in _parted(moved):
            at = [(one.client, one.name, one.position, one.created_at) for one in some]
            self._send(PositionUpdate(self._run, at=at), some)
        for some in _parted(dropped):
            self._send(PositionUpdate(self._run, gone=[(*_key(one), one.created_at) for one in some]), ())

    def _send(self, told: PositionUpdate, of: Iterable[Entry]) -> None:
        under_way = self._publish(POSITIONS_TOPIC, [bytes(memoryview(msgspec.json.encode(told)))])
        self._under_way.append((under_way, [_key(one) for one in of]))

    def _due(self) -> None:
        """Mark entries as changed whose last whole publication is too old, at most IN_A_RECORD of them."""
        now = self._seconds()
        due = list(
            islice(takewhile(lambda told: now - told[1] > RETRY_DELAY_S, self._told_at.items()), IN_A_RECORD)
        )
        for key, _ in due:
            self._untell(key)

    def _untell(self, key: Key) -> None:
        """Treat an entry as never published, so that the next publication has it whole."""
        self._told.pop(key, None)
        self._told_at.pop(key, None)
        entry = self._found(key)
        if entry is not None:
            self._kept.mark_changed(entry)

    def _told_whole(self, key: Key) -> None:
        """Record the time of a whole publication of an entry."""
        self._told_at.pop(key, None)
        self._told_at[key] = self._seconds()

    def _again(self) -> None:
        """Mark the entries of failed updates as changed, and drop the updates that are in the log."""
        waiting = []
        for under_way, keys in self._under_way:
            if any(one.failed for one in under_way):
                for key in keys:
                    self._untell(key)
            elif not all(one.batch.first_sequence for one in under_way):
                waiting.append((under_way, keys))
        self._under_way = waiting

    # Receiving. Implements `delivery.ports.MatchReceiver`.

    def receive(self, shared: SharedDelivery, rows: Rows | None) -> None:
        """Apply the updates of a batch that was dispatched."""
        if shared.journaled:
            self.apply_updates(_bodies(shared.batch))

    def on_gap(self) -> None:
        log.error("kept_not_taken", fix="Restart this member: it reads what others told from its journal.")

    async def recover(self, reader: ReaderThread, journal: Journal, last: int) -> None:
        """Apply the updates up to record `last` that are in this member's journal and not in its file."""
        at = self._kept.taken_upto + 1
        while at <= last:
            bodies, at = await reader.run(read_updates, journal, at, last)
            self.apply_updates(bodies)

    def apply_updates(self, bodies: Iterable[bytes]) -> None:
        """Apply records of the log, in order.

        Updates of this process are skipped: they are in effect already.
        """
        for body in bodies:
            try:
                told = msgspec.json.decode(body, type=PositionUpdate)
            except msgspec.DecodeError as problem:
                log.warning("kept_not_understood", why=str(problem))
                continue
            if told.run != self._run:
                self._take(told)

    def _take(self, told: PositionUpdate) -> None:
        """Apply one update of another member: whole entries, positions, deletions."""
        for entry in told.kept:
            self._take_one(entry)
        for client, name, position, made in told.at:
            durable = self._kept.durables.get((client, name))
            if durable is not None and durable.created_at == made:  # not a later one of the name
                self._move(durable, position)
        for kind, client, name, made in told.gone:
            found = self._found((kind, client, name))
            self._note_gone((kind, client, name), made)
            if found is not None and found.created_at <= made:
                self._kept.remove(found, tell=False)
                self._told.pop(_key(found), None)
                self._told_at.pop(_key(found), None)

    def _take_one(self, entry: Entry) -> None:
        """Apply another member's whole entry, unless a later one of the name exists or it was deleted."""
        key = _key(entry)
        known = self._found(key)
        if entry.created_at <= self._gone.get(key, 0) or (
            known is not None and known.created_at > entry.created_at
        ):
            return
        if isinstance(entry, ManagedReplayRecord):
            entry.caught_up = False  # true only of the other member's subscription
        if known is None or known.created_at < entry.created_at:
            if known is not None:
                self._kept.remove(known, tell=False)
            self._kept.add_replicated(entry)
            self._told[key] = _state(entry)
        elif isinstance(known, DurableSubscriptionRecord):
            self._move(known, entry.position)
        else:
            assert isinstance(known, ManagedReplayRecord) and isinstance(entry, ManagedReplayRecord)
            known.merge(entry)
            # The merge may differ from both. It is then published in turn, so all members reach the same
            # entry.
            self._told[key] = _state(entry)
            self._kept.mark_changed(known)
            self._on_merged(known)
        self._told_whole(key)

    def _move(self, durable: DurableSubscriptionRecord, position: int) -> None:
        """Move a durable subscription's position forward to another member's."""
        if position > durable.position:
            durable.position = position
            self._kept.mark_changed(durable)
        key = _key(durable)
        before = self._told.get(key)
        if before is not None:
            self._told[key] = before[0], max(before[1], position)

    def _found(self, key: Key) -> Entry | None:
        kind, client, name = key
        if kind == "durable":
            return self._kept.durables.get((client, name))
        return self._kept.replays.get(name)

    def _forget(self, entry: Entry) -> None:
        """Remember that this member deleted an entry."""
        self._told.pop(_key(entry), None)
        self._told_at.pop(_key(entry), None)
        self._note_gone(_key(entry), entry.created_at)

    def _note_gone(self, key: Key, made: int) -> None:
        self._gone.pop(key, None)
        self._gone[key] = made
        if len(self._gone) > MAX_GONE:
            del self._gone[next(iter(self._gone))]


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
