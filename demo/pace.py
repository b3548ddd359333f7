"""How many messages are due by now. Pure: the time is an argument, in seconds of any clock that doesn't jump."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

MOST_OWED_S = 1.0  # after an outage the feed goes on at its pace instead of sending all it missed at once


class Pace(Protocol):
    """Says up to which message (exclusive) the feed should have come."""

    def due(self, now: float, sent: int) -> int:
        """The number of messages due at `now`, when `sent` are out."""


class Rate:
    """So many messages a second, from message `first` at `start`."""

    def __init__(self, rate: float, first: int, start: float) -> None:
        self._rate = rate
        self._first = first
        self._start = start

    def due(self, now: float, sent: int) -> int:
        """See Pace."""
        due = self._first + int((now - self._start) * self._rate)
        owed = max(1, int(self._rate * MOST_OWED_S))
        if due - sent > owed:
            self._start += (due - sent - owed) / self._rate
            due = sent + owed
        return due


class Speed:
    """A multiple of the real pace: `moments` are when each message happened, in seconds, ascending."""

    def __init__(self, speed: float, moments: Sequence[int], first: int, start: float) -> None:
        self._speed = speed
        self._moments = moments
        self._first_moment = moments[first] if first < len(moments) else 0
        self._start = start
        self._asked = start

    def due(self, now: float, sent: int) -> int:
        """See Pace."""
        idle = now - self._asked
        if idle > MOST_OWED_S:
            self._start += idle - MOST_OWED_S
        self._asked = now
        return bisect_right(self._moments, self._first_moment + (now - self._start) * self._speed)
