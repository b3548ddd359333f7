"""At what pace a client takes, and at what pace messages come for it: now, and as it usually does. Plain numbers."""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

APART_NS: Final = 5_000_000_000
LOOKS: Final = 13
"""A minute of them."""
_WIDTH: Final = 3


class Rates(NamedTuple):
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


class Pace:
    """What one client had taken, and what had come for it, at looks 5 s apart or more: 0.3 KiB."""

    __slots__ = ("_looks",)

    def __init__(self) -> None:
        self._looks = array("q")

    def look(self, now_ns: int, taken: int, arrived: int) -> Rates:
        """A look at both sums of bytes since the logon, as often as one likes: the rates as of now."""
        looks = self._looks
        if looks and now_ns <= looks[-_WIDTH]:
            return Rates()
        recent = self._before(now_ns - APART_NS)
        found = Rates()
        if looks:
            first = tuple(looks[:_WIDTH])
            found = Rates(
                _rate(first, (now_ns, taken, arrived), 1), _rate(recent, (now_ns, taken, arrived), 2),
                _rate(first, recent, 1), _rate(first, recent, 2),
                (now_ns - first[0]) // 1_000_000,
            )  # fmt: skip
        if not looks or now_ns - looks[-_WIDTH] >= APART_NS:
            looks.extend((now_ns, taken, arrived))
            if len(looks) > LOOKS * _WIDTH:
                del looks[:_WIDTH]
        return found

    def _before(self, until_ns: int) -> tuple[int, ...]:
        """The newest look that isn't newer than that; the first, when all are."""
        looks = self._looks
        for place in range(len(looks) - _WIDTH, 0, -_WIDTH):
            if looks[place] <= until_ns:
                return tuple(looks[place : place + _WIDTH])
        return tuple(looks[:_WIDTH])


def _rate(since: tuple[int, ...], until: tuple[int, ...], figure: int) -> int:
    if until[0] <= since[0]:
        return 0
    return max(0, until[figure] - since[figure]) * 1_000_000_000 // (until[0] - since[0])
