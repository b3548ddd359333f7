"""What a rule remembers of one client or subscription between two looks, and which rung of its ladder is due.

Pure: a hold is a value that comes in and goes out with the signals, so that a back-test can carry it along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from broker_core.config.rule_terms import EnforcementMode, PolicyAction, Shape
from broker_core.slow_clients.rules.rule import TICK_MS, UNLIMITED, Rule

_MS: Final = 1_000_000
NOT_APPLICABLE: Final = -1
"""In place of a signal's value: it says nothing about this client now."""
REPEATED: Final = frozenset({PolicyAction.DISCARD_OLDEST})
"""Due as often as the limit is passed, not once."""
ASK_AGAIN_MS: Final = 10_000
"""How long a client that was asked to close has, before it may be asked again."""


class RuleState(NamedTuple):
    """The memory of one rule about one client or subscription. All moments are ns; 0 is never."""

    over_since: int = 0
    done: int = 0
    """Rungs that have acted since the signal was last within."""
    acted_at: int = 0
    checked_at: int = 0
    seen: int = 0
    """RATE_BELOW: bytes taken by the last check. COUNT_IN_WINDOW: times counted so far."""
    tries: int = 0
    marks: tuple[int, ...] = ()
    """COUNT_IN_WINDOW: when the limit was passed."""
    cut: int = 0
    """DISCARD_OLDEST and CONFLATE in shadow: by how many messages fewer would wait if it were enforced."""


NO_HOLD: Final = RuleState()


class RuleCheck(NamedTuple):
    """What came of a look: what to remember, the rung that is due (None: none), and the figure that says so."""

    hold: RuleState
    rung: int | None
    observed: int


def is_time_driven(rule: Rule) -> bool:
    """Whether it is looked at at certain moments only. A rate has checks of its own."""
    return rule.check_ms > TICK_MS and rule.shape is not Shape.RATE_BELOW


def needs_check(rule: Rule, value: int) -> bool:
    """Whether a value is worth a `look` when nothing is remembered. Cheap: it is asked of everybody at each tick."""
    if rule.shape is Shape.RATE_BELOW:
        return NOT_APPLICABLE < value < rule.limit
    return value > quiet_limit(rule)


def quiet_limit(rule: Rule) -> int:
    """The greatest value that isn't worth a `look` when nothing is remembered; of a rate the small ones are worth it."""
    if rule.shape is Shape.RATE_BELOW:
        return UNLIMITED
    # The grid of a clock's checks starts when there is something to check.
    return 0 if is_time_driven(rule) else rule.wakes_at


def check_rule(rule: Rule, value: int, hold: RuleState, now_ns: int, taken_bytes: int = 0) -> RuleCheck:
    """One look at one value."""
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
    """When the next rung, or the next look at a rate, comes due if nothing changes, ns; 0: with the tick is soon enough."""
    if not hold.over_since or hold.done >= len(rule.ladder) or is_time_driven(rule):
        return 0
    if rule.shape is Shape.RATE_BELOW:
        return hold.checked_at + rule.check_ms * _MS
    rung = rule.ladder[hold.done]
    return hold.over_since + (rule.hold_ms + rung.after_ms) * _MS if rung.at_percent >= 100 else 0


class RuleStateMigration:
    """What is remembered when other rules come into force.

    A rule that stays as it was goes on. One that asks the same as before, and does something else about it, knows since
    when the answer is yes, and has done nothing yet. Any other begins anew: it is due at the next look, whatever the clock.

    Made for one change of policy: rules, which many share, are compared once.
    """

    def __init__(self) -> None:
        self._heirs: dict[tuple[int, int], _CarriedOverRules] = {}

    def migrated_state(
        self, before: Sequence[Rule], after: Sequence[Rule], held: Mapping[str, RuleState]
    ) -> dict[str, RuleState]:
        """By the rules' names, of somebody whom these rules are about, after those."""
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
    """Rules by their names: those that stay as they were, that ask the same, and that are due whatever the clock."""

    same: list[str]
    asked: list[str]
    anew: list[str]
    compared: tuple[Sequence[Rule], Sequence[Rule]]
    """What the key is of: as long as it is held, it is nobody else's."""


def _heirs(before: Sequence[Rule], after: Sequence[Rule]) -> _CarriedOverRules:
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
"""As the moment of the last check: long ago."""


def _asks(rule: Rule) -> tuple[object, ...]:
    return (
        rule.signal, rule.shape, rule.limit, rule.window_ms, rule.count, rule.clear, rule.check_ms, rule.guard_bytes,
        rule.per_subscription,
    )  # fmt: skip


def _above(rule: Rule, value: int, hold: RuleState, now_ns: int) -> RuleCheck:
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
    """The widest rung that is due and hasn't acted; narrower ones that are due as well are passed over."""
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
    """A request to close is repeated for as long as it is ignored (seed 003: the broker doesn't force it)."""
    asked = hold.done > 0 and rule.ladder[hold.done - 1].action is PolicyAction.ASK_TO_CLOSE
    return asked and rule.mode is EnforcementMode.ENFORCE and now_ns - hold.acted_at >= ASK_AGAIN_MS * _MS


def _rate(rule: Rule, value: int, hold: RuleState, now_ns: int, taken_bytes: int) -> RuleCheck:
    """`value` is the rate over the window. Once suspected, each check asks what was taken since the last one."""
    if not hold.over_since:
        if value >= rule.limit:
            return RuleCheck(_after(rule, hold, now_ns), None, value)
        return RuleCheck(RuleState(now_ns, 0, hold.acted_at, now_ns, taken_bytes), None, value)
    if hold.done == len(rule.ladder):  # all is done that can be: only a recovery changes anything
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
    """How often the limit was passed; a full window is counted by the subscription itself, also between two looks."""
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
    if hold.done == len(rule.ladder) and not new:  # all is done that can be, until it is counted once more
        return RuleCheck(hold, None, len(marks))
    looked = _due(rule, rule.limit + 1, hold._replace(over_since=hold.marks[-1]), now_ns)
    kept = looked.hold._replace(over_since=hold.over_since)
    return RuleCheck(kept, looked.rung, max(value, len(marks)) if rule.counted else len(marks))


def _after(rule: Rule, hold: RuleState, now_ns: int) -> RuleState:
    """Within again: nothing is remembered but, for the cooldown, when it last acted."""
    if rule.cooldown_ms and hold.acted_at and now_ns - hold.acted_at < rule.cooldown_ms * _MS:
        return RuleState(acted_at=hold.acted_at)
    if rule.shape is Shape.COUNT_IN_WINDOW and hold.marks:
        return hold._replace(over_since=0)
    return NO_HOLD
