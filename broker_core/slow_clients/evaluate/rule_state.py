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
REPEATED: Final = frozenset({PolicyAction.DISCARD_OLDEST})
"""Actions that are due each time the limit is exceeded, not only once."""
ASK_AGAIN_MS: Final = 10_000
"""Time that a client has to comply with a request to close before the request is repeated."""


class RuleState(NamedTuple):
    """State of one rule about one client or subscription. All times are ns; 0 means never."""

    over_since: int = 0
    """Time since which the limit has been exceeded."""
    done: int = 0
    """Number of rungs that have acted since the signal was last within the limit."""
    acted_at: int = 0
    checked_at: int = 0
    seen: int = 0
    """RATE_BELOW: bytes acknowledged at the last check. COUNT_IN_WINDOW: number of crossings counted so far.
    """
    tries: int = 0
    """RATE_BELOW: consecutive checks at which the rate was below the limit."""
    marks: tuple[int, ...] = ()
    """COUNT_IN_WINDOW: times at which the limit was exceeded."""
    cut: int = 0
    """DISCARD_OLDEST and CONFLATE in shadow mode: messages that enforcement would have removed so far."""


NO_HOLD: Final = RuleState()


class RuleCheck(NamedTuple):
    """Result of a check: the new state, the rung that is due (None: none), and the observed figure."""

    hold: RuleState
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
    return 0 if is_time_driven(rule) else rule.wakes_at


def check_rule(rule: Rule, value: int, hold: RuleState, now_ns: int, taken_bytes: int = 0) -> RuleCheck:
    """Check one value against a rule.

    Args:
        rule: The rule.
        value: Value of its signal, or NOT_APPLICABLE.
        hold: State from the last check, or NO_HOLD.
        now_ns: Current time.
        taken_bytes: Bytes acknowledged by the peer since logon; only RATE_BELOW uses it.
    """
    if value == NOT_APPLICABLE:
        return RuleCheck(_after(rule, hold, now_ns), None, value)
    if is_time_driven(rule):
        if value == 0:
            return RuleCheck(_after(rule, hold, now_ns), None, value)
        grid = now_ns - now_ns % (rule.check_ms * _MS)
        if hold.checked_at == grid or not hold.checked_at:
            return RuleCheck(hold._replace(checked_at=grid), None, value)
        hold = hold._replace(checked_at=grid)
    match rule.shape:
        case Shape.RATE_BELOW:
            return _rate(rule, value, hold, now_ns, taken_bytes)
        case Shape.COUNT_IN_WINDOW:
            return _count(rule, value, hold, now_ns)
    return _above(rule, value, hold, now_ns)


def next_check_at(rule: Rule, hold: RuleState) -> int:
    """Return when the next rung, or the next check of a rate, is due if no value changes, ns.

    Returns 0 when the regular tick is soon enough.
    """
    if not hold.over_since or hold.done >= len(rule.ladder) or is_time_driven(rule):
        return 0
    if rule.shape is Shape.RATE_BELOW:
        return hold.checked_at + rule.check_ms * _MS
    rung = rule.ladder[hold.done]
    return hold.over_since + (rule.hold_ms + rung.after_ms) * _MS if rung.at_percent >= 100 else 0


class RuleStateMigration:
    """Migration of rule states to a new set of rules when a policy comes into force.

    An unchanged rule keeps its state. A rule with an unchanged condition but a different reaction keeps the
    time since which the condition is met, and has not acted yet. Any other rule starts without state; a
    time-driven one is due at the next check.

    One object serves one change of policy: rule sets are shared by many clients, and each pair is compared
    only once.
    """

    def __init__(self) -> None:
        self._heirs: dict[tuple[int, int], _CarriedOverRules] = {}

    def migrated_state(
        self, before: Sequence[Rule], after: Sequence[Rule], held: Mapping[str, RuleState]
    ) -> dict[str, RuleState]:
        """Return the states under the new rules, by rule name.

        `before` and `after` are the rules about one client or subscription; `held` are its states under
        `before`.
        """
        key = (id(before), id(after))
        heirs = self._heirs.get(key)
        if heirs is None:
            heirs = self._heirs[key] = _heirs(before, after)
        kept = dict.fromkeys(heirs.anew, RuleState(checked_at=_DUE))
        kept |= {name: held[name] for name in heirs.same if name in held}
        for name in heirs.asked:
            if (hold := held.get(name)) is not None:
                checked_at = _DUE if name in kept else hold.checked_at
                kept[name] = hold._replace(done=0, acted_at=0, checked_at=checked_at, cut=0)
        return kept


class _CarriedOverRules(NamedTuple):
    """Names of the new rules, by how they differ from the old ones.

    Attributes:
        same: Unchanged rules.
        asked: Rules with an unchanged condition.
        anew: Time-driven rules that are new or changed, due at the next check.
    """

    same: list[str]
    asked: list[str]
    anew: list[str]
    compared: tuple[Sequence[Rule], Sequence[Rule]]
    """The two sets. References keep them alive, so that no other set gets the ids that are the cache key."""


def _heirs(before: Sequence[Rule], after: Sequence[Rule]) -> _CarriedOverRules:
    """Compare two rule sets."""
    known = {rule.name: rule for rule in before}
    made = _CarriedOverRules([], [], [], (before, after))
    for rule in after:
        old = known.get(rule.name)
        if old is not None and replace(old, revision=rule.revision) == rule:
            made.same.append(rule.name)
            continue
        if old is not None and _asks(old) == _asks(rule):
            made.asked.append(rule.name)
        if is_time_driven(rule):
            made.anew.append(rule.name)
    return made


_DUE: Final = 1
"""Time of the last check that makes a time-driven rule due: long ago."""


def _asks(rule: Rule) -> tuple[object, ...]:
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


def _above(rule: Rule, value: int, hold: RuleState, now_ns: int) -> RuleCheck:
    """Check a rule that fires while the value is above a limit."""
    going_on = rule.shape is Shape.SET_CLEAR and hold.over_since > 0 and value > rule.clear
    if value > rule.limit or going_on:
        hold = hold if hold.over_since else hold._replace(over_since=now_ns)
    elif value > rule.wakes_at:
        early = sum(value * 100 > rule.limit * rung.at_percent for rung in rule.ladder)
        hold = hold._replace(over_since=0, done=min(hold.done, early))
    else:
        return RuleCheck(_after(rule, hold, now_ns), None, value)
    return _due(rule, value, hold, now_ns)


def _due(rule: Rule, value: int, hold: RuleState, now_ns: int) -> RuleCheck:
    """Return the widest rung that is due and has not acted. Narrower rungs that are also due are skipped."""
    if not hold.done and hold.acted_at and now_ns - hold.acted_at < rule.cooldown_ms * _MS:
        return RuleCheck(hold, None, value)
    due = None
    for place in range(hold.done, len(rule.ladder)):
        rung = rule.ladder[place]
        if rung.at_percent < 100:
            ready = value * 100 > rule.limit * rung.at_percent
        else:
            held = now_ns - hold.over_since if hold.over_since else -1
            ready = held >= (rule.hold_ms + rung.after_ms) * _MS
        if not ready:
            break
        due = place
    if due is None and _asks_again(rule, hold, now_ns):
        due = hold.done - 1
    if due is None:
        return RuleCheck(hold, None, value)
    done = due if rule.ladder[due].action in REPEATED else due + 1
    return RuleCheck(hold._replace(done=done, acted_at=now_ns), due, value)


def _asks_again(rule: Rule, hold: RuleState, now_ns: int) -> bool:
    """Return whether an ignored request to close is due again.

    The request is repeated until the client complies; the broker never forces it (seed 003).
    """
    asked = hold.done > 0 and rule.ladder[hold.done - 1].action is PolicyAction.ASK_TO_CLOSE
    return asked and rule.mode is EnforcementMode.ENFORCE and now_ns - hold.acted_at >= ASK_AGAIN_MS * _MS


def _rate(rule: Rule, value: int, hold: RuleState, now_ns: int, taken_bytes: int) -> RuleCheck:
    """Check a RATE_BELOW rule. `value` is the rate over the rule's window.

    Once the client is suspected, each check measures the bytes acknowledged since the last check.
    """
    if not hold.over_since:
        if value >= rule.limit:
            return RuleCheck(_after(rule, hold, now_ns), None, value)
        return RuleCheck(RuleState(now_ns, 0, hold.acted_at, now_ns, taken_bytes), None, value)
    if hold.done == len(rule.ladder):  # every rung has acted: only a recovery changes the state
        return RuleCheck(hold if value < rule.limit else _after(rule, hold, now_ns), None, value)
    passed = now_ns - hold.checked_at
    if passed < rule.check_ms * _MS:
        return RuleCheck(hold, None, value)
    rate = (taken_bytes - hold.seen) * 1_000_000_000 // passed
    if rate >= rule.limit:
        return RuleCheck(_after(rule, hold, now_ns), None, rate)
    hold = hold._replace(checked_at=now_ns, seen=taken_bytes, tries=hold.tries + 1)
    return _due(rule, rate, hold, now_ns) if hold.tries >= rule.count else RuleCheck(hold, None, rate)


def _count(rule: Rule, value: int, hold: RuleState, now_ns: int) -> RuleCheck:
    """Check a COUNT_IN_WINDOW rule: count how often the limit was exceeded.

    For WINDOW_FULL `value` is the subscription's own counter, which also counts between two checks.
    """
    if rule.counted:
        new, hold = value - hold.seen, hold._replace(seen=value)
    else:
        over = value > rule.limit
        new, hold = int(over and not hold.over_since), hold._replace(over_since=now_ns if over else 0)
    marks = hold.marks + (now_ns,) * min(new, rule.count)
    if rule.window_ms:
        marks = tuple(at for at in marks if now_ns - at <= rule.window_ms * _MS)
    hold = hold._replace(marks=marks[-rule.count :])
    if len(hold.marks) < rule.count:
        return RuleCheck(hold._replace(done=0), None, len(marks))
    if hold.done == len(rule.ladder) and not new:  # every rung has acted: wait for the next crossing
        return RuleCheck(hold, None, len(marks))
    looked = _due(rule, rule.limit + 1, hold._replace(over_since=hold.marks[-1]), now_ns)
    kept = looked.hold._replace(over_since=hold.over_since)
    return RuleCheck(kept, looked.rung, max(value, len(marks)) if rule.counted else len(marks))


def _after(rule: Rule, hold: RuleState, now_ns: int) -> RuleState:
    """Return the state after the signal is within the limit again.

    Only the time of the last action is kept, for the cooldown. COUNT_IN_WINDOW also keeps its marks.
    """
    if rule.cooldown_ms and hold.acted_at and now_ns - hold.acted_at < rule.cooldown_ms * _MS:
        return RuleState(acted_at=hold.acted_at)
    if rule.shape is Shape.COUNT_IN_WINDOW and hold.marks:
        return hold._replace(over_since=0)
    return NO_HOLD
