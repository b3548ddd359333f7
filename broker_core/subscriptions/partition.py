"""Split of a batch into journaled and unjournaled records, and their order of publication. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from broker_core.batch import Batch, Rows

NO_ROWS: Final[Rows] = np.zeros(0, np.intp)
"""Selection of no rows."""


class BatchPartition(msgspec.Struct, frozen=True):
    """Unjournaled and journaled part of a batch, None where it has no such record.

    A part that is the whole batch is the same object.
    """

    passed: Batch | None
    kept: Batch | None
    is_kept: npt.NDArray[np.bool_] | None = None
    """For each row whether it is journaled; set if the batch has both kinds of records."""


class Interleaving:
    """Published order of the rows of a batch that has journaled and unjournaled records.

    `kept_count` is the number of journaled rows that remain: a log shared by several brokers drops the first
    of them when another broker had stored them before.
    """

    def __init__(self, is_kept: npt.NDArray[np.bool_], kept_count: int) -> None:
        kept = np.flatnonzero(is_kept)
        self._places = kept[len(kept) - kept_count :], np.flatnonzero(~is_kept)
        self._runs: dict[tuple[int, int], Sequence[tuple[int, Rows | None]]] = {}

    def runs(self, kept: Rows | None, passed: Rows | None) -> Sequence[tuple[int, Rows | None]]:
        """Return runs of (part, its next rows) in the order of the batch.

        Part 0 is journaled, part 1 unjournaled; None means all rows. The same arrays yield the same object,
        as long as the caller keeps them.
        """
        key = (id(kept), id(passed))
        found = self._runs.get(key)
        if found is None:
            found = self._runs[key] = list(self._make(kept, passed))
        return found

    def _make(self, kept: Rows | None, passed: Rows | None) -> Iterator[tuple[int, Rows | None]]:
        both = kept, passed
        for part, alone in ((0, passed), (1, kept)):
            if alone is not None and not len(alone):
                yield part, both[part]
                return
        rows = [
            np.arange(len(places)) if wanted is None else wanted
            for places, wanted in zip(self._places, both, strict=True)
        ]
        parts = np.repeat((0, 1), [len(one) for one in rows])
        places = np.concatenate([at[one] for at, one in zip(self._places, rows, strict=True)])
        order = np.argsort(places)
        parts, joined = parts[order], np.concatenate(rows)[order]
        starts = [0, *(np.flatnonzero(np.diff(parts)) + 1).tolist()]
        for start, stop in zip(starts, [*starts[1:], len(joined)], strict=True):
            yield int(parts[start]), joined[start:stop]
