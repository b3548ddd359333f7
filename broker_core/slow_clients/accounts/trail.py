"""What rules have read of one subscription, client or pool at the last looks: what forecasts draw their lines through."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

LOOKS: Final = 20


class Trail:
    """Rows of a moment (ns) and so many values. 8 bytes a figure, 20 rows: some 500 bytes."""

    __slots__ = ("_rows", "_width")

    def __init__(self, values: int) -> None:
        self._width = values + 1
        self._rows = array("q")

    def add(self, at: int, values: Sequence[int]) -> None:
        """One look; the 21st takes the place of the first."""
        rows = self._rows
        rows.append(at)
        rows.extend(values)
        if len(rows) > LOOKS * self._width:
            del rows[: self._width]

    @property
    def last_at(self) -> int:
        """When the last look was; 0: never."""
        return self._rows[-self._width] if self._rows else 0

    def points(self, value: int) -> list[tuple[int, int]]:
        """The looks at one of the values, oldest first."""
        rows, width = self._rows, self._width
        return list(zip(rows[::width], rows[value + 1 :: width], strict=True))
