"""A subscription's cursor: where it goes on in the log, and what it is doing. The one owner of both.

    STARTING ──READ──▶ REPLAYING ──CAUGHT_UP──▶ LIVE ──FALL_BACK──▶ CATCHING_UP ──CAUGHT_UP──▶ LIVE
        └──CAUGHT_UP──▶ LIVE          LIVE ──READ──▶ REPLAYING (it has a rate now, or was resumed)
    STARTING, REPLAYING, CATCHING_UP, LIVE ──PAUSE──▶ PAUSED ──READ──▶ REPLAYING
    every state ──END──▶ ENDED

The law of the hand-over: replay(b) then live equals everything after b, once, in order. A replay reads whole batches, and
takes from each what is at the cursor or after it; the cursor passes what was given, never backwards but for what is given
back unsent. A live subscription stands behind everything that is dispatched.

OFFLINED and DRAINING are the client's (`delivery.lifecycle`): one spool serves all of its live subscriptions.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from broker_core.replay.span import Span


class Reading(StrEnum):
    """What a subscription is doing."""

    STARTING = "starting"
    REPLAYING = "replaying"
    CATCHING_UP = "catching_up"
    """It was live and fell behind: it reads from the log what it couldn't be sent, and comes back."""
    LIVE = "live"
    PAUSED = "paused"
    ENDED = "ended"


class Step(StrEnum):
    """What may happen to it."""

    READ = "read"
    """It is served from the log."""
    CAUGHT_UP = "caught_up"
    """It has everything that was dispatched, and gets the rest as it comes."""
    FALL_BACK = "fall_back"
    """Its client takes less than comes: it reads it from the log instead."""
    PAUSE = "pause"
    END = "end"


_R: Final = Reading
STEPS: Final[dict[Step, tuple[frozenset[Reading], Reading]]] = {
    Step.READ: (frozenset(Reading) - {_R.ENDED}, _R.REPLAYING),
    Step.CAUGHT_UP: (frozenset({_R.STARTING, _R.REPLAYING, _R.CATCHING_UP}), _R.LIVE),
    Step.FALL_BACK: (frozenset({_R.LIVE}), _R.CATCHING_UP),
    Step.PAUSE: (frozenset(Reading) - {_R.PAUSED, _R.ENDED}, _R.PAUSED),
    Step.END: (frozenset(Reading), _R.ENDED),
}
"""From where each step can be taken, and where it leads."""


class IllegalStep(RuntimeError):
    """The step can't be taken from there: a mistake of ours, never of a peer. The cursor is unchanged."""

    def __init__(self, state: Reading, step: Step) -> None:
        super().__init__(f"{step.value} can't happen to a subscription that is {state.value}")


class Cursor:
    """`next_sequence` is the first record that the subscription hasn't been given; 0 for one that isn't of the log."""

    __slots__ = ("begun", "next_sequence", "span", "state")

    def __init__(self, span: Span | None = None) -> None:
        self.state = Reading.STARTING
        self.span = span
        """What of the log was asked for; None for a subscription without a bookmark."""
        self.next_sequence = span.first if span is not None else 0
        self.begun = span is None or span.not_before == 0
        """Whether its beginning was met: a moment may be still to come."""

    def step(self, step: Step, durable: int = 0) -> None:
        """Take a step. One that leaves LIVE goes on behind `durable`, all that was dispatched. Raises IllegalStep."""
        befores, after = STEPS[step]
        if self.state not in befores:
            raise IllegalStep(self.state, step)
        if self.state is Reading.LIVE and after is not Reading.LIVE and durable:
            self.next_sequence = durable + 1
        self.state = after

    @property
    def live(self) -> bool:
        return self.state is Reading.LIVE

    @property
    def paused(self) -> bool:
        return self.state is Reading.PAUSED

    @property
    def ended(self) -> bool:
        return self.state is Reading.ENDED

    @property
    def reading(self) -> bool:
        """Whether it is behind the live end: served from the log, or held where it is."""
        return self.state in (Reading.REPLAYING, Reading.CATCHING_UP, Reading.PAUSED)

    def following(self, durable: int) -> int:
        """The first record that it hasn't been given, when everything up to `durable` is dispatched."""
        return self.next_sequence if self.reading else durable + 1

    # Its way through the log.

    def given(self, following: int) -> None:
        """Everything before that record was given, or wasn't for it."""
        self.next_sequence = max(self.next_sequence, following)

    def given_back(self, first: int) -> None:
        """From that record on nothing was sent after all."""
        self.next_sequence = first

    def caught_up(self, durable: int) -> bool:
        """Whether it has been given everything up to and including that sequence: the moment to go live."""
        return self.next_sequence > durable
