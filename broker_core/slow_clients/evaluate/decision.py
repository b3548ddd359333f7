"""A decision: one explained act on a client.

The same object is sent to the client before the close, stored, shown in the console and read by Spark, so it
carries everything needed to understand it without looking elsewhere. `sentences` and `telling` say it to each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from broker_core.config.rule_terms import (
    DecisionReason,
    EnforcementMode,
    PolicyAction,
    Shape,
    Signal,
    TargetSelection,
    Unit,
)
from broker_core.documents.system_records import DecisionCandidate
from broker_core.slow_clients.evaluate.signals import Sample


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
    action: PolicyAction
    reason: DecisionReason
    rule: str
    setting: str
    revision: int
    mode: EnforcementMode
    choose: TargetSelection
    signal: Signal
    observed: int
    limit: int
    unit: Unit
    used: int
    """The client's own use of what the rule measures, in the same unit."""
    chosen_over: DecisionCandidate | None
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
    problem: str = ""
    """What the disk said, where that and no limit is why."""
    held_at: int | None = None
    """The allowance of its staged rollout, when that held the decision: nothing was done. None otherwise."""
