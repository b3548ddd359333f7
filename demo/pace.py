"""Number of messages that are due at a time. Pure: the time is an argument, in monotonic seconds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

MAX_BACKLOG_S = 1.0
"""Maximum backlog of the feed. After an outage it continues at its pace, without sending what it missed."""


class Pace(Protocol):
    """Schedule of the feed."""

    def due_count(self, now: float, sent: int) -> int:
        """Return the number of messages due at `now`, when `sent` are published."""


class Rate:
    """A constant number of messages a second, from message `first` at `start`."""

    def __init__(self, rate: float, first: int, start: float) -> None:
        self._rate = rate
        self._first = first
        self._start = start

    def due_count(self, now: float, sent: int) -> int:
        """See `Pace.due_count`."""
        due = self._first + int((now - self._start) * self._rate)
        max_backlog = max(1, int(self._rate * MAX_BACKLOG_S))
        if due - sent > max_backlog:
            self._start += (due - sent - max_backlog) / self._rate
            due = sent + max_backlog
        return due


class Speed:
    """A multiple of the real pace. `moments`: time of each message in seconds, ascending."""

    def __init__(self, speed: float, moments: Sequence[int], first: int, start: float) -> None:
        self._speed = speed
        self._moments = moments
        self._first_moment = moments[first] if first < len(moments) else 0
        self._start = start
        self._checked_at = start

    def due_count(self, now: float, sent: int) -> int:
        """See `Pace.due_count`."""
        idle = now - self._checked_at
        if idle > MAX_BACKLOG_S:
            self._start += idle - MAX_BACKLOG_S
        self._checked_at = now
        return bisect_right(self._moments, self._first_moment + (now - self._start) * self._speed)
