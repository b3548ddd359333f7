"""Conflation that a subscriber asked for: of the records with one key, it gets the last of each interval.

`Conflator` is pure: batches in, batches out. Intervals are cut on the timeline of the records (accepted_at),
at multiples of the interval. So a replay conflates as the live stream did, however fast it runs and wherever
it starts. A held record takes its position in the order, and its bookmark, from the first record that it
stands for (seed 002). A subscriber that resumes after that bookmark misses nothing, and may get the rest of
the interval once more.

`SubscriptionConflator` applies it to one subscription: it delivers held records and counts their memory.
During a replay an interval ends when a later record is read. When the subscription has caught up, intervals
end by the clock. While the client is offlined nothing is held, because the broker wants its memory back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from broker_core.batch import MAX_BATCH_BYTES, Batch, BatchHeader, Rows, build_batch
from broker_core.delivery.account import NOTHING, DiscardCause, MessageVolume
from broker_core.delivery.backlog import Backlog
from broker_core.delivery.entries import BatchSlice, OutboxEntry, age_start_ns
from broker_core.delivery.lifecycle import ClientState
from broker_core.delivery.ports import DeliveryTarget, InstanceResources
from broker_core.errors import ClientError
from broker_core.filters import DecoderOf
from broker_core.names import BROKER_NAME
from broker_core.quantities import parse_client_interval
from broker_core.subscriptions.keys import RecordKey, parse_key
from broker_core.subscriptions.subscription import TopicSubscription

RECORD_OVERHEAD_BYTES: Final = 200
"""Memory that a held record uses besides its topic, headers and body, bytes: measured, rounded up."""
FULL_BATCH_BYTES: Final = MAX_BATCH_BYTES // 4
"""Bytes of records at which a batch of conflated records is closed and the next one begins."""
MAX_BATCH_RECORDS: Final = 10_000
"""Maximum number of records in a batch of conflated records."""
MAX_BATCH_TOPICS: Final = 1_000
"""Maximum number of topics in a batch of conflated records."""


@dataclass(frozen=True, slots=True)
class ConflationOptions:
    """Conflation options of a subscription: the interval in ns, and the key."""

    interval_ns: int
    key: RecordKey


def parse_conflation(interval: str, key: str | None) -> ConflationOptions:
    """Parse the options `conflation` ("1s", "250ms") and `conflation_key` ("topic", "/id", or "/desk,/id").

    Raises:
        ClientError: bad_interval or bad_conflation.
    """
    interval_ns = parse_client_interval(interval, "conflation")
    if not key:
        raise ClientError(
            "bad_conflation",
            "conflation needs a conflation_key.",
            "Set the key field, such as /id.",
            field="conflation_key",
        )
    try:
        return ConflationOptions(interval_ns, parse_key(key))
    except ClientError as error:
        if error.code != "bad_key":
            raise
        raise ClientError(
            "bad_conflation", f"conflation_key can't be {key[:80]!r}.", error.fix, field="conflation_key"
        ) from None


class _LastRecord(NamedTuple):
    """Last record of a key in the current interval."""

    sequence: int
    """Sequence of the first record that it stands for; 0 when that is unjournaled."""
    topic: str
    headers: bytes
    body: bytes

    @property
    def nbytes(self) -> int:
        return len(self.topic) + len(self.headers) + len(self.body) + RECORD_OVERHEAD_BYTES


class Conflator:
    """Held records of one subscription: the last one by key. `nbytes` counts as its client's memory."""

    __slots__ = ("_conflation", "_key_of", "_last_records", "_newest", "_window", "nbytes", "replaced")

    def __init__(self, conflation: ConflationOptions, decoder_of: DecoderOf | None) -> None:
        """Create an empty conflator.

        `decoder_of` returns the decoder of a topic's bodies. Without it, or if it returns None, bodies are
        JSON.
        """
        self._conflation = conflation
        self._key_of = conflation.key.key_of_record(decoder_of)
        self._last_records: dict[object, _LastRecord] = {}
        self._window = 0
        self._newest: BatchHeader | None = None
        self.nbytes = 0
        self.replaced = NOTHING
        """Records that the last call of `add` replaced by later ones of the same key."""

    def __len__(self) -> int:
        return len(self._last_records)

    @property
    def interval_ns(self) -> int:
        return self._conflation.interval_ns

    @property
    def first_sequence(self) -> int:
        """Sequence from which the log brings back the held records; 0 when no held record is journaled."""
        return next((record.sequence for record in self._last_records.values() if record.sequence), 0)

    @property
    def ends_at(self) -> int:
        """End of the current interval, ns on the records' timeline; 0 when nothing is held."""
        return (self._window + 1) * self._conflation.interval_ns if self._last_records else 0

    def add(self, batch: Batch, rows: Rows | None) -> list[Batch]:
        """Hold the given rows (None: all).

        Return the records of ended intervals as batches, in order of bookmarks.

        All records of a batch were accepted at one moment, so they belong to one interval.
        """
        window = batch.accepted_at // self._conflation.interval_ns
        # An interval that has ended is not reopened, even if a record is late or a clock was set back.
        ended = self.release() if window > self._window else []
        self._window = max(window, self._window)
        self._newest = batch.header
        self._store_rows(batch, range(batch.count) if rows is None else rows.tolist())
        return ended

    def take_due(self, now: int) -> list[Batch]:
        """Return the held records as batches if their interval has ended by `now` (ns).

        Only for live records, which are as new as the clock.
        """
        if not self._last_records or now < self.ends_at:
            return []
        released = self.release()
        self._window = now // self._conflation.interval_ns
        return released

    def release(self) -> list[Batch]:
        """Return all held records as batches, even if their interval has not ended.

        Nothing is held afterwards.

        Unjournaled records come first, as a batch without sequences.
        """
        records = list(self._last_records.values())
        newest = self._newest
        self.drop()
        if newest is None:
            return []
        plain = [one for one in records if not one.sequence]
        journaled = [one for one in records if one.sequence] if plain else records
        return [_build_batch(part, newest) for part in (*_split_records(plain), *_split_records(journaled))]

    def drop(self) -> None:
        """Discard the held records."""
        self._last_records.clear()
        self.nbytes = 0

    def _store_rows(self, batch: Batch, rows: Any) -> None:
        """Hold rows of a batch. Each replaces the held record of its key and keeps that record's position."""
        names, indexes = batch.topics, batch.topic_indexes.tolist()
        bodies, sequences = batch.bodies(), batch.sequences().tolist()
        headers = batch.headers() if batch.header.headers_length else None
        replaced = replaced_bytes = 0
        for row in rows:
            topic, body = names[indexes[row] - 1], bodies[row]
            # A journaled record never replaces an unjournaled one: each kind is accounted for separately.
            found = self._key_of(topic, body)
            # A record without a key replaces nothing.
            key = object() if found is None else (batch.first_sequence > 0, found)
            before = self._last_records.get(key)
            if before is not None:
                replaced, replaced_bytes = replaced + 1, replaced_bytes + len(before.body)
            record = _LastRecord(
                before.sequence if before else sequences[row], topic, headers[row] if headers else b"", body
            )
            self.nbytes += record.nbytes - (before.nbytes if before else 0)
            self._last_records[key] = record
        self.replaced = MessageVolume(replaced, replaced_bytes)


def _split_records(records: list[_LastRecord]) -> Iterator[list[_LastRecord]]:
    """Split the records where a batch would have too many bytes, records or topics."""
    start, nbytes, topics = 0, 0, set[str]()
    for end, one in enumerate(records):
        nbytes += len(one.body) + len(one.headers)
        topics.add(one.topic)
        if end > start and (
            nbytes > FULL_BATCH_BYTES or len(topics) > MAX_BATCH_TOPICS or end - start >= MAX_BATCH_RECORDS
        ):
            yield records[start:end]
            start, nbytes, topics = end, len(one.body) + len(one.headers), {one.topic}
    if records:
        yield records[start:]


def _build_batch(records: list[_LastRecord], newest: BatchHeader) -> Batch:
    """Build a batch of held records, stamped like the newest source batch."""
    numbers, topics, headers, bodies = zip(*records, strict=True)
    sequences = numbers if numbers[0] else ()
    # The publisher is the broker, because the records come from several publishers.
    batch = Batch.parse(build_batch(BROKER_NAME, topics, bodies, headers, sequences=sequences), verify=False)
    batch.stamp(
        origin=newest.origin, epoch=newest.epoch, first_sequence=numbers[0], accepted_at=newest.accepted_at
    )
    return batch


class SubscriptionConflator:
    """Conflation of one subscription: held records, their timer, their memory and their account entries."""

    def __init__(
        self,
        facilities: InstanceResources,
        backlog: Backlog,
        recipient: DeliveryTarget,
        subscription: TopicSubscription[object],
        conflation: ConflationOptions,
    ) -> None:
        self._clock = facilities.clock
        self._backlog = backlog
        self._recipient = recipient
        self._subscription = subscription
        self._conflator = Conflator(conflation, subscription.decoder_of)
        self._pending_slices: list[BatchSlice] = []
        """Conflated slices that were not delivered when the replay was paused."""
        self.nbytes = 0
        """Bytes of memory that the held records use."""
        self.first_sequence = 0
        """Sequence of the first held record that isn't delivered yet; 0 when there is none."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def ends_at(self) -> int:
        """End of the current interval, ns; 0 when nothing is held."""
        return self._conflator.ends_at

    @property
    def is_stranded(self) -> bool:
        """Whether records are held that no timer will release.

        It must never be true for a live subscription.
        """
        return self._timer is None and self.ends_at > 0

    def get_first_needed(self, waiting: Sequence[BatchSlice]) -> int:
        """Return the sequence of the first undelivered record, waiting or held; 0 when there is none."""
        return waiting[0].first_sequence if waiting else self._conflator.first_sequence

    # During a replay.

    def add_replayed(self, slices: Iterable[BatchSlice], caught_up: bool, release: bool) -> list[BatchSlice]:
        """Hold replayed slices and return the slices that may be delivered now.

        Args:
            caught_up: the replay has caught up, so intervals also end by the clock.
            release: also return all held records.
        """
        ready, self._pending_slices = self._pending_slices, []
        for one in slices:
            ends_at = self.ends_at
            ready += self._to_slices(self._store_rows(one.batch, None), ends_at)
        if caught_up:
            ends_at = self.ends_at
            ready += self._to_slices(
                self._conflator.release() if release else self._conflator.take_due(self._clock.now_ns()),
                ends_at,
            )
        self._update_counts()
        return ready

    def requeue_slices(self, slices: Sequence[BatchSlice]) -> None:
        """Keep conflated slices that were not delivered, because the replay is paused.

        They come first when it resumes.
        """
        self._pending_slices += [one.first(one.batch.count - one.start) for one in slices]
        self._update_counts()
        self._cancel_timer()

    def _to_slices(self, batches: list[Batch], recorded_at: int) -> list[BatchSlice]:
        """Return batches as slices without a source in the log."""
        return [BatchSlice(self._subscription, None, 0, None, batch, recorded_at) for batch in batches]

    def _store_rows(self, batch: Batch, rows: Rows | None) -> list[Batch]:
        """Hold matched rows.

        Count them as matched, and replaced ones as conflated at the subscriber's request (no loss).
        """
        account = self._recipient.account
        account.match_rows(batch, rows)
        ended = self._conflator.add(batch, rows)
        account.discard_waiting(
            DiscardCause.CONFLATED_ON_REQUEST, self._conflator.replaced, batch.header.first_sequence > 0
        )
        return ended

    # Live.

    def add_live(self, batch: Batch, rows: Rows | None) -> None:
        """Hold matched rows of a live batch, and queue the records of the intervals that it ends."""
        self._offer(self._store_rows(batch, rows))
        if self._backlog.spool is not None:
            self._offer(self._conflator.release())
        self.start_timer()

    def start_timer(self) -> None:
        """Start the timer that delivers held records at the end of their interval."""
        self._update_counts()
        if self._timer is None and self.ends_at:
            # Live records are as new as the clock. If the clock is behind them, an interval still lasts no
            # longer than set.
            remaining_ns = min(max(self.ends_at - self._clock.now_ns(), 0), self._conflator.interval_ns)
            self._timer = asyncio.get_running_loop().call_later(
                remaining_ns / 1e9 + 0.001, self._on_interval_end, self.ends_at
            )

    def _on_interval_end(self, armed_for: int) -> None:
        """Queue the records of ended intervals, and restart the timer."""
        self._timer = None
        if self._backlog.state is ClientState.CLOSED:
            return
        self._offer(self._conflator.take_due(max(self._clock.now_ns(), armed_for)))
        self.start_timer()

    def _offer(self, batches: list[Batch]) -> None:
        """Queue batches that are already counted as matched."""
        now = self._clock.now_ns()
        for batch in batches:
            since = age_start_ns(batch.accepted_at, now)
            self._backlog.offer_counted(
                OutboxEntry(self._recipient.stream, batch, None, None, 0, batch.count, batch.nbytes, since)
            )

    def on_offlined(self) -> None:
        """Queue all held records for the spool, because the client is offlined."""
        self._offer(self._conflator.release())
        self.start_timer()

    def close(self) -> None:
        """Discard all held records, because the subscription has ended."""
        self._cancel_timer()
        self._conflator.drop()
        self._pending_slices.clear()
        self._update_counts()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _update_counts(self) -> None:
        """Update the client's memory and `first_sequence`."""
        nbytes = self._conflator.nbytes + sum(one.batch.nbytes for one in self._pending_slices)
        if nbytes != self.nbytes:
            self._backlog.adjust_conflated_bytes(nbytes - self.nbytes)
            self.nbytes = nbytes
        self.first_sequence = self.get_first_needed(self._pending_slices)
