"""Decisions in English, as documents and as notices to clients.

A sentence describes the action, the client, the reason and the cost. Each figure has its unit.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from broker_core.config.rule_terms import (
    FINAL_ACTIONS,
    DecisionReason,
    EnforcementMode,
    PolicyAction,
    Shape,
    Signal,
    TargetSelection,
    Unit,
)
from broker_core.documents.system_records import DecisionEntry
from broker_core.slow_clients.evaluate.decision import Decision
from broker_core.slow_clients.evaluate.signal_table import OF_POOL, READINGS

_PARTICIPLES: Final = {
    PolicyAction.NOTIFY: "reported",
    PolicyAction.WARN: "warned",
    PolicyAction.CONFLATE: "conflated",
    PolicyAction.DISCARD_OLDEST: "cut back to its limit",
    PolicyAction.OFFLINE: "offlined",
    PolicyAction.CONTINUE_FROM_JOURNAL: "moved to the journal",
    PolicyAction.PAUSE: "paused",
    PolicyAction.CANCEL_SUBSCRIPTION: "cancelled",
    PolicyAction.ASK_TO_CLOSE: "asked to close",
    PolicyAction.DISCONNECT: "disconnected",
    PolicyAction.REFUSE: "disconnected and its name refused",
    PolicyAction.DELETE_DURABLE: "disconnected and its durable subscription deleted",
}
"""Past participle of each action."""
_REASON_PREFIXES: Final = {DecisionReason.RESOURCE_ERROR: "506 resource error. "}
"""Reason codes that clients of other systems know, as prefixes of a sentence (seed 004)."""


class _CostVerbs(NamedTuple):
    """Verb forms of the sentence about messages kept and lost."""

    singular: str
    plural: str
    will: str
    can: str

    def format_count(self, count: int) -> str:
        """Return the count with noun and verb: `1 message is`, `2 messages would be`."""
        return f"1 message {self.singular}" if count == 1 else f"{count:,} messages {self.plural}"


_DONE: Final = _CostVerbs("is", "are", "will", "can")
_CONDITIONAL: Final = _CostVerbs("would be", "would be", "would", "could")
"""Forms for decisions that were not executed: in shadow mode, or beyond a rollout's allowance."""


def decision_sentence(decision: Decision, *, ahead: bool = False) -> str:
    """Return the decision in one or two sentences.

    With `ahead`, word it as a decision that a policy would make immediately.
    """
    error = _REASON_PREFIXES.get(decision.reason, "") if decision.action in FINAL_ACTIONS else ""
    action = f"{error}{_subject_phrase(decision)} {_action_phrase(decision, ahead=ahead)}"
    is_done = decision.mode is EnforcementMode.ENFORCE and decision.held_at is None
    cost = _cost_sentence(decision, _DONE if is_done else _CONDITIONAL)
    return f"{action}: {_reason_phrase(decision)}. {cost}"


def _subject_phrase(decision: Decision) -> str:
    """Return the subscription or client that is acted on."""
    if decision.subscription and decision.action not in FINAL_ACTIONS:
        return f"Subscription {decision.subscription} of client {decision.client}"
    return f"Client {decision.client}"


def _action_phrase(decision: Decision, *, ahead: bool) -> str:
    """Return the past, conditional or future form of the action."""
    done = _PARTICIPLES[decision.action]
    if decision.held_at is not None:
        allowance = "1 decision" if decision.held_at == 1 else f"{decision.held_at:,} decisions"
        not_done = f"{'will not be' if ahead else 'was not'} {done}"
        return f"{not_done}, because staged revision {decision.revision} may make {allowance} here"
    if decision.for_ms and decision.action in (PolicyAction.PAUSE, PolicyAction.REFUSE):
        done += f" for {format_quantity(decision.for_ms, Unit.MILLISECONDS)}"
    if ahead:
        return (
            f"would only be recorded as {done}"
            if decision.mode is EnforcementMode.SHADOW
            else f"will be {done}"
        )
    return f"would have been {done}" if decision.mode is EnforcementMode.SHADOW else f"was {done}"


def _reason_phrase(decision: Decision) -> str:
    """Return the reason: the signal's value and the limit; for pools also the client that would be next."""
    if decision.problem:
        return f"its backlog can't be written to its spool ({decision.problem.rstrip('.')})"
    unit = decision.unit
    observed, limit = format_quantity(decision.observed, unit), format_quantity(decision.limit, unit)
    subject = READINGS[decision.signal].subject.format(pool=decision.pool)
    if decision.shape is Shape.COUNT_IN_WINDOW:
        noun = _SIGNAL_NOUNS[decision.signal]
        return f"its {noun} passed the limit {observed}, reaching {decision.setting} ({limit})"
    side = "under" if decision.shape is Shape.RATE_BELOW else "over"
    sentence = f"{subject} {observed}, {side} {decision.setting} ({limit})"
    if decision.hold_ms:
        sentence += f" for {format_quantity(decision.hold_ms, Unit.MILLISECONDS)}"
    if decision.choose is TargetSelection.SELF:
        return sentence
    used = (
        f"it {OF_POOL[decision.signal].verb} {format_quantity(decision.used, unit)}, more than any other "
        "client"
    )
    runner = decision.chosen_over
    after = f"; next is {runner.client} with {format_quantity(runner.used, unit)}" if runner else ""
    return f"{sentence}, and {used}{after}"


_SIGNAL_NOUNS: Final = {signal: signal.value.replace("_", " ") for signal in Signal} | {
    Signal.WINDOW_FULL: "prefetch window"
}
"""Noun for each signal."""


def _cost_sentence(decision: Decision, verbs: _CostVerbs) -> str:
    """Return the sentence about messages kept and lost."""
    safe, lost = decision.kept, decision.lost
    will, be = verbs.will, verbs.format_count
    match decision.action:
        case PolicyAction.OFFLINE:
            return f"{be(safe)} kept in its spool and {will} be sent in order when it reads again."
        case PolicyAction.CONTINUE_FROM_JOURNAL:
            return f"{be(safe)} in the journal and {will} be read from there, in order."
        case PolicyAction.CONFLATE:
            replaced = f"{be(lost)} replaced by later ones; " if lost else ""
            return f"{replaced}the latest of each key {verbs.singular} kept."
        case PolicyAction.DISCARD_OLDEST:
            often = (
                f" ({format_quantity(decision.times, Unit.TIMES)} within a second)"
                if decision.times > 1
                else ""
            )
            return f"{be(lost)} discarded{often}, the oldest first; {be(safe)} kept."
        case PolicyAction.NOTIFY | PolicyAction.WARN | PolicyAction.PAUSE | PolicyAction.ASK_TO_CLOSE:
            nothing = f"Nothing {verbs.singular} lost"
            return f"{nothing}; {format_messages(safe)} waiting." if safe else f"{nothing}."
    return _ending_sentence(decision, verbs)


def _ending_sentence(decision: Decision, verbs: _CostVerbs) -> str:
    """Return the sentence about messages kept and lost when a client or subscription ends."""
    if not decision.kept and not decision.lost:
        return "It had no waiting messages."
    parts = []
    if decision.kept:
        resume = (
            f" and {verbs.can} be replayed from {decision.resume_bookmark}"
            if decision.resume_bookmark
            else ""
        )
        parts.append(f"{verbs.format_count(decision.kept)} in the journal{resume}")
    if decision.lost:
        parts.append(f"{verbs.format_count(decision.lost)} lost, being of topics that aren't journaled")
    return "; ".join(parts) + "."


def format_messages(count: int) -> str:
    """Return the count with noun and verb: `1 message is`, `2 messages are`."""
    return _DONE.format_count(count)


def format_quantity(value: int, unit: Unit) -> str:
    """Return a figure with its unit, for people.

    For example `1,500 bytes`, `64.0 MiB`, `750 ms`, `30.5 s`, `3 messages`.
    """
    match unit:
        case Unit.MILLISECONDS:
            return f"{value} ms" if value < 1_000 else f"{value / 1_000:,.1f} s"
        case Unit.MESSAGES:
            return "1 message" if value == 1 else f"{value:,} messages"
        case Unit.TIMES:
            return "once" if value == 1 else f"{value:,} times"
        case Unit.BYTES_PER_SECOND:
            return f"{_bytes(value)}/s"
    return _bytes(value)


def _bytes(value: int) -> str:
    if value < 10_240:
        return f"{value:,} bytes"
    for name, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if value >= size:
            return f"{value / size:,.1f} {name}"
    return f"{value / 1_024:,.1f} KiB"


_COPIED_FIELDS = tuple(Decision.__dataclass_fields__.keys() - {"at", "samples"})
"""Fields that have the same name and meaning in `DecisionEntry`."""


def decision_entry(decision: Decision, identity: str = "", *, ahead: bool = False) -> DecisionEntry:
    """Return the decision as a document for storage and the console.

    Times are milliseconds, because nanoseconds exceed the exact integers of a browser.

    Args:
        decision: The decision.
        identity: Its id.
        ahead: See `decision_sentence`.
    """
    return DecisionEntry(
        id=identity,
        at=decision.at // 1_000_000,
        sentence=decision_sentence(decision, ahead=ahead),
        samples=[[sample.at // 1_000_000, *sample[1:]] for sample in decision.samples],
        **{name: getattr(decision, name) for name in _COPIED_FIELDS},
    )


def notice_fields(decision: Decision) -> dict[str, Any]:
    """Return the fields of the notice that a client receives before it is disconnected.

    Fields of the protocol itself are not included.
    """
    return {
        "code": decision.reason.value,
        "message": decision_sentence(decision),
        "observed": decision.observed,
        "limit": decision.limit,
        "unit": decision.unit.value,
        "resume": decision.resume_bookmark,
        "kept": decision.kept,
        "lost": decision.lost,
    }
