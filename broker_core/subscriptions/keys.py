"""Keys of records, and the last record of each key over a run of batches, without copying records.

    fold = LastPerKey(parse_key("/id").key_of_record(decoder_of))
    for batch in batches: fold.add(batch)
    for number, rows in fold.last_rows(): ...   # rows of the batch that was added as `number`, ascending

Every key is built here: for the snapshot of the current state at a subscriber's start (seed 001), for
conflating queued records, and for the conflation that a subscriber requests. A body is read as filters read
it, by the topic's decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson

from broker_core.batch import Batch, Rows
from broker_core.errors import ClientError
from broker_core.filters.message_types import UNREADABLE, DecoderOf, decode_json
from broker_core.filters.tokens import tokenize
from broker_core.filters.values import compile_path

MAX_KEY_PATHS: Final = 8
"""Maximum number of fields in a key."""
MAX_KEYS: Final = 100_000
"""Maximum number of keys in one snapshot; each takes some 200 bytes while the snapshot is built."""

KeyOf = Callable[[str, bytes], object]
"""Function (topic, body) → key; None for a record that neither replaces a record nor is replaced."""


@dataclass(frozen=True, slots=True)
class RecordKey:
    """Key by which records replace each other: some fields, or the topic alone when there are none."""

    fields: tuple[Callable[[Any], Any], ...]

    def key_of_record(self, decoder_of: DecoderOf | None) -> KeyOf:
        """Return the function that computes a record's key.

        `decoder_of` gives the decoder of a topic's bodies; without one a body is JSON. A record has the key
        None if its body can't be read, has none of the fields, or is nested too deep in one (250 levels).
        """
        if not self.fields:
            return lambda topic, body: topic
        fields = self.fields

        def key(topic: str, body: bytes) -> object:
            decode = decode_json if decoder_of is None else decoder_of(topic) or decode_json
            message = decode(body)
            if message is UNREADABLE:
                return None
            values = [get(message) for get in fields]
            if all(value is None for value in values):
                return None
            try:
                return topic, orjson.dumps(values, option=orjson.OPT_SORT_KEYS)
            except orjson.JSONEncodeError:
                return None

        return key


def parse_key(text: str) -> RecordKey:
    """Parse a key expression: `topic`, or 1 to 8 fields such as `/id` or `/desk,/id`.


    With fields the topic belongs to the key as well: equal ids on two topics are different keys. Raises
    ClientError bad_key.
    """
    if text == "topic":
        return RecordKey(())
    try:
        tokens = tokenize(text)[:-1]
    except ClientError:  # its text is about filters
        tokens = []
    paths = [token.value for token in tokens[0::2] if token.kind == "path" and isinstance(token.value, tuple)]
    commas = all(token.kind == "," for token in tokens[1::2])
    if not commas or len(tokens) != 2 * len(paths) - 1 or not 1 <= len(paths) <= MAX_KEY_PATHS:
        raise ClientError(
            "bad_key",
            f"A key can't be {text[:80]!r}.",
            f"Write topic, or 1 to {MAX_KEY_PATHS} fields separated by commas: /desk,/id.",
        )
    return RecordKey(tuple(map(compile_path, paths)))


class LastPerKey:
    """Running result: the last record of each key. Batches are numbered from 0 in the order of `add`."""

    def __init__(self, key_of: KeyOf, max_keys: int = MAX_KEYS) -> None:
        self._key_of = key_of
        self._max_keys = max_keys
        self._last: dict[Any, tuple[int, int]] = {}
        self._keyless: list[tuple[int, int]] = []
        self._batches = 0

    def add(self, batch: Batch, rows: Rows | None = None) -> None:
        """Add the next batch: all of it, or the given rows.

        Raises ClientError snapshot_too_large with more than `max_keys` keys.
        """
        number, self._batches = self._batches, self._batches + 1
        topics, indexes, bodies = batch.topics, batch.topic_indexes.tolist(), batch.bodies()
        last, key_of = self._last, self._key_of
        for row in range(batch.count) if rows is None else rows.tolist():
            key = key_of(topics[indexes[row] - 1], bodies[row])
            if key is None:
                self._keyless.append((number, row))
            else:
                last[key] = (number, row)
        if len(last) + len(self._keyless) > self._max_keys:
            raise ClientError(
                "snapshot_too_large",
                f"There are more than {self._max_keys} keys.",
                "Use a filter, a narrower topic, or a key with fewer values.",
            )

    def last_rows(self) -> Iterator[tuple[int, Rows]]:
        """Yield (number, rows) of each batch that has the last record of a key, in ascending order."""
        found: dict[int, list[int]] = {}
        for number, row in sorted([*self._last.values(), *self._keyless]):
            found.setdefault(number, []).append(row)
        for number, rows in found.items():
            yield number, np.array(rows, dtype=np.int64)
