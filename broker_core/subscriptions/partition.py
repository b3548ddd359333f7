"""A batch parted into what is journaled and what isn't, and the order in which both were published. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from broker_core.batch import Batch, Rows

NO_ROWS: Final[Rows] = np.zeros(0, np.intp)


class BatchPartition(msgspec.Struct, frozen=True):
    """Parts of a batch: not journaled, and journaled. None where there is nothing of it; a whole part is the
    batch itself."""

    passed: Batch | None
    kept: Batch | None
    is_kept: npt.NDArray[np.bool_] | None = None
    """Of a batch of both kinds: for each of its rows whether it is journaled."""


class Interleaving:
    """The order of the rows of a batch of both kinds.

    `kept_count` is the number of journaled rows that are left: a log that several brokers share drops the
    first of them when another broker had them before.
    """

    def __init__(self, is_kept: npt.NDArray[np.bool_], kept_count: int) -> None:
        kept = np.flatnonzero(is_kept)
        self._places = kept[len(kept) - kept_count :], np.flatnonzero(~is_kept)
        self._runs: dict[tuple[int, int], Sequence[tuple[int, Rows | None]]] = {}

    def runs(self, kept: Rows | None, passed: Rows | None) -> Sequence[tuple[int, Rows | None]]:
        """Return (part, its next rows) in the order of the batch; part 0 is what is journaled, 1 what isn't.
        None is all rows.

        The answer is the same object for the same arrays, as long as the caller holds those.
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
