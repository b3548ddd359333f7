"""What is remembered of a client that may be slow: its samples, and how far behind it was."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import overload

from broker_core.slow_clients.evaluate.signal_table import BEHIND_MS
from broker_core.slow_clients.evaluate.signals import Mark, Sample
from broker_core.slow_clients.evaluate.trail import Trail
from broker_core.slow_clients.rules.rule import MARKS, SAMPLES, TICK_MS

_FIGURES = len(Sample._fields)


class Samples(Sequence[Sample]):
    """Samples, made of plain numbers only when somebody reads them: a decision must be quick, its readers needn't be."""

    __slots__ = ("_values",)

    def __init__(self, values: array[int]) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values) // _FIGURES

    def __iter__(self) -> Iterator[Sample]:
        return map(Sample._make, zip(*[iter(self._values)] * _FIGURES, strict=True))

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Sample, ...]: ...
    def __getitem__(self, index: int | slice) -> Sample | tuple[Sample, ...]:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)


class History:
    """The last 60 samples of one client, in 2.4 KiB, because there may be twenty thousand slow clients.

    Where a rule on a rate looks back farther than they reach, 300 bytes of marks do.
    """

    __slots__ = ("behind_since", "idle", "marks", "samples")

    def __init__(self) -> None:
        self.samples = Trail(_FIGURES - 1, SAMPLES)
        self.marks = Trail(1, MARKS + 3)
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

    def taken_by(self, until_ns: int) -> Mark | None:
        """The newest that is remembered of what the peer had taken, not newer than that."""
        found = self.samples.by(until_ns) or self.marks.by(until_ns)
        return Mark(found[0], found[-1]) if found else None
