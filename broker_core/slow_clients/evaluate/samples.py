"""Figures of the last looks at something: what rates, samples and forecasts are drawn from.

What is remembered of a client that may be slow: its samples, and how far behind it was.

At what pace a client takes, and at what pace messages come for it: now, and as it usually does. Plain numbers.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, overload

from broker_core.slow_clients.evaluate.signal_table import BEHIND_MS
from broker_core.slow_clients.evaluate.signals import AckedMark, ClientSample
from broker_core.slow_clients.rules.rule import MARKS, SAMPLES, TICK_MS

SERIES_SAMPLES: Final = 20


class TimeSeries:
    """The newest rows of a moment (ns) and so many figures, 8 bytes each: plain numbers, for there may be thousands."""

    __slots__ = ("_rows", "most", "width")

    def __init__(self, figures: int, most: int = SERIES_SAMPLES) -> None:
        self.width = figures + 1
        self.most = most
        self._rows = array("q")

    def __len__(self) -> int:
        return len(self._rows) // self.width

    def add(self, at: int, figures: Sequence[int]) -> None:
        """One look; with one too many the first is forgotten."""
        rows = self._rows
        rows.extend((at, *figures))
        if len(rows) > self.most * self.width:
            del rows[: self.width]

    @property
    def last_at(self) -> int:
        """When the last look was; 0: never."""
        return self._rows[-self.width] if self._rows else 0

    def first(self) -> array[int]:
        """The oldest look; empty where there is none."""
        return self._rows[: self.width]

    def newest(self, looks: int) -> array[int]:
        """A copy of so many rows at most, oldest first."""
        return self._rows[-looks * self.width :]

    def value_at(self, until_ns: int) -> array[int]:
        """The newest look that isn't newer than that; empty where all are."""
        rows, width = self._rows, self.width
        for place in range(len(rows) - width, -1, -width):
            if rows[place] <= until_ns:
                return rows[place : place + width]
        return array("q")

    def points(self, figure: int) -> list[tuple[int, int]]:
        """The looks at one of the figures, oldest first."""
        rows, width = self._rows, self.width
        return list(zip(rows[::width], rows[figure + 1 :: width], strict=True))


def append_sample(trail: TimeSeries | None, at: int, figures: Sequence[int]) -> TimeSeries | None:
    """A trail after one look more; None while nothing is there to be seen."""
    if max(figures, default=0) <= 0:
        return None
    if trail is None:
        trail = TimeSeries(len(figures))
    trail.add(at, figures)
    return trail


def series_points(trail: TimeSeries | None, figure: int, value: int, now_ns: int) -> list[tuple[int, int]]:
    """The looks at one of a trail's figures, and its value now."""
    looks = trail.points(figure) if trail is not None else []
    return [*(point for point in looks if point[0] < now_ns), (now_ns, value)]


_FIGURES = len(ClientSample._fields)


class SampleSequence(Sequence[ClientSample]):
    """Samples, made of plain numbers only when somebody reads them: a decision must be quick, its readers needn't be."""

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
    """The last 60 samples of one client, in 2.4 KiB, because there may be twenty thousand slow clients.

    Where a rule on a rate looks back farther than they reach, 300 bytes of marks do.
    """

    __slots__ = ("behind_since", "idle", "marks", "samples")

    def __init__(self) -> None:
        self.samples = TimeSeries(_FIGURES - 1, SAMPLES)
        self.marks = TimeSeries(1, MARKS + 3)
        self.idle = 0
        """How many of the newest samples were empty."""
        self.behind_since = 0
        """Since when the oldest message was a second old or older at each sample, ns; 0: it isn't."""

    def add(self, at: int, memory: int, disk: int, age: int, taken: int, look_back_ms: int) -> None:
        """Note one sample. With a look-back farther than 60 of them, marks are kept too."""
        self.samples.add(at, (memory, disk, age, taken))
        self.idle = 0 if memory or disk else self.idle + 1
        self.behind_since = (self.behind_since or at) if age >= BEHIND_MS else 0
        if (
            look_back_ms > (SAMPLES - 2) * TICK_MS
            and at - self.marks.last_at >= look_back_ms // MARKS * 1_000_000
        ):
            self.marks.add(at, (taken,))

    def acked_at(self, until_ns: int) -> AckedMark | None:
        """The newest that is remembered of what the peer had taken, not newer than that."""
        found = self.samples.value_at(until_ns) or self.marks.value_at(until_ns)
        return AckedMark(found[0], found[-1]) if found else None


APART_NS: Final = 5_000_000_000
RATE_SAMPLES: Final = 13
"""A minute of them."""


class ClientRates(NamedTuple):
    """Bytes a second; 0 where it isn't known yet."""

    taken: int = 0
    """Over the last minute, as far as it was looked at."""
    arriving: int = 0
    """Over the last 5 to 10 seconds."""
    usually_taken: int = 0
    """Over the minute, the last seconds left out."""
    usually_arriving: int = 0
    over_ms: int = 0
    """How long `taken` was looked at."""


class RateMeter:
    """What one client had taken, and what had come for it, at looks 5 s apart or more: 0.3 KiB."""

    __slots__ = ("_looks",)

    def __init__(self) -> None:
        self._looks = TimeSeries(2, RATE_SAMPLES)

    def update(self, now_ns: int, taken: int, arrived: int) -> ClientRates:
        """A look at both sums of bytes since the logon, as often as one likes: the rates as of now."""
        looks, found = self._looks, ClientRates()
        if looks:
            if now_ns <= looks.last_at:
                return found
            first, now = looks.first(), (now_ns, taken, arrived)
            recent = looks.value_at(now_ns - APART_NS) or first
            found = ClientRates(
                _rate(first, now, 1), _rate(recent, now, 2), _rate(first, recent, 1), _rate(first, recent, 2),
                (now_ns - first[0]) // 1_000_000,
            )  # fmt: skip
        if not looks or now_ns - looks.last_at >= APART_NS:
            looks.add(now_ns, (taken, arrived))
        return found


def _rate(since: Sequence[int], until: Sequence[int], figure: int) -> int:
    if until[0] <= since[0]:
        return 0
    return max(0, until[figure] - since[figure]) * 1_000_000_000 // (until[0] - since[0])
