"""Number of messages that are due at a time. Pure: the time is an argument, in monotonic seconds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

MOST_OWED_S = 1.0  # after an outage the feed continues at its pace, without sending everything that it missed


class Pace(Protocol):
    """Schedule of the feed."""

    def due(self, now: float, sent: int) -> int:
        """Return the number of messages due at `now`, when `sent` are published."""


class Rate:
    """A constant number of messages a second, from message `first` at `start`."""

    def __init__(self, rate: float, first: int, start: float) -> None:
        self._rate = rate
        self._first = first
        self._start = start

    def due(self, now: float, sent: int) -> int:
        """See `Pace.due`."""
        due = self._first + int((now - self._start) * self._rate)
        owed = max(1, int(self._rate * MOST_OWED_S))
        if due - sent > owed:
            self._start += (due - sent - owed) / self._rate
            due = sent + owed
        return due


class Speed:
    """A multiple of the real pace. `moments`: time of each message in seconds, ascending."""

    def __init__(self, speed: float, moments: Sequence[int], first: int, start: float) -> None:
        self._speed = speed
        self._moments = moments
        self._first_moment = moments[first] if first < len(moments) else 0
        self._start = start
        self._asked = start

    def due(self, now: float, sent: int) -> int:
        """See `Pace.due`."""
        idle = now - self._asked
        if idle > MOST_OWED_S:
            self._start += idle - MOST_OWED_S
        self._asked = now
        return bisect_right(self._moments, self._first_moment + (now - self._start) * self._speed)
