"""State of a rule between two checks, and the rung of its ladder that is due.

Each state belongs to one rule and one client or subscription. Pure: a state is a value that is passed in and
returned with the signals, so a back-test can carry it along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from broker_core.config.rule_terms import EnforcementMode, PolicyAction, Shape
from broker_core.slow_clients.rules.rule import TICK_MS, UNLIMITED, Rule

_MS: Final = 1_000_000
NOT_APPLICABLE: Final = -1
"""Replaces the value of a signal that does not apply to the client now."""
REPEATED_RUNG_ACTIONS: Final = frozenset({PolicyAction.DISCARD_OLDEST})
"""Actions that are due each time the limit is exceeded, not only once."""
REPEAT_REQUEST_MS: Final = 10_000
"""Time that a client has to comply with a request to close before the request is repeated."""


class RuleState(NamedTuple):
    """State of one rule about one client or subscription. All times are ns; 0 means never."""

    over_since: int = 0
    """Time since which the limit has been exceeded."""
    done: int = 0
    """Number of rungs that have acted since the signal was last within the limit."""
    acted_at: int = 0
    checked_at: int = 0
    last_value: int = 0
    """RATE_BELOW: bytes or messages acknowledged at the last check.

    COUNT_IN_WINDOW: number of crossings counted so far.
    """
    tries: int = 0
    """RATE_BELOW: consecutive checks at which the rate was below the limit."""
    marks: tuple[int, ...] = ()
    """COUNT_IN_WINDOW: times at which the limit was exceeded."""
    cut: int = 0
    """DISCARD_OLDEST and CONFLATE in shadow mode: messages that enforcement would have removed so far."""


NO_STATE: Final = RuleState()


class RuleCheck(NamedTuple):
    """Result of a check: the new state, the rung that is due (None: none), and the observed figure."""

    state: RuleState
    rung: int | None
    observed: int


def is_time_driven(rule: Rule) -> bool:
    """Return whether the rule is checked only at multiples of its `check_ms`.

    RATE_BELOW has its own checks.
    """
    return rule.check_ms > TICK_MS and rule.shape is not Shape.RATE_BELOW


def needs_check(rule: Rule, value: int) -> bool:
    """Return whether a value requires `check_rule` when there is no state yet.

    Must be cheap: it is called for every client at each tick.
    """
    if rule.shape is Shape.RATE_BELOW:
        return NOT_APPLICABLE < value < rule.limit
    return value > quiet_limit(rule)


def quiet_limit(rule: Rule) -> int:
    """Return the greatest value that does not require `check_rule` when there is no state yet.

    For RATE_BELOW there is no such value, because small values matter: the result is UNLIMITED.
    """
    if rule.shape is Shape.RATE_BELOW:
        return UNLIMITED
    # Time-driven checks start with the first value above 0.
    return 0 if is_time_driven(rule) else rule.lowest_rung_value


def check_rule(rule: Rule, value: int, state: RuleState, now_ns: int, acked: int = 0) -> RuleCheck:
    """Check one value against a rule.

    Args:
        rule: The rule.
        value: Value of its signal, or NOT_APPLICABLE.
        state: State from the last check, or NO_STATE.
        now_ns: Current time.
        acked: Bytes (of a client) or messages (of a subscription) acknowledged since the start; only
            RATE_BELOW uses it.
    """
    if value == NOT_APPLICABLE:
        return RuleCheck(_cleared_state(rule, state, now_ns), None, value)
    if is_time_driven(rule):
        if value == 0:
            return RuleCheck(_cleared_state(rule, state, now_ns), None, value)
        grid = now_ns - now_ns % (rule.check_ms * _MS)
        if state.checked_at == grid or not state.checked_at:
            return RuleCheck(state._replace(checked_at=grid), None, value)
        state = state._replace(checked_at=grid)
    match rule.shape:
        case Shape.RATE_BELOW:
            return _check_rate(rule, value, state, now_ns, acked)
        case Shape.COUNT_IN_WINDOW:
            return _check_count(rule, value, state, now_ns)
    return _check_level(rule, value, state, now_ns)


def next_check_at(rule: Rule, state: RuleState) -> int:
    """Return when the next rung, or the next check of a rate, is due if no value changes, ns.

    Returns 0 when the regular tick is soon enough.
    """
    if not state.over_since or state.done >= len(rule.ladder) or is_time_driven(rule):
        return 0
    if rule.shape is Shape.RATE_BELOW:
        return state.checked_at + rule.check_ms * _MS
    rung = rule.ladder[state.done]
    return state.over_since + (rule.hold_ms + rung.after_ms) * _MS if rung.at_percent >= 100 else 0


class RuleStateMigration:
    """Migration of rule states to a new set of rules when a policy comes into force.

    An unchanged rule keeps its state. A rule with an unchanged condition but a different reaction keeps the
    time since which the condition is met, and has not acted yet. Any other rule starts without state; a
    time-driven one is due at the next check.

    One object serves one change of policy: rule sets are shared by many clients, and each pair is compared
    only once.
    """

    def __init__(self) -> None:
        self._comparisons: dict[tuple[int, int], _CarriedOverRules] = {}

    def migrated_state(
        self, before: Sequence[Rule], after: Sequence[Rule], states: Mapping[str, RuleState]
    ) -> dict[str, RuleState]:
        """Return the states under the new rules, by rule name.

        `before` and `after` are the rules about one client or subscription; `states` are its states under
        `before`.
        """
        key = (id(before), id(after))
        comparison = self._comparisons.get(key)
        if comparison is None:
            comparison = self._comparisons[key] = _compare_rules(before, after)
        migrated = dict.fromkeys(comparison.restarted, RuleState(checked_at=_DUE))
        migrated |= {name: states[name] for name in comparison.same if name in states}
        for name in comparison.same_condition:
            if (state := states.get(name)) is not None:
                checked_at = _DUE if name in migrated else state.checked_at
                migrated[name] = state._replace(done=0, acted_at=0, checked_at=checked_at, cut=0)
        return migrated


class _CarriedOverRules(NamedTuple):
    """Names of the new rules, by how they differ from the old ones.

    Attributes:
        same: Unchanged rules.
        same_condition: Rules with an unchanged condition.
        restarted: Time-driven rules that are new or changed, due at the next check.
    """

    same: list[str]
    same_condition: list[str]
    restarted: list[str]
    compared: tuple[Sequence[Rule], Sequence[Rule]]
    """The two sets. References keep them alive, so that no other set gets the ids that are the cache key."""


def _compare_rules(before: Sequence[Rule], after: Sequence[Rule]) -> _CarriedOverRules:
    """Compare two rule sets."""
    known = {rule.name: rule for rule in before}
    comparison = _CarriedOverRules([], [], [], (before, after))
    for rule in after:
        old = known.get(rule.name)
        if old is not None and replace(old, revision=rule.revision) == rule:
            comparison.same.append(rule.name)
            continue
        if old is not None and _condition_fields(old) == _condition_fields(rule):
            comparison.same_condition.append(rule.name)
        if is_time_driven(rule):
            comparison.restarted.append(rule.name)
    return comparison


_DUE: Final = 1
"""Time of the last check that makes a time-driven rule due: long ago."""


def _condition_fields(rule: Rule) -> tuple[object, ...]:
    """Return the fields that form the rule's condition."""
    return (
        rule.signal,
        rule.shape,
        rule.limit,
        rule.window_ms,
        rule.count,
        rule.clear,
        rule.check_ms,
        rule.guard_bytes,
        rule.per_subscription,
    )


def _check_level(rule: Rule, value: int, state: RuleState, now_ns: int) -> RuleCheck:
    """Check a rule that fires while the value is above a limit."""
    has_not_cleared = rule.shape is Shape.SET_CLEAR and state.over_since > 0 and value > rule.clear
    if value > rule.limit or has_not_cleared:
        state = state if state.over_since else state._replace(over_since=now_ns)
    elif value > rule.lowest_rung_value:
        early = sum(value * 100 > rule.limit * rung.at_percent for rung in rule.ladder)
        state = state._replace(over_since=0, done=min(state.done, early))
    else:
        return RuleCheck(_cleared_state(rule, state, now_ns), None, value)
    return _check_ladder(rule, value, state, now_ns)


def _check_ladder(rule: Rule, value: int, state: RuleState, now_ns: int) -> RuleCheck:
    """Return the widest rung that is due and has not acted. Narrower rungs that are also due are skipped."""
    if not state.done and state.acted_at and now_ns - state.acted_at < rule.cooldown_ms * _MS:
        return RuleCheck(state, None, value)
    due = None
    for index in range(state.done, len(rule.ladder)):
        rung = rule.ladder[index]
        if rung.at_percent < 100:
            ready = value * 100 > rule.limit * rung.at_percent
        else:
            passed_ns = now_ns - state.over_since if state.over_since else -1
            ready = passed_ns >= (rule.hold_ms + rung.after_ms) * _MS
        if not ready:
            break
        due = index
    if due is None and _is_request_due(rule, state, now_ns):
        due = state.done - 1
    if due is None:
        return RuleCheck(state, None, value)
    done = due if rule.ladder[due].action in REPEATED_RUNG_ACTIONS else due + 1
    return RuleCheck(state._replace(done=done, acted_at=now_ns), due, value)


def _is_request_due(rule: Rule, state: RuleState, now_ns: int) -> bool:
    """Return whether an ignored request to close is due again.

    The request is repeated until the client complies; the broker never forces it (seed 003).
    """
    is_requested = state.done > 0 and rule.ladder[state.done - 1].action is PolicyAction.ASK_TO_CLOSE
    return (
        is_requested
        and rule.mode is EnforcementMode.ENFORCE
        and now_ns - state.acted_at >= REPEAT_REQUEST_MS * _MS
    )


def _check_rate(rule: Rule, value: int, state: RuleState, now_ns: int, acked: int) -> RuleCheck:
    """Check a RATE_BELOW rule. `value` is the rate over the rule's window.

    Once the client is suspected, each check measures what was acknowledged since the last check.
    """
    if not state.over_since:
        if value >= rule.limit:
            return RuleCheck(_cleared_state(rule, state, now_ns), None, value)
        return RuleCheck(RuleState(now_ns, 0, state.acted_at, now_ns, acked), None, value)
    if state.done == len(rule.ladder):  # every rung has acted: only a recovery changes the state
        return RuleCheck(state if value < rule.limit else _cleared_state(rule, state, now_ns), None, value)
    passed = now_ns - state.checked_at
    if passed < rule.check_ms * _MS:
        return RuleCheck(state, None, value)
    rate = (acked - state.last_value) * 1_000_000_000 // passed
    if rate >= rule.limit:
        return RuleCheck(_cleared_state(rule, state, now_ns), None, rate)
    state = state._replace(checked_at=now_ns, last_value=acked, tries=state.tries + 1)
    return (
        _check_ladder(rule, rate, state, now_ns)
        if state.tries >= rule.count
        else RuleCheck(state, None, rate)
    )


def _check_count(rule: Rule, value: int, state: RuleState, now_ns: int) -> RuleCheck:
    """Check a COUNT_IN_WINDOW rule: count how often the limit was exceeded.

    For WINDOW_FULL `value` is the subscription's own counter, which also counts between two checks.
    """
    if rule.counted:
        new, state = value - state.last_value, state._replace(last_value=value)
    else:
        is_over = value > rule.limit
        new, state = (
            int(is_over and not state.over_since),
            state._replace(over_since=now_ns if is_over else 0),
        )
    marks = state.marks + (now_ns,) * min(new, rule.count)
    if rule.window_ms:
        marks = tuple(at for at in marks if now_ns - at <= rule.window_ms * _MS)
    state = state._replace(marks=marks[-rule.count :])
    if len(state.marks) < rule.count:
        return RuleCheck(state._replace(done=0), None, len(marks))
    if state.done == len(rule.ladder) and not new:  # every rung has acted: wait for the next crossing
        return RuleCheck(state, None, len(marks))
    check = _check_ladder(rule, rule.limit + 1, state._replace(over_since=state.marks[-1]), now_ns)
    checked = check.state._replace(over_since=state.over_since)
    return RuleCheck(checked, check.rung, max(value, len(marks)) if rule.counted else len(marks))


def _cleared_state(rule: Rule, state: RuleState, now_ns: int) -> RuleState:
    """Return the state after the signal is within the limit again.

    Only the time of the last action is kept, for the cooldown. COUNT_IN_WINDOW also keeps its marks.
    """
    if rule.cooldown_ms and state.acted_at and now_ns - state.acted_at < rule.cooldown_ms * _MS:
        return RuleState(acted_at=state.acted_at)
    if rule.shape is Shape.COUNT_IN_WINDOW and state.marks:
        return state._replace(over_since=0)
    return NO_STATE
