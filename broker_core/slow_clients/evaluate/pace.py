"""At what pace a client takes, and at what pace messages come for it: now, and as it usually does. Plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from broker_core.slow_clients.evaluate.trail import Trail

APART_NS: Final = 5_000_000_000
LOOKS: Final = 13
"""A minute of them."""


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
        self._looks = Trail(2, LOOKS)

    def look(self, now_ns: int, taken: int, arrived: int) -> Rates:
        """A look at both sums of bytes since the logon, as often as one likes: the rates as of now."""
        looks, found = self._looks, Rates()
        if looks:
            if now_ns <= looks.last_at:
                return found
            first, now = looks.first(), (now_ns, taken, arrived)
            recent = looks.by(now_ns - APART_NS) or first
            found = Rates(
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
