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

    unjournaled: Batch | None
    journaled: Batch | None
    is_journaled: npt.NDArray[np.bool_] | None = None
    """For each row whether it is journaled; set if the batch has both kinds of records."""


class Interleaving:
    """Published order of the rows of a batch that has journaled and unjournaled records.

    `remaining_journaled` is the number of journaled rows that remain. A log shared by several brokers drops
    the first of them if another broker stored them before.
    """

    def __init__(self, is_journaled: npt.NDArray[np.bool_], remaining_journaled: int) -> None:
        journaled_rows = np.flatnonzero(is_journaled)
        self._positions = (
            journaled_rows[len(journaled_rows) - remaining_journaled :],
            np.flatnonzero(~is_journaled),
        )
        self._runs: dict[tuple[int, int], Sequence[tuple[int, Rows | None]]] = {}

    def runs(self, journaled: Rows | None, unjournaled: Rows | None) -> Sequence[tuple[int, Rows | None]]:
        """Return runs of (part, its next rows) in the order of the batch.

        Part 0 is journaled, part 1 unjournaled; None means all rows. The same arrays yield the same object,
        as long as the caller keeps them.
        """
        key = (id(journaled), id(unjournaled))
        found = self._runs.get(key)
        if found is None:
            found = self._runs[key] = list(self._make(journaled, unjournaled))
        return found

    def _make(self, journaled: Rows | None, unjournaled: Rows | None) -> Iterator[tuple[int, Rows | None]]:
        parts_rows = journaled, unjournaled
        for part, alone in ((0, unjournaled), (1, journaled)):
            if alone is not None and not len(alone):
                yield part, parts_rows[part]
                return
        rows = [
            np.arange(len(positions)) if selected is None else selected
            for positions, selected in zip(self._positions, parts_rows, strict=True)
        ]
        parts = np.repeat((0, 1), [len(one) for one in rows])
        positions = np.concatenate([at[one] for at, one in zip(self._positions, rows, strict=True)])
        order = np.argsort(positions)
        parts, sorted_rows = parts[order], np.concatenate(rows)[order]
        starts = [0, *(np.flatnonzero(np.diff(parts)) + 1).tolist()]
        for start, stop in zip(starts, [*starts[1:], len(sorted_rows)], strict=True):
            yield int(parts[start]), sorted_rows[start:stop]
