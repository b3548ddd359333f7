"""A decision: one explained act on a client.

The same object is sent to the client before the close, stored, shown in the console and read by Spark, so it
carries everything needed to understand it without looking elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from broker_core.slow_clients.rules import Action, Choice, Mode, Reason, Shape, Signal, Unit
from broker_core.slow_clients.sentences import sentence
from broker_core.slow_clients.signals import Sample


class Candidate(NamedTuple):
    """A client that was considered, with its use of what ran short."""

    client: str
    used: int


@dataclass(slots=True)
class Decision:
    """Who is acted on, how, by which rule, on what evidence, and what that costs.

    Nobody changes one: `replace` it. Not declared frozen, since that makes each 8 µs slower, of the 50 a choice may take.
    """

    at: int
    """ns UTC"""
    client: str
    transport: str
    pool: str
    action: Action
    reason: Reason
    rule: str
    setting: str
    revision: int
    mode: Mode
    choose: Choice
    signal: Signal
    observed: int
    limit: int
    unit: Unit
    used: int
    """The client's own use of what the rule measures, in the same unit."""
    chosen_over: Candidate | None
    """Who would have been next; None when the rule acts on the offender itself, or nobody else used any."""
    kept: int
    """Messages kept: in the spool after OFFLINE, replayable from the resume bookmark after DISCONNECT."""
    lost: int
    """Messages that nothing can bring back: not journaled, and the client is disconnected."""
    resume_bookmark: str
    samples: Sequence[Sample] = ()
    subscription: str = ""
    """The id of the subscription that is acted on; "" when it is the whole client."""
    topic: str = ""
    """What that subscription subscribes to."""
    rung: int = 0
    """Which rung of the rule's ladder, from 0, of `rungs`."""
    rungs: int = 1
    for_ms: int = 0
    """How long a pause lasts (0: until resumed), or a name is refused."""
    hold_ms: int = 0
    """How long the limit had to be passed without a dip."""
    worst_case_ms: int = 0
    """The longest the act can have come after the limit was passed."""
    first_lost: str = ""
    """Bookmarks of the first and last record lost, filled in by whoever carries the decision out."""
    last_lost: str = ""
    resume_token: str = ""
    told: str = "unknown"
    """Whether the client got the notice: yes, no, unknown. Filled in after the act."""

    times: int = 1
    """How often it was done within the second: `lost` is of all of them. Only DISCARD_OLDEST is done more than once."""
    shape: Shape = Shape.HARD

    def sentence(self) -> str:
        """The decision in one or two English sentences."""
        return sentence(self)

    def as_dict(self) -> dict[str, Any]:
        """The decision as JSON. Moments are milliseconds: nanoseconds don't fit a browser's numbers."""
        return {
            "at": self.at // 1_000_000,
            "client": self.client,
            "transport": self.transport,
            "pool": self.pool,
            "action": self.action.value,
            "reason": self.reason.value,
            "rule": self.rule,
            "setting": self.setting,
            "revision": self.revision,
            "mode": self.mode.value,
            "choose": self.choose.value,
            "signal": self.signal.value,
            "observed": self.observed,
            "limit": self.limit,
            "unit": self.unit.value,
            "used": self.used,
            "chosen_over": self.chosen_over and self.chosen_over._asdict(),
            "kept": self.kept,
            "lost": self.lost,
            "resume_bookmark": self.resume_bookmark,
            "sentence": self.sentence(),
            "shape": self.shape.value,
            "subscription": self.subscription,
            "topic": self.topic,
            "rung": self.rung,
            "rungs": self.rungs,
            "for_ms": self.for_ms,
            "hold_ms": self.hold_ms,
            "worst_case_ms": self.worst_case_ms,
            "first_lost": self.first_lost,
            "last_lost": self.last_lost,
            "resume_token": self.resume_token,
            "told": self.told,
            "times": self.times,
            "samples": [[sample.at // 1_000_000, *sample[1:]] for sample in self.samples],
        }

    def notice(self) -> dict[str, Any]:
        """What the client is told before it is disconnected, without the protocol's own fields."""
        return {
            "code": self.reason.value,
            "message": self.sentence(),
            "observed": self.observed,
            "limit": self.limit,
            "unit": self.unit.value,
            "resume": self.resume_bookmark,
            "kept": self.kept,
            "lost": self.lost,
        }
