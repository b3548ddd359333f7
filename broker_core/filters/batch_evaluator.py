"""Evaluation of filters over one record batch.

Each record is decoded at most once, however many filters run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Any, Final

import numpy as np
import orjson

from broker_core.batch import Batch, Rows
from broker_core.filters.compiler import Filter
from broker_core.filters.message_types import UNREADABLE, Decoder, DecoderOf, decode_json
from broker_core.filters.selectors.parser import HeaderTest
from broker_core.headers import decode as decode_headers

_UNDECODED: Final = object()


class BatchEvaluator:
    """Evaluator that caches the decoded records of one batch for several filters."""

    __slots__ = ("_batch", "_decoders", "_headers", "_is_undecoded", "_messages", "_rows_by_filter")

    def __init__(self, batch: Batch, decoder_of: DecoderOf | None) -> None:
        """Create an evaluator.

        Args:
            batch: Batch to evaluate.
            decoder_of: Returns the decoder of a topic's bodies. None, or a decoder that is None, means JSON.
        """
        self._batch = batch
        self._decoders = None if decoder_of is None else _decoders(batch, decoder_of)
        self._messages: list[Any] = []
        self._headers: list[dict[str, str]] = []
        self._is_undecoded = True
        self._rows_by_filter: dict[tuple[Filter, int], tuple[Rows | None, Rows]] = {}

    @property
    def count(self) -> int:
        """Number of records in the batch."""
        return self._batch.count

    def rows(
        self, chosen: Filter, candidates: Rows | None = None, among: Sequence[int] | Rows | None = None
    ) -> Rows:
        """Return the numbers of matching rows, in ascending order.

        A record that cannot be decoded as its message type matches no filter. Results are cached: the same
        filter and candidates return the same array.

        Args:
            chosen: Filter to evaluate.
            candidates: Rows to consider. None: all rows.
            among: Candidates that may match, if an index has already excluded the others.
        """
        # The cache entry holds the candidates, so that no other array can get their id while the entry
        # exists.
        key = (chosen, id(candidates))
        known = self._rows_by_filter.get(key)
        if known is None:
            selected = candidates if among is None else np.asarray(among, dtype=np.int64)
            known = self._rows_by_filter[key] = (candidates, self._find_rows(chosen, selected))
        return known[1]

    def messages(self, candidates: Rows | None = None) -> Iterable[tuple[int, Any]]:
        """Return the decoded records with their row numbers, of the candidates or of all rows."""
        if candidates is None:
            return enumerate(self._decode_all())
        rows = candidates.tolist()
        return zip(rows, self._decode_rows(rows), strict=True)

    def _find_rows(self, chosen: Filter, candidates: Rows | None) -> Rows:
        """Evaluate a filter: first its test of headers, then its test of bodies."""
        if chosen.header_test is not None:
            candidates = self._filter_by_headers(chosen.header_test, candidates)
        test = chosen.test
        if test is None:
            return np.arange(self._batch.count) if candidates is None else candidates
        if candidates is None:
            rows: Any = range(self._batch.count)
            messages = self._decode_all()
        else:
            rows = candidates.tolist()
            messages = self._decode_rows(rows)
        passed = [message is not UNREADABLE and test(message) is True for message in messages]
        if candidates is not None and all(passed):
            return candidates
        return np.array(list(compress(rows, passed)), dtype=np.int64)

    def _filter_by_headers(self, test: HeaderTest, candidates: Rows | None) -> Rows:
        """Return the rows whose headers match.

        As in deliveries, the time of acceptance is one of the headers.
        """
        if not self._headers:
            moment = {"timestamp": str(self._batch.accepted_at // 1_000_000)}
            self._headers = [decode_headers(lines) | moment for lines in self._batch.headers()]
        headers = self._headers
        rows = range(len(headers)) if candidates is None else candidates.tolist()
        return np.array([row for row in rows if test(headers[row]) is True], dtype=np.int64)

    def _decode_all(self) -> list[Any]:
        """Return all decoded records, decoding those that are missing."""
        if self._is_undecoded:
            self._is_undecoded = False
            bodies = self._batch.bodies()
            if self._messages or self._decoders is not None:
                self._decode_rows(range(len(bodies)))
            else:
                try:
                    self._messages = list(map(orjson.loads, bodies))
                except orjson.JSONDecodeError:
                    self._messages = list(map(decode_json, bodies))
        return self._messages

    def _decode_rows(self, rows: Any) -> list[Any]:
        """Return the decoded records of some rows, decoding those that are missing."""
        messages, bodies = self._messages, self._batch.bodies()
        if not messages:
            messages = self._messages = [_UNDECODED] * len(bodies)
        for row in rows:
            if messages[row] is _UNDECODED:
                messages[row] = self._decode(row, bodies[row])
        return [messages[row] for row in rows]

    def _decode(self, row: int, body: bytes) -> Any:
        decoders = self._decoders
        if decoders is None:
            return decode_json(body)
        return decoders[0 if len(decoders) == 1 else int(self._batch.topic_indexes[row]) - 1](body)


def _decoders(batch: Batch, decoder_of: DecoderOf) -> tuple[Decoder, ...] | None:
    """Return one decoder per topic of the batch, or None if all topics are JSON."""
    found = [decoder_of(topic) for topic in batch.topics]
    return None if not any(found) else tuple(decoder or decode_json for decoder in found)
