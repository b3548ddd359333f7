"""Figures of the last looks at something: what rates, samples and forecasts are drawn from."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

LOOKS: Final = 20


class Trail:
    """The newest rows of a moment (ns) and so many figures, 8 bytes each: plain numbers, for there may be thousands."""

    __slots__ = ("_rows", "most", "width")

    def __init__(self, figures: int, most: int = LOOKS) -> None:
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

    def by(self, until_ns: int) -> array[int]:
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


def extended(trail: Trail | None, at: int, figures: Sequence[int]) -> Trail | None:
    """A trail after one look more; None while nothing is there to be seen."""
    if max(figures, default=0) <= 0:
        return None
    if trail is None:
        trail = Trail(len(figures))
    trail.add(at, figures)
    return trail


def points_of(trail: Trail | None, figure: int, value: int, now_ns: int) -> list[tuple[int, int]]:
    """The looks at one of a trail's figures, and its value now."""
    looks = trail.points(figure) if trail is not None else []
    return [*(point for point in looks if point[0] < now_ns), (now_ns, value)]
