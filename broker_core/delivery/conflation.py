"""Conflation: of the records with one key, a subscriber gets the last of each interval. Pure: batches in, batches out.

Intervals are cut on the timeline of the records (accepted_at), at multiples of the interval, so that a replay
conflates as it would have been conflated when the records were new, however fast it runs and wherever it starts. A
record that is held takes its place in the order, and its bookmark, from the first record it stands for (seed 002): a
subscriber that resumes after that bookmark misses nothing, and may get the rest of the interval once more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from broker_core.batch import MAX_BATCH_BYTES, Batch, BatchHeader, Rows, build_batch
from broker_core.delivery.account import NOTHING, Amount
from broker_core.errors import ClientError
from broker_core.filters import DecoderOf
from broker_core.names import BROKER_NAME
from broker_core.quantities import parse_client_interval
from broker_core.subscriptions.keys import RecordKey, parse_key

HELD_OVERHEAD: Final = 200
"""Bytes of memory that a held record takes besides its topic, headers and body; measured, rounded up."""
FULL_BATCH: Final = MAX_BATCH_BYTES // 4
"""Bytes of records at which a batch of conflated records is closed and the next begun."""
MAX_BATCH_RECORDS: Final = 10_000
MAX_BATCH_TOPICS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Conflation:
    """What a subscriber asked for: the interval in ns, and the key."""

    interval_ns: int
    key: RecordKey


def parse_conflation(interval: str, key: str | None) -> Conflation:
    """The options `conflation` ("1s", "250ms") and `conflation_key` ("topic", "/id", or "/desk,/id").

    Raises ClientError bad_interval or bad_conflation.
    """
    interval_ns = parse_client_interval(interval, "conflation")
    if not key:
        raise ClientError(
            "bad_conflation",
            "conflation needs a conflation_key.",
            "Name the field whose records replace each other, such as /id.",
            field="conflation_key",
        )
    try:
        return Conflation(interval_ns, parse_key(key))
    except ClientError as error:
        if error.code != "bad_key":
            raise
        raise ClientError(
            "bad_conflation", f"conflation_key can't be {key[:80]!r}.", error.fix, field="conflation_key"
        ) from None


class _Held(NamedTuple):
    sequence: int
    """Of the first record it stands for; 0 when that isn't journaled."""
    topic: str
    headers: bytes
    body: bytes

    @property
    def nbytes(self) -> int:
        return len(self.topic) + len(self.headers) + len(self.body) + HELD_OVERHEAD


class Conflator:
    """The records one subscription holds back. `nbytes` counts as its client's memory."""

    __slots__ = ("_conflation", "_held", "_key_of", "_newest", "_window", "nbytes", "replaced")

    def __init__(self, conflation: Conflation, decoder_of: DecoderOf | None) -> None:
        """`decoder_of` says how a topic's bodies are read; where it, or what it says, is None they are JSON."""
        self._conflation = conflation
        self._key_of = conflation.key.of(decoder_of)
        self._held: dict[object, _Held] = {}
        self._window = 0
        self._newest: BatchHeader | None = None
        self.nbytes = 0
        self.replaced = NOTHING
        """Of what `take` was given last, and what was held before: what a later record has taken the place of."""

    def __len__(self) -> int:
        return len(self._held)

    @property
    def interval_ns(self) -> int:
        return self._conflation.interval_ns

    @property
    def first_sequence(self) -> int:
        """Where to read again to get what is held; 0 when nothing journaled is."""
        return next((held.sequence for held in self._held.values() if held.sequence), 0)

    @property
    def ends_at(self) -> int:
        """When the interval of what is held ends, ns on the records' timeline; 0 when nothing is held."""
        return (self._window + 1) * self._conflation.interval_ns if self._held else 0

    def take(self, batch: Batch, rows: Rows | None) -> list[Batch]:
        """Hold the given rows (None: all); what earlier intervals held comes out, in order of bookmarks.

        All records of a batch were accepted at one moment, so they belong to one interval.
        """
        window = batch.accepted_at // self._conflation.interval_ns
        # An interval that has ended doesn't open again, though a record may be late or a clock be set back.
        ended = self.release() if window > self._window else []
        self._window = max(window, self._window)
        self._newest = batch.header
        self._hold(batch, range(batch.count) if rows is None else rows.tolist())
        return ended

    def due(self, now: int) -> list[Batch]:
        """What is held, when its interval ended before `now` (ns): for records that are as new as the clock."""
        if not self._held or now < self.ends_at:
            return []
        released = self.release()
        self._window = now // self._conflation.interval_ns
        return released

    def release(self) -> list[Batch]:
        """Everything that is held, whether its interval has ended or not; nothing is held afterwards.

        Records that aren't journaled come first, as a batch without sequences.
        """
        held = list(self._held.values())
        newest = self._newest
        self.drop()
        if newest is None:
            return []
        plain = [one for one in held if not one.sequence]
        journaled = [one for one in held if one.sequence] if plain else held
        return [_batch(part, newest) for part in (*_parts(plain), *_parts(journaled))]

    def drop(self) -> None:
        """Forget what is held."""
        self._held.clear()
        self.nbytes = 0

    def _hold(self, batch: Batch, rows: Any) -> None:
        names, indexes = batch.topics, batch.topic_indexes.tolist()
        bodies, sequences = batch.bodies(), batch.sequences().tolist()
        headers = batch.headers() if batch.header.headers_length else None
        replaced = replaced_bytes = 0
        for row in rows:
            topic, body = names[indexes[row] - 1], bodies[row]
            # What the log keeps never takes the place of what it doesn't: each is accounted for by itself.
            found = self._key_of(topic, body)
            key = (
                object() if found is None else (batch.first_sequence > 0, found)
            )  # without a key it replaces nothing
            before = self._held.get(key)
            if before is not None:
                replaced, replaced_bytes = replaced + 1, replaced_bytes + len(before.body)
            held = _Held(
                before.sequence if before else sequences[row], topic, headers[row] if headers else b"", body
            )
            self.nbytes += held.nbytes - (before.nbytes if before else 0)
            self._held[key] = held
        self.replaced = Amount(replaced, replaced_bytes)


def _parts(held: list[_Held]) -> Iterator[list[_Held]]:
    """Cut where a batch would have too many bytes, records or topics."""
    start, nbytes, topics = 0, 0, set[str]()
    for end, one in enumerate(held):
        nbytes += len(one.body) + len(one.headers)
        topics.add(one.topic)
        if end > start and (
            nbytes > FULL_BATCH or len(topics) > MAX_BATCH_TOPICS or end - start >= MAX_BATCH_RECORDS
        ):
            yield held[start:end]
            start, nbytes, topics = end, len(one.body) + len(one.headers), {one.topic}
    if held:
        yield held[start:]


def _batch(held: list[_Held], newest: BatchHeader) -> Batch:
    numbers, topics, headers, bodies = zip(*held, strict=True)
    sequences = numbers if numbers[0] else ()
    # From the broker: the records come from several publishers.
    batch = Batch.parse(build_batch(BROKER_NAME, topics, bodies, headers, sequences=sequences), verify=False)
    batch.stamp(
        origin=newest.origin, epoch=newest.epoch, first_sequence=numbers[0], accepted_at=newest.accepted_at
    )
    return batch
