"""Agreement of predicted and recorded decisions: client, action and time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

CHECK_MS: Final = 1_000
"""Period in which the guard checks each client."""
RETURNS_MS: Final = 5_000
"""Decisions with equal client, action and mode closer than this form one episode."""

Key = tuple[str, str, str]
"""Client, action and mode."""


class Agreement(NamedTuple):
    """Episode counts: in both recordings, in one alone, and in both within the time limit."""

    common: int
    recorded_alone: int
    predicted_alone: int
    in_time: int

    @property
    def percent(self) -> float:
        """Percentage of episodes that are in both; 100 without any."""
        every = self.common + self.recorded_alone + self.predicted_alone
        return round(100.0 * self.common / every, 1) if every else 100.0

    @property
    def in_time_percent(self) -> float:
        """Percentage of the episodes in both that are at most one check period apart."""
        return round(100.0 * self.in_time / self.common, 1) if self.common else 100.0


def compare_decisions(
    recorded: Iterable[Mapping[str, Any]], predicted: Iterable[Mapping[str, Any]], check_ms: int = CHECK_MS
) -> Agreement:
    """Match episodes of equal client, action and mode in time order.

    Those within `check_ms` are in time.
    """
    recorded_episodes, predicted_episodes = _episodes(recorded), _episodes(predicted)
    matched = unmatched = predicted_episode = in_time = 0
    for key in recorded_episodes.keys() | predicted_episodes.keys():
        at, now = list(recorded_episodes.get(key, ())), list(predicted_episodes.get(key, ()))
        while at and now:
            if abs(at[0] - now[0]) <= RETURNS_MS:
                matched += 1
                in_time += abs(at.pop(0) - now.pop(0)) <= check_ms
            elif at[0] < now[0]:
                at.pop(0)
                unmatched += 1
            else:
                now.pop(0)
                predicted_episode += 1
        unmatched, predicted_episode = unmatched + len(at), predicted_episode + len(now)
    return Agreement(matched, unmatched, predicted_episode, in_time)


def _episodes(decisions: Iterable[Mapping[str, Any]]) -> dict[Key, list[int]]:
    """Return the start times of episodes by client, action and mode."""
    found: dict[Key, list[int]] = {}
    newest: dict[Key, int] = {}
    for decision in sorted(decisions, key=lambda one: int(one["at"])):
        key = (decision["client"], decision["action"], decision["mode"])
        if decision["at"] - newest.get(key, -1 << 62) > RETURNS_MS:
            found.setdefault(key, []).append(decision["at"])
        newest[key] = decision["at"]
    return found
