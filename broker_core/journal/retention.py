"""Which segments an action may take: pure, from what the log says of its segments and who needs them.

* Only segments whose newest record is older than the cutoff; never the current one.
* Removal goes from the oldest on and stops at the first that must stay: no gaps, so one blocked segment holds back
  all newer ones, and each is told why.
* Archiving and compressing move nothing out of the log, so pins don't hold them back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, Protocol

from broker_core.journal.segment import SegmentInfo

Action = Literal["archive", "compress", "remove"]
_NS_PER_S = 1_000_000_000


class Needs(Protocol):
    """A pin, as this room sees it."""

    @property
    def owner(self) -> str: ...

    @property
    def sequence(self) -> int: ...


class Plan(NamedTuple):
    """What an action would do: the segments it takes, those it leaves and why, and the bytes of the first."""

    action: str
    chosen: list[SegmentInfo]
    skipped: list[tuple[str, str]]
    nbytes: int


def plan(
    action: Action, segments: Sequence[SegmentInfo], older_than_ns: int, pins: Iterable[Needs], now_ns: int
) -> Plan:
    """What to take. `older_than_ns` is a moment: segments whose newest record came before it are old enough."""
    held = list(pins)
    chosen: list[SegmentInfo] = []
    skipped: list[tuple[str, str]] = []
    blocked = ""
    for segment in sorted(segments, key=lambda one: one.first_sequence):
        why = _why_not(action, segment, older_than_ns, now_ns) or (
            _needed(segment, held) or blocked if action == "remove" else ""
        )
        if why:
            skipped.append((segment.name, why))
            blocked = blocked or f"an older segment stays ({segment.name}), and the log may have no gaps"
        else:
            chosen.append(segment)
    return Plan(action, chosen, skipped, sum(segment.nbytes for segment in chosen))


def _why_not(action: Action, segment: SegmentInfo, older_than_ns: int, now_ns: int) -> str:
    if segment.state == "current":
        return "it is being written"
    if action == "archive" and segment.state == "archived":
        return "it is archived already"
    if action == "compress" and segment.compressed:
        return "it is compressed already"
    if segment.last_at >= older_than_ns:
        age, wanted = max(now_ns - segment.last_at, 0), now_ns - older_than_ns
        return f"its newest record is {age // _NS_PER_S} s old, younger than {wanted // _NS_PER_S} s"
    return ""


def _needed(segment: SegmentInfo, pins: Sequence[Needs]) -> str:
    owners = sorted({pin.owner or "a reader" for pin in pins if pin.sequence <= segment.last_sequence})
    return f"needed by {', '.join(owners)}" if owners else ""
