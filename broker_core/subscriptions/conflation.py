"""Conflation: of the records with one key, a subscriber gets the last of each interval. Pure: batches in, batches out.

Intervals are cut on the timeline of the records (accepted_at), at multiples of the interval, so that a replay
conflates as it would have been conflated when the records were new, however fast it runs and wherever it starts. A
record that is held takes its place in the order, and its bookmark, from the first record it stands for (seed 002): a
subscriber that resumes after that bookmark misses nothing, and may get the rest of the interval once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from broker_core.batch import MAX_BATCH_BYTES, Batch, BatchHeader, Rows, build
from broker_core.errors import ClientError
from broker_core.filters.message_types import UNREADABLE, DecoderOf, decode_json
from broker_core.filters.paths import getter
from broker_core.filters.tokens import Step, tokenize
from broker_core.subscriptions.intervals import parse_interval

MAX_KEY_PATHS: Final = 8
HELD_OVERHEAD: Final = 200
"""Bytes of memory that a held record takes besides its topic, headers and body; measured, rounded up."""
FULL_BATCH: Final = MAX_BATCH_BYTES // 4
"""Bytes of records at which a batch of conflated records is closed and the next begun."""
MAX_BATCH_RECORDS: Final = 10_000
MAX_BATCH_TOPICS: Final = 1_000
PUBLISHER: Final = "$SLUICE"
"""Who a conflated batch says it is from: its records come from several publishers."""


@dataclass(frozen=True, slots=True)
class Conflation:
    """What a subscriber asked for: the interval in ns, and the fields that make the key."""

    interval_ns: int
    key_paths: tuple[tuple[Step, ...], ...]


def parse_conflation(interval: str, key: str | None) -> Conflation:
    """The options `conflation` ("1s", "250ms") and `conflation_key` ("/id", or "/desk,/id").

    Raises ClientError bad_interval, bad_filter (with the column in the key) or bad_conflation.
    """
    interval_ns = parse_interval(interval, "conflation")
    if not key:
        raise ClientError("bad_conflation", "conflation needs a conflation_key.",
                          "Name the field whose records replace each other, such as /id.", field="conflation_key")
    tokens = tokenize(key)[:-1]
    paths = tokens[0::2]
    if any(token.kind != "path" for token in paths) or any(token.kind != "," for token in tokens[1::2]) \
            or len(tokens) % 2 == 0 or len(paths) > MAX_KEY_PATHS:
        raise ClientError("bad_conflation", f"conflation_key can't be {key[:80]!r}.",
                          f"Give 1 to {MAX_KEY_PATHS} fields, separated by commas: /desk,/id.", field="conflation_key")
    return Conflation(interval_ns, tuple(token.value for token in paths if isinstance(token.value, tuple)))


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

    __slots__ = ("_conflation", "_decoder_of", "_getters", "_held", "_newest", "_window", "nbytes")

    def __init__(self, conflation: Conflation, decoder_of: DecoderOf | None = None) -> None:
        """`decoder_of` says how a topic's bodies are read; without it, and where it says None, they are JSON."""
        self._conflation = conflation
        self._decoder_of = decoder_of
        self._getters: list[Callable[[Any], Any]] = [getter(steps) for steps in conflation.key_paths]
        self._held: dict[object, _Held] = {}
        self._window = 0
        self._newest: BatchHeader | None = None
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._held)

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
        for row in rows:
            topic, body = names[indexes[row] - 1], bodies[row]
            key = self._key(topic, body)
            before = self._held.get(key)
            held = _Held(before.sequence if before else sequences[row], topic, headers[row] if headers else b"", body)
            self.nbytes += held.nbytes - (before.nbytes if before else 0)
            self._held[key] = held

    def _key(self, topic: str, body: bytes) -> object:
        """What replaces what. A record that can't be read, or has none of the fields, replaces nothing."""
        decode = self._decoder_of(topic) if self._decoder_of is not None else None
        message = (decode or decode_json)(body)
        if message is UNREADABLE:
            return object()
        values = [get(message) for get in self._getters]
        if all(value is None for value in values):
            return object()
        return topic, orjson.dumps(values, default=repr, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)


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
    batch = Batch.parse(build(PUBLISHER, topics, bodies, headers, sequences=sequences), verify=False)
    batch.stamp(origin=newest.origin, epoch=newest.epoch, first_sequence=numbers[0], accepted_at=newest.accepted_at)
    return batch
