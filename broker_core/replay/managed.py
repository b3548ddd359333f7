"""A managed replay: a named replay that is kept while its client is away, its progress, and the time it has left. Pure.

What of the log it is asked for is a `Span`; where it stands is `position`, the sequence of the first record that its
client hasn't been given; what it was given and may not have read begins with `certain`. Moments are ns UTC.
"""

from __future__ import annotations

from typing import Literal

from broker_core.bookmark import MAX_SEQUENCE
from broker_core.documents.replays import ReplayState
from broker_core.replay.kept import Kept
from broker_core.replay.pacer import parse_rate
from broker_core.replay.span import NEVER, Span

SMOOTHING = 0.3
"""Weight of the newest second in the speed that the time left is told by."""


class ManagedReplay(Kept, tag="managed"):
    """One managed replay, as it is kept on disk. Texts are as its creator wrote them; only its `client` may have it."""

    bookmark: str
    rate: str | None
    rate_max_gap: str | None
    conflation: str | None
    conflation_key: str | None
    paused: bool
    first: int
    not_before: int
    last: int
    not_after: int
    begun: bool
    began_at: int = 0
    """Sequence it began with, from which progress counts; 0 before its first record."""
    recorded_at: int = 0
    """The moment on the recorded timeline that it has come to; 0 before its first record."""
    delivered_messages: int = 0
    certain: int = 0
    """Sequence of the first record that its client may not have, for all the broker knows; 0: that is `position`."""
    caught_up: bool = False
    ended: Literal["", "completed", "cancelled"] = ""
    ended_at: int = 0

    @property
    def owner(self) -> str:
        return f"managed replay {self.name}"

    @property
    def span(self) -> Span:
        """What is left of what was asked for."""
        not_before = 0 if self.begun else self.not_before
        return Span(max(self.first, self.kept_from), not_before, self.last, self.not_after)

    @property
    def held_from(self) -> int | None:
        return None if self.ended else self.kept_from

    @property
    def kept_from(self) -> int:
        """From where the log is kept, and where it goes on for a client that doesn't say what it has."""
        return min(self.certain or self.position, self.position)

    def state(self, connected: bool) -> ReplayState:
        """What it is doing."""
        if self.ended:
            return self.ended
        if self.paused:
            return "paused"
        if not connected:
            return "waiting"
        return "following" if self.caught_up else "running"

    def advance(self, position: int) -> bool:
        """Note how far it has come; False when that isn't further."""
        if position <= self.position:
            return False
        self.began_at = self.began_at or self.position
        self.position = position
        return True

    def goal(self, newest: int) -> int:
        """The last sequence there is to deliver, as far as is known: `newest` is the log's."""
        return min(self.last, newest)

    def progress(self, newest: int) -> float:
        """From 0 to 1. A replay without an end has 1 when it has caught up."""
        if self.ended == "completed" or (self.caught_up and not self.paused and self.last == MAX_SEQUENCE):
            return 1.0
        begin, goal = self.began_at or self.position, self.goal(newest)
        total, done = goal - begin + 1, self.position - begin
        if total <= 0:
            return 1.0 if self.last == MAX_SEQUENCE and self.not_after == NEVER else 0.0
        return min(max(done / total, 0.0), 1.0)


class Speed:
    """How many records of the log a replay passes in a second, smoothed, for telling the time it has left."""

    __slots__ = ("_at", "_position", "per_second")

    def __init__(self, position: int, now: int) -> None:
        self._position, self._at = position, now
        self.per_second = 0.0

    def look(self, position: int, now: int) -> None:
        """Called about once a second with where the replay stands."""
        seconds = (now - self._at) / 1e9
        if seconds <= 0:
            return
        newest = max(position - self._position, 0) / seconds
        weight = SMOOTHING if self.per_second else 1.0
        self.per_second = weight * newest + (1 - weight) * self.per_second
        self._position, self._at = position, now

    def seconds_left(self, replay: ManagedReplay, newest: int, newest_at: int) -> float | None:
        """How long it will take at this pace; None when that can't be said. `newest_at`: when the log's last came."""
        records = replay.goal(newest) - replay.position + 1
        if replay.ended or records <= 0:
            return 0.0
        rate = parse_rate(replay.rate, replay.rate_max_gap) if replay.rate else None
        if rate is not None and rate.unit == "recorded" and rate.max_gap_ns is None and replay.recorded_at:
            return max(min(newest_at, replay.not_after) - replay.recorded_at, 0) / 1e9 / rate.amount
        return records / self.per_second if self.per_second else None
