"""Latency of records in the broker: from their acceptance to the hand-over to a client's socket.

Each hand-over is counted once, with the age of its oldest record. Records that a replay read from the log
aren't counted, because their age is the client's choice. Records from a client's spool are counted.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import Final, NamedTuple

from broker_core.delivery.entries import OutboxEntry

WINDOW_S: Final = 10
"""Seconds that the percentiles cover: as many as lie between two samples that the control plane stores."""
STEPS: Final = 4
"""Cells per power of two. A percentile is at most a fifth too large and never too small."""
_CELLS: Final = STEPS * 64
_NS_PER_US: Final = 1_000


class LatencyPercentiles(NamedTuple):
    """Percentiles of the time to the hand-over, ms, over the messages of the last WINDOW_S seconds."""

    p50_ms: float
    p99_ms: float
    messages: int


class LatencyTracker:
    """Latency histogram of one instance. The caller calls `sample_second` once a second."""

    def __init__(self) -> None:
        self._now = array("q", bytes(8 * _CELLS))
        self._before: deque[array[int]] = deque(maxlen=WINDOW_S)
        self._sum = array("q", bytes(8 * _CELLS))

    def record_handover(self, oldest: OutboxEntry, messages: int, now_ns: int) -> None:
        """Count messages that were handed to a socket together, with the age of the oldest one."""
        if oldest.accepted_at == oldest.batch.accepted_at:
            self._now[_cell_index((now_ns - oldest.accepted_at) // _NS_PER_US)] += messages

    def sample_second(self) -> LatencyPercentiles | None:
        """End the current second and return the percentiles of the last WINDOW_S.

        None when nothing was handed over in them.
        """
        counts = self._sum
        expired = self._before[0] if len(self._before) == WINDOW_S else None
        self._before.append(self._now)
        for cell, count in enumerate(self._now):
            counts[cell] += count - (expired[cell] if expired is not None else 0)
        self._now = array("q", bytes(8 * _CELLS))
        total = sum(counts)
        if not total:
            return None
        return LatencyPercentiles(
            _find_percentile(counts, 0.5 * total), _find_percentile(counts, 0.99 * total), total
        )


def _cell_index(microseconds: int) -> int:
    """Return the cell of a duration: 0, 1, 2, 3, then STEPS cells for each power of two.

    A clock set back counts as 0.
    """
    value = max(microseconds, 0)
    high = value.bit_length() - 3
    return value if high < 0 else min(STEPS * high + (value >> high), _CELLS - 1)


def _cell_bound(cell: int) -> int:
    """Return the exclusive upper bound of a cell in microseconds."""
    if cell < STEPS:
        return cell + 1
    high = cell // STEPS - 1
    return (STEPS + cell % STEPS + 1) << high


def _find_percentile(counts: array[int], rank: float) -> float:
    """Return the upper bound, in ms, of the cell in which the cumulative count reaches `rank`."""
    cumulative = 0
    for cell, count in enumerate(counts):
        cumulative += count
        if cumulative >= rank:
            return _cell_bound(cell) / 1_000
    raise AssertionError("the rank is at most the sum of the counts")
