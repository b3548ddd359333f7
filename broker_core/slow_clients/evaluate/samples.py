"""Time series of the recent figures of a client or pool, for rates, samples and forecasts.

`SampleHistory` stores the samples of a client that may be slow, and since when it has been behind.
`RateMeter` measures how fast a client reads and how fast messages arrive for it, now and usually.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, overload

from broker_core.slow_clients.evaluate.signal_table import BEHIND_MS
from broker_core.slow_clients.evaluate.signals import AckedMark, ClientSample
from broker_core.slow_clients.rules.rule import MARKS, SAMPLES, TICK_MS

SERIES_SAMPLES: Final = 20
"""Default maximum rows of a `TimeSeries`."""


class TimeSeries:
    """The newest rows of a time (ns) and a fixed number of figures.

    Rows are 8-byte integers in one array, because there may be thousands of series.
    """

    __slots__ = ("_rows", "max_rows", "width")

    def __init__(self, figures: int, max_rows: int = SERIES_SAMPLES) -> None:
        self.width = figures + 1
        self.max_rows = max_rows
        self._rows = array("q")

    def __len__(self) -> int:
        return len(self._rows) // self.width

    def add(self, at: int, figures: Sequence[int]) -> None:
        """Append one row; remove the oldest when there is one row too many."""
        rows = self._rows
        rows.extend((at, *figures))
        if len(rows) > self.max_rows * self.width:
            del rows[: self.width]

    @property
    def last_at(self) -> int:
        """Time of the newest row, ns; 0 when there is none."""
        return self._rows[-self.width] if self._rows else 0

    def first(self) -> array[int]:
        """Return the oldest row; empty when there is none."""
        return self._rows[: self.width]

    def newest(self, number: int) -> array[int]:
        """Return a copy of at most `number` rows, oldest first, as one flat array."""
        return self._rows[-number * self.width :]

    def value_at(self, until_ns: int) -> array[int]:
        """Return the newest row that is not newer than `until_ns`; empty when all are newer."""
        rows, width = self._rows, self.width
        for start in range(len(rows) - width, -1, -width):
            if rows[start] <= until_ns:
                return rows[start : start + width]
        return array("q")

    def points(self, figure: int) -> list[tuple[int, int]]:
        """Return (time, value) of one figure in all rows, oldest first. `figure` counts from 0."""
        rows, width = self._rows, self.width
        return list(zip(rows[::width], rows[figure + 1 :: width], strict=True))


def append_sample(series: TimeSeries | None, at: int, figures: Sequence[int]) -> TimeSeries | None:
    """Append a row to a series and return it; create the series when `series` is None.

    Returns None, and so drops the series, when no figure is above 0.
    """
    if max(figures, default=0) <= 0:
        return None
    if series is None:
        series = TimeSeries(len(figures))
    series.add(at, figures)
    return series


def series_points(series: TimeSeries | None, figure: int, value: int, now_ns: int) -> list[tuple[int, int]]:
    """Return (time, value) of one figure in all earlier rows, then its current value.

    `series` may be None.
    """
    points = series.points(figure) if series is not None else []
    return [*(point for point in points if point[0] < now_ns), (now_ns, value)]


_FIGURES = len(ClientSample._fields)


class SampleSequence(Sequence[ClientSample]):
    """Samples stored as plain integers and converted to `ClientSample` only when read.

    Making a decision must be fast; reading its samples does not have to be.
    """

    __slots__ = ("_values",)

    def __init__(self, values: array[int]) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values) // _FIGURES

    def __iter__(self) -> Iterator[ClientSample]:
        return map(ClientSample._make, zip(*[iter(self._values)] * _FIGURES, strict=True))

    @overload
    def __getitem__(self, index: int) -> ClientSample: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[ClientSample, ...]: ...
    def __getitem__(self, index: int | slice) -> ClientSample | tuple[ClientSample, ...]:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)


class SampleHistory:
    """The last 60 samples of one client, in 2.4 KiB, because there may be 20,000 slow clients.

    Rules on a rate may look back farther than the samples reach. For these, marks of 300 bytes in all are
    stored.
    """

    __slots__ = ("behind_since", "idle", "marks", "samples")

    def __init__(self) -> None:
        self.samples = TimeSeries(_FIGURES - 1, SAMPLES)
        self.marks = TimeSeries(1, MARKS + 3)
        self.idle = 0
        """Number of newest samples in which memory and disk were both 0."""
        self.behind_since = 0
        """Time since which the oldest message was at least 1 s old at each sample, ns; 0 if it is not."""

    def add(self, at: int, memory: int, disk: int, age: int, acked: int, rate_period_ms: int) -> None:
        """Record one sample.

        Args:
            at: Time, ns.
            memory: Bytes in the outbox.
            disk: Bytes in the spool file.
            age: Age of the oldest waiting message, ms.
            acked: Bytes acknowledged by the peer since logon.
            rate_period_ms: Longest period of the client's rate rules. When 60 samples do not reach as far,
                marks are recorded too.
        """
        self.samples.add(at, (memory, disk, age, acked))
        self.idle = 0 if memory or disk else self.idle + 1
        self.behind_since = (self.behind_since or at) if age >= BEHIND_MS else 0
        if (
            rate_period_ms > (SAMPLES - 2) * TICK_MS
            and at - self.marks.last_at >= rate_period_ms // MARKS * 1_000_000
        ):
            self.marks.add(at, (acked,))

    def acked_at(self, until_ns: int) -> AckedMark | None:
        """Return the newest recorded `AckedMark` at or before `until_ns`; None if there is none."""
        found = self.samples.value_at(until_ns) or self.marks.value_at(until_ns)
        return AckedMark(found[0], found[-1]) if found else None


MIN_INTERVAL_NS: Final = 5_000_000_000
"""Minimum time between two stored rows of a `RateMeter`, ns."""
RATE_SAMPLES: Final = 13
"""Rows of a `RateMeter`: one minute at 5 s each."""


class ClientRates(NamedTuple):
    """Read and arrival rates of one client in bytes per second; 0 while unknown."""

    read_rate: int = 0
    """Bytes read per second over the last minute, or over the shorter time recorded (`span_ms`)."""
    arrival_rate: int = 0
    """Bytes arriving per second over the last 5 to 10 seconds."""
    usual_read_rate: int = 0
    """Bytes read per second over the last minute, without the last seconds."""
    usual_arrival_rate: int = 0
    """Bytes arriving per second over the last minute, without the last seconds."""
    span_ms: int = 0
    """Time span of `read_rate`, ms."""


class RateMeter:
    """Read and arrival totals of one client, recorded at least 5 s apart, in 0.3 KiB."""

    __slots__ = ("_totals",)

    def __init__(self) -> None:
        self._totals = TimeSeries(2, RATE_SAMPLES)

    def update(self, now_ns: int, acked: int, arrived: int) -> ClientRates:
        """Record both totals and return the rates as of now. May be called at any frequency.

        Args:
            now_ns: Current monotonic time: the wall clock may be set back.
            acked: Bytes acknowledged by the peer since logon.
            arrived: Bytes that arrived for the client since logon.
        """
        totals, rates = self._totals, ClientRates()
        if totals:
            first, now = totals.first(), (now_ns, acked, arrived)
            recent = totals.value_at(now_ns - MIN_INTERVAL_NS) or first
            rates = ClientRates(
                _rate(first, now, 1),
                _rate(recent, now, 2),
                _rate(first, recent, 1),
                _rate(first, recent, 2),
                (now_ns - first[0]) // 1_000_000,
            )
        if not totals or now_ns - totals.last_at >= MIN_INTERVAL_NS:
            totals.add(now_ns, (acked, arrived))
        return rates


def _rate(since: Sequence[int], until: Sequence[int], figure: int) -> int:
    if until[0] <= since[0]:
        return 0
    return max(0, until[figure] - since[figure]) * 1_000_000_000 // (until[0] - since[0])
