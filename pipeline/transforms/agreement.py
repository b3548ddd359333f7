"""How far predicted decisions are the recorded ones: who and which act, and when. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

CHECK_MS: Final = 1_000
"""The guard looks at each client once a second."""
RETURNS_MS: Final = 5_000
"""Of one client and act, decisions nearer to each other than this are one."""

Key = tuple[str, str, str]


class Agreement(NamedTuple):
    """Counts of who and which act: in both, in one alone; and of those in both, how many came in time."""

    both: int
    recorded_alone: int
    predicted_alone: int
    in_time: int

    @property
    def percent(self) -> float:
        """Of all, how many are in both; 100 of none."""
        every = self.both + self.recorded_alone + self.predicted_alone
        return round(100.0 * self.both / every, 1) if every else 100.0

    @property
    def in_time_percent(self) -> float:
        """Of those in both, how many are within one check period."""
        return round(100.0 * self.in_time / self.both, 1) if self.both else 100.0


def compare_decisions(
    recorded: Iterable[Mapping[str, Any]], predicted: Iterable[Mapping[str, Any]], check_ms: int = CHECK_MS
) -> Agreement:
    """Episodes of the same client, act and mode, matched in the order of time; in time are those within `check_ms`."""
    mine, theirs = _episodes(recorded), _episodes(predicted)
    both = alone = other = in_time = 0
    for key in mine.keys() | theirs.keys():
        then, now = list(mine.get(key, ())), list(theirs.get(key, ()))
        while then and now:
            if abs(then[0] - now[0]) <= RETURNS_MS:
                both += 1
                in_time += abs(then.pop(0) - now.pop(0)) <= check_ms
            elif then[0] < now[0]:
                then.pop(0)
                alone += 1
            else:
                now.pop(0)
                other += 1
        alone, other = alone + len(then), other + len(now)
    return Agreement(both, alone, other, in_time)


def _episodes(acts: Iterable[Mapping[str, Any]]) -> dict[Key, list[int]]:
    found: dict[Key, list[int]] = {}
    newest: dict[Key, int] = {}
    for act in sorted(acts, key=lambda one: int(one["at"])):
        key = (act["client"], act["action"], act["mode"])
        if act["at"] - newest.get(key, -1 << 62) > RETURNS_MS:
            found.setdefault(key, []).append(act["at"])
        newest[key] = act["at"]
    return found
