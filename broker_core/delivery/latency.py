"""How long records were on their way through the broker: from accepted to handed to a client's socket.

Counted when something is handed over, once for all that is handed over together, by its oldest. What a replay read from the log
isn't counted: it is as old as its client wants it. What came from a client's spool is.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import Final, NamedTuple

from broker_core.delivery.entries import OutboxEntry

SPAN_S: Final = 10
"""Percentiles are of so many seconds: as many as lie between two samples that the control plane keeps."""
STEPS: Final = 4
"""Cells in which a power of two is cut: a percentile is too great by a fifth at most, and never too small."""
_CELLS: Final = STEPS * 64
_US: Final = 1_000


class LatencyPercentiles(NamedTuple):
    """Of the records of some seconds: within so many ms half of them were handed over, and 99 of a hundred."""

    p50_ms: float
    p99_ms: float
    messages: int


class LatencyTracker:
    """One instance's. `second` is called once a second."""

    def __init__(self) -> None:
        self._now = array("q", bytes(8 * _CELLS))
        self._before: deque[array[int]] = deque(maxlen=SPAN_S)
        self._sum = array("q", bytes(8 * _CELLS))

    def record_handover(self, oldest: OutboxEntry, messages: int, now_ns: int) -> None:
        """So many messages were handed to a socket together."""
        if oldest.accepted_at == oldest.batch.accepted_at:
            self._now[_cell((now_ns - oldest.accepted_at) // _US)] += messages

    def sample_second(self) -> LatencyPercentiles | None:
        """A second is over. Of the last SPAN_S; None when nothing was handed over in them."""
        counts = self._sum
        gone = self._before[0] if len(self._before) == SPAN_S else None
        self._before.append(self._now)
        for cell, count in enumerate(self._now):
            counts[cell] += count - (gone[cell] if gone is not None else 0)
        self._now = array("q", bytes(8 * _CELLS))
        total = sum(counts)
        if not total:
            return None
        return LatencyPercentiles(_until(counts, 0.5 * total), _until(counts, 0.99 * total), total)


def _cell(microseconds: int) -> int:
    """Cells of 0, 1, 2, 3, then STEPS for each power of two; a clock that was set back counts as no time."""
    value = max(microseconds, 0)
    high = value.bit_length() - 3
    return value if high < 0 else min(STEPS * high + (value >> high), _CELLS - 1)


def _bound(cell: int) -> int:
    """The microseconds below which what is in a cell is."""
    if cell < STEPS:
        return cell + 1
    high = cell // STEPS - 1
    return (STEPS + cell % STEPS + 1) << high


def _until(counts: array[int], wanted: float) -> float:
    """The bound, in ms, of the cell in which the count reaches what is wanted."""
    seen = 0
    for cell, count in enumerate(counts):
        seen += count
        if seen >= wanted:
            return _bound(cell) / 1_000
    raise AssertionError("the wanted is a part of the sum")
