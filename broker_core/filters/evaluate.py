"""Runs filters over one record batch. Each record's JSON is decoded once at most, however many filters."""

from __future__ import annotations

from itertools import compress
from typing import Any, Final

import numpy as np
import orjson

from broker_core.batch import Batch, Rows
from broker_core.filters.compiler import Filter


class _NotJson:
    """Stands in the place of a record that isn't JSON."""

    __slots__ = ()


_NOT_JSON: Final = _NotJson()
_UNREAD: Final = object()


class BatchEvaluator:
    """The decoded records of one batch, for as long as filters run over it."""

    __slots__ = ("_batch", "_found", "_messages", "_unread")

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._messages: list[Any] = []
        self._unread = True
        self._found: dict[tuple[Filter, int], tuple[Rows | None, Rows]] = {}

    @property
    def count(self) -> int:
        """Records in the batch."""
        return self._batch.count

    def rows(self, chosen: Filter, candidates: Rows | None = None) -> Rows:
        """The rows that pass, ascending: of the candidates, or of all records. The same question gets the
        same array.

        Records that aren't JSON pass no filter.
        """
        # The candidates stay in the entry: as long as they live, no other array gets their id.
        key = (chosen, id(candidates))
        known = self._found.get(key)
        if known is None:
            known = self._found[key] = (candidates, self._run(chosen, candidates))
        return known[1]

    def _run(self, chosen: Filter, candidates: Rows | None) -> Rows:
        test = chosen.test
        if candidates is None:
            wanted: Any = range(self._batch.count)
            messages = self._all()
        else:
            wanted = candidates.tolist()
            messages = self._some(wanted)
        passed = [message is not _NOT_JSON and test(message) is True for message in messages]
        if candidates is not None and all(passed):
            return candidates
        return np.array(list(compress(wanted, passed)), dtype=np.int64)

    def _all(self) -> list[Any]:
        if self._unread:
            self._unread = False
            bodies = self._batch.bodies()
            if self._messages:
                self._some(range(len(bodies)))
            else:
                try:
                    self._messages = list(map(orjson.loads, bodies))
                except orjson.JSONDecodeError:
                    self._messages = list(map(_decode, bodies))
        return self._messages

    def _some(self, wanted: Any) -> list[Any]:
        messages, bodies = self._messages, self._batch.bodies()
        if not messages:
            messages = self._messages = [_UNREAD] * len(bodies)
        for row in wanted:
            if messages[row] is _UNREAD:
                messages[row] = _decode(bodies[row])
        return [messages[row] for row in wanted]


def _decode(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return _NOT_JSON
