"""Custom rules of a policy document: reading them, merging the entries of a rule, finding contradictions.

An operator's rule has a name and one or several entries, each for a scope. All matching entries are merged
field by field for each client or subscription, the most specific last (`slow_clients.rules.rulebook`). So an
entry may set as little as a limit. A document with a contradictory rule is never saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import reduce
from itertools import pairwise
from typing import Any, Final

from broker_core.config.document_reader import DocumentReader, is_list_of
from broker_core.config.rule_terms import (
    CLIENT_SIGNALS,
    MAX_ACKNOWLEDGED_RATE_WINDOW_MS,
    POOL_SIGNALS,
    RATE_SIGNALS,
    SIGNALS_LOWERED_BY_DISCARD,
    SUBSCRIPTION_ACTIONS,
    SUBSCRIPTION_SIGNALS,
    EnforcementMode,
    PolicyAction,
    Shape,
    Signal,
    TargetSelection,
)
from broker_core.config.scopes import ALL_CLIENTS, Scope, is_scope_within, specificity

MAX_MS: Final = 366 * 24 * 3_600_000
"""Longest duration of any setting: 366 days in milliseconds."""


@dataclass(frozen=True, slots=True)
class Rung:
    """Single step of a rule's ladder of actions.

    Attributes:
        action: Action to take.
        at_percent: Percent of the limit from which the action is due. Default 100; less is an early step,
            such as a warning.
        after_ms: Milliseconds for which the condition must continue after the rule's `hold_ms`. Default 0.
        for_ms: Duration of a pause or a rejection in milliseconds. Default 0: until resumed.
    """

    action: PolicyAction
    at_percent: int = 100
    after_ms: int = 0
    for_ms: int = 0


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """Entry of a custom rule for one scope.

    A field that is None takes its value from the less specific entries of the same name, and at last from the
    default.

    Attributes:
        name: Name of the rule.
        scope: Clients or subscriptions that the entry applies to.
        mode: off, shadow or enforce. Default shadow, so that a new rule has no effect on clients.
        signal: Measured quantity. Required in the merged rule.
        shape: Comparison of the signal with the limit. Default hard.
        limit: Limit in the unit of the signal: bytes, messages, milliseconds, bytes/s or
            messages/s.
        percent: Replaces the limit for the shape percent_of.
        hold_ms: See `Shape`. Default 0.
        window_ms: See `Shape`. Default 0.
        count: See `Shape`. Default 0.
        clear: See `Shape`. Default 0.
        guard_bytes: Minimum backlog in bytes for judging the signal drain_rate. Default 1.
        check_ms: Milliseconds between two checks. Default 1000.
        cooldown_ms: Milliseconds after a decision before the rule may decide again. Default 0.
        choose: Client to act on. Default self, or largest_in_pool for pool signals.
        protected: Patterns of client names that are never chosen.
        ladder: Actions, from narrow to wide.
        confirm_delete: Must be true for the action delete_durable.
    """

    name: str
    scope: Scope = ALL_CLIENTS
    mode: EnforcementMode | None = None
    signal: Signal | None = None
    shape: Shape | None = None
    limit: int | None = None
    percent: int | None = None
    hold_ms: int | None = None
    window_ms: int | None = None
    count: int | None = None
    clear: int | None = None
    guard_bytes: int | None = None
    check_ms: int | None = None
    cooldown_ms: int | None = None
    choose: TargetSelection | None = None
    protected: tuple[str, ...] | None = None
    ladder: tuple[Rung, ...] | None = None
    confirm_delete: bool | None = None

    def merge_over(self, wider: RuleSettings) -> RuleSettings:
        """Return this entry merged over a less specific one. Fields of this entry win where they are set."""
        set_values = {key: value for key in RULE_FIELDS if (value := getattr(self, key)) is not None}
        return replace(wider, scope=self.scope, **set_values)


RULE_FIELDS: Final = tuple(key.name for key in fields(RuleSettings) if key.name not in ("name", "scope"))
"""Names of the fields that entries override in each other."""


def is_per_subscription(entries: Iterable[RuleSettings]) -> bool:
    """Return whether a rule measures each subscription separately.

    This is so if the signal or the scope of any of its entries concerns subscriptions.
    """
    return any(entry.scope.per_subscription or entry.signal in SUBSCRIPTION_SIGNALS for entry in entries)


def merge_rule_layers(entries: Iterable[RuleSettings], scope: Scope) -> RuleSettings | None:
    """Return the merged entries of one rule that apply to the whole `scope`, or None if there are none."""
    below = sorted(
        (one for one in entries if is_scope_within(one.scope, scope)), key=lambda one: specificity(one.scope)
    )
    return reduce(lambda made, one: one.merge_over(made), below) if below else None


_POOL_USE_SIGNALS = (Signal.OUTBOUND_BYTES, Signal.SPOOL_BYTES, Signal.POOL_MEMORY, Signal.POOL_DISK)
_DURATION_SIGNALS = (Signal.ACK_SILENCE, Signal.WRITE_BLOCKED)
_ACTION_ORDER = list(PolicyAction)


def rule_contradictions(rule: RuleSettings, per_subscription: bool) -> Iterator[str]:
    """Yield a phrase for each missing or contradictory field of a merged rule.

    Args:
        rule: All entries of a rule, merged for one scope.
        per_subscription: Whether the rule measures each subscription separately; see `is_per_subscription`.
    """
    if rule.signal is None:
        yield "it needs a signal"
        return
    if not rule.ladder:
        yield "it needs a ladder of at least one action"
        return
    yield from _shape_problems(rule, rule.signal, rule.shape or Shape.HARD)
    yield from _scope_problems(rule, rule.signal, per_subscription)
    yield from _ladder_problems(rule, rule.ladder, per_subscription)


def _shape_problems(rule: RuleSettings, signal: Signal, shape: Shape) -> Iterator[str]:
    if shape is Shape.PERCENT_OF:
        if rule.percent is None:
            yield "percent_of needs a percent"
        if signal not in _POOL_USE_SIGNALS:
            yield f"percent_of is of a pool's memory or disk, and {signal} is neither"
    elif rule.limit is None:
        yield "it needs a limit"
    if shape is Shape.SOFT_FOR and not rule.hold_ms:
        yield "soft_for needs hold_ms"
    if shape is Shape.COUNT_IN_WINDOW and not rule.count:
        yield "count_in_window needs a count"
    if (shape is Shape.RATE_BELOW) != (signal in RATE_SIGNALS):
        yield "rate_below and drain_rate or acknowledged_rate belong together"
    if signal is Signal.ACKNOWLEDGED_RATE and (rule.window_ms or 0) > MAX_ACKNOWLEDGED_RATE_WINDOW_MS:
        yield f"acknowledged_rate has a window_ms of at most {MAX_ACKNOWLEDGED_RATE_WINDOW_MS}"
    if shape is Shape.RATE_BELOW and not rule.window_ms:
        yield "rate_below needs window_ms"
    if (
        shape is Shape.SET_CLEAR
        and rule.limit is not None
        and (rule.clear is None or rule.clear >= rule.limit)
    ):
        yield "set_clear needs a clear that is less than the limit"
    if shape is Shape.DURATION_WITHOUT and signal not in _DURATION_SIGNALS:
        yield "duration_without is for ack_silence and write_blocked"


def _scope_problems(rule: RuleSettings, signal: Signal, per_subscription: bool) -> Iterator[str]:
    is_largest_in_pool = rule.choose is TargetSelection.LARGEST_IN_POOL
    if (signal in POOL_SIGNALS) != is_largest_in_pool:
        yield "choose largest_in_pool and a pool's signal belong together"
    if rule.shape is Shape.LARGEST_WHEN_POOL_OVER and not is_largest_in_pool:
        yield "largest_when_pool_over needs a pool's signal"
    if is_largest_in_pool and rule.shape in (Shape.COUNT_IN_WINDOW, Shape.DURATION_WITHOUT):
        yield f"{rule.shape} isn't available for a pool"
    if is_largest_in_pool and (rule.scope.user or rule.scope.client or rule.scope.per_subscription):
        yield "a pool is the instance's or a transport's: the scope can't be narrower"
    if signal in CLIENT_SIGNALS and per_subscription:
        yield f"{signal} is measured of whole clients, and this rule, by its scopes, of subscriptions"


def _ladder_problems(rule: RuleSettings, ladder: tuple[Rung, ...], per_subscription: bool) -> Iterator[str]:
    for rung in ladder:
        if rung.action in SUBSCRIPTION_ACTIONS and not per_subscription:
            yield f"{rung.action} needs a subscription: give the scope a topic"
        if rung.action is PolicyAction.REFUSE and not rung.for_ms:
            yield "refuse needs for_ms: for how long"
        if rung.action is PolicyAction.DELETE_DURABLE and not rule.confirm_delete:
            yield ("delete_durable removes the client's backlog: set confirm_delete to true to confirm it")
        if rung.action is PolicyAction.DISCARD_OLDEST and rule.signal not in SIGNALS_LOWERED_BY_DISCARD:
            yield "discard_oldest cuts bytes or messages that wait in memory, and the signal is neither"
        if rung.at_percent < 100 and (
            rung.after_ms or rule.shape in (Shape.RATE_BELOW, Shape.COUNT_IN_WINDOW)
        ):
            yield "an early rung (at_percent under 100) has neither after_ms nor a rate or count"
    for one, other in pairwise(ladder):
        if _ACTION_ORDER.index(one.action) >= _ACTION_ORDER.index(other.action):
            yield f"the ladder must go from narrow to wide: {other.action} can't follow {one.action}"
        if (one.at_percent, one.after_ms) == (other.at_percent, other.after_ms):
            yield f"{one.action} never happens: {other.action} is due at the same moment"
        elif other.at_percent < one.at_percent or other.after_ms < one.after_ms:
            yield f"{other.action} would precede {one.action}"


MAX_RULES: Final = 200
MAX_RUNGS: Final = 8


_NUMBER_BOUNDS: Final = {
    "limit": (0, 2**62),
    "percent": (1, 1_000),
    "hold_ms": (0, MAX_MS),
    "window_ms": (0, MAX_MS),
    "count": (0, 1_000_000),
    "clear": (0, 2**62),
    "guard_bytes": (0, 2**62),
    "check_ms": (100, MAX_MS),
    "cooldown_ms": (0, MAX_MS),
}


def read_rules(reader: DocumentReader, source: Any) -> tuple[RuleSettings, ...]:
    """Read the list `rules` of a policy document: at most 200 entries."""
    if source is None:
        return ()
    if not isinstance(source, (list, tuple)) or len(source) > MAX_RULES:
        reader.problems.append(f"rules must be a list of at most {MAX_RULES}")
        return ()
    if not all(isinstance(entry, Mapping) for entry in source):
        reader.problems.append("every rule must be an object")
        return ()
    rules = tuple(_read_rule(reader, entry) for entry in source)
    _check_layers(reader, rules)
    return rules


def _read_rule(reader: DocumentReader, source: Mapping[str, Any]) -> RuleSettings:
    where = f"rule {source.get('name', '')!r}"
    reader.check_known_keys(source, ("name", "scope", *RULE_FIELDS), where)
    name = reader.read_name(source, where)
    numbers = {key: reader.read_int(source, key, where, *bounds) for key, bounds in _NUMBER_BOUNDS.items()}
    protected = reader.read_texts(source, "protected", where, (), "client names")
    return RuleSettings(
        name=name,
        scope=read_scope(reader, reader.read_object(source, "scope"), where),
        mode=reader.read_enum(source, "mode", where, EnforcementMode),
        signal=reader.read_enum(source, "signal", where, Signal),
        shape=reader.read_enum(source, "shape", where, Shape),
        choose=reader.read_enum(source, "choose", where, TargetSelection),
        protected=protected if source.get("protected") is not None else None,
        ladder=_read_ladder(reader, source.get("ladder"), where),
        confirm_delete=reader.read_bool(source, "confirm_delete", where),
        **numbers,
    )


def read_scope(reader: DocumentReader, source: Mapping[str, Any], where: str) -> Scope:
    """Read the scope of a rule's entry."""
    known = tuple(key.name for key in fields(Scope))
    reader.check_known_keys(source, known, f"{where}: scope")
    texts = {}
    for key in known:
        value = source.get(key) or ""
        if not isinstance(value, str) or len(value) > 255:
            reader.problems.append(f"{where}: scope.{key} must be a text of at most 255 characters")
            value = ""
        texts[key] = value
    return Scope(**texts)


def _read_ladder(reader: DocumentReader, source: Any, where: str) -> tuple[Rung, ...] | None:
    if source is None:
        return None
    if not is_list_of(source, Mapping, MAX_RUNGS) or not source:
        reader.problems.append(f"{where}: ladder must be a list of 1 to {MAX_RUNGS} rungs")
        return None
    return tuple(rung for entry in source if (rung := _read_rung(reader, entry, where)) is not None)


def _read_rung(reader: DocumentReader, source: Mapping[str, Any], where: str) -> Rung | None:
    reader.check_known_keys(source, Rung.__dataclass_fields__, f"{where}: a rung")
    action = reader.read_enum(source, "action", where, PolicyAction)
    bounds = {"at_percent": (1, 100), "after_ms": (0, MAX_MS), "for_ms": (0, MAX_MS)}
    numbers = {key: reader.read_int(source, key, where, *limits) for key, limits in bounds.items()}
    if action is None:
        reader.problems.append(f"{where}: a rung needs an action")
        return None
    return Rung(action, **{key: number for key, number in numbers.items() if number is not None})


def _check_layers(reader: DocumentReader, rules: tuple[RuleSettings, ...]) -> None:
    """Report contradictions in each entry, merged with the entries that apply to its whole scope."""
    named: dict[str, list[RuleSettings]] = {}
    for rule in rules:
        where = f"rule {rule.name!r} ({rule.scope})"
        entries = named.setdefault(rule.name, [])
        if any(rule.scope == other.scope for other in entries):
            reader.problems.append(f"{where}: there is another entry for the same scope")
        entries.append(rule)
    for rule in rules:
        merged, per_subscription = (
            merge_rule_layers(named[rule.name], rule.scope) or rule,
            is_per_subscription(named[rule.name]),
        )
        where = f"rule {rule.name!r} ({rule.scope})"
        reader.problems += [
            f"{where}: {problem}" for problem in rule_contradictions(merged, per_subscription)
        ]
    for name, entries in named.items():
        if len({entry.signal in POOL_SIGNALS for entry in entries if entry.signal is not None}) > 1:
            reader.problems.append(
                f"rule {name!r}: some of its entries measure pools, and some don't: name them differently"
            )
