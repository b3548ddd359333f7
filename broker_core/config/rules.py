"""Custom rules of a policy document: an operator's own, by name, each entry for a scope.

Entries of one name are layers of one rule: for a client or subscription the entries that match are laid over each
other field by field, the most specific on top (`slow_clients.rulebook`). So an entry may set as little as a limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from broker_core.config.reading import Reader
from broker_core.config.rule_problems import problems_of
from broker_core.config.vocabulary import Action, Choice, Mode, Shape, Signal
from broker_core.names import is_name

MAX_RULES: Final = 200
MAX_RUNGS: Final = 8
MAX_MS: Final = 366 * 24 * 3_600_000
NEEDED: Final = ("signal", "limit", "ladder")
"""What a rule can't do without; `percent` may stand for the limit."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Whom something applies to: everything that is set must match. Nothing set is the whole instance.

    transport      a transport's name
    topic          a topic or pattern: each subscription to it, or to part of it, is measured alone
    user           a user's name
    client         a client's name, where "*" stands for any characters
    subscription   a subscription's id, or the name of a durable one
    """

    transport: str = ""
    topic: str = ""
    user: str = ""
    client: str = ""
    subscription: str = ""

    @property
    def per_subscription(self) -> bool:
        """Whether it speaks of subscriptions rather than of clients."""
        return bool(self.topic or self.subscription)

    def __str__(self) -> str:
        named = [f"{key.name} {value}" for key in fields(self) if (value := getattr(self, key.name))]
        return ", ".join(named) or "instance"


@dataclass(frozen=True, slots=True)
class RungSettings:
    """One step of a ladder: what is done, from how many percent of the limit, after how long over it.

    at_percent   default 100; less is an early rung, such as a warning
    after_ms     milliseconds the condition must go on after the hold; default 0
    for_ms       how long a pause or a refusal lasts; default 0: until resumed
    """

    action: Action
    at_percent: int = 100
    after_ms: int = 0
    for_ms: int = 0


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """One entry. None means: what the less specific entries of the same name say, and at last the default.

    mode            off, shadow or enforce; default shadow, so that a new rule harms nobody
    limit           in the signal's unit: bytes, messages, milliseconds, bytes/s
    percent         with percent_of, in place of the limit
    shape           default hard
    hold_ms         default 0; window_ms default 0; count default 0; clear default 0; guard_bytes default 1
    check_ms        milliseconds between two looks; default 1000
    cooldown_ms     default 0
    choose          default self; largest_in_pool for pool signals
    protected       patterns of client names that are never chosen
    confirm_delete  must be true for delete_durable
    """

    name: str
    scope: Scope = Scope()
    mode: Mode | None = None
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
    choose: Choice | None = None
    protected: tuple[str, ...] | None = None
    ladder: tuple[RungSettings, ...] | None = None
    confirm_delete: bool | None = None

    def over(self, below: RuleSettings) -> RuleSettings:
        """This entry laid over a less specific one."""
        mine = {key: value for key in RULE_FIELDS if (value := getattr(self, key)) is not None}
        return replace(below, scope=self.scope, **mine)


RULE_FIELDS: Final = tuple(key.name for key in fields(RuleSettings) if key.name not in ("name", "scope"))
"""What entries are laid over each other by."""
_NUMBERS: Final = {
    "limit": (0, 2**62), "percent": (1, 1_000), "hold_ms": (0, MAX_MS), "window_ms": (0, MAX_MS),
    "count": (0, 1_000_000), "clear": (0, 2**62), "guard_bytes": (0, 2**62), "check_ms": (100, MAX_MS),
    "cooldown_ms": (0, MAX_MS),
}


def read_rules(reader: Reader, source: Any) -> tuple[RuleSettings, ...]:
    """The document's `rules`: a list of at most 200 entries."""
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


def _read_rule(reader: Reader, source: Mapping[str, Any]) -> RuleSettings:
    name = source.get("name", "")
    where = f"rule {name!r}"
    reader.only(source, ("name", "scope", *RULE_FIELDS), where)
    if not isinstance(name, str) or not is_name(name):
        reader.problems.append(f"{where}: name must be 1 to 64 letters, digits, dots, dashes, underscores")
    numbers = {key: reader.number(source, key, where, *bounds) for key, bounds in _NUMBERS.items()}
    protected = reader.texts(source, "protected", where, (), "client names") if "protected" in source else None
    return RuleSettings(
        name=str(name),
        scope=read_scope(reader, reader.mapping(source, "scope"), where),
        mode=reader.choice(source, "mode", where, Mode),
        signal=reader.choice(source, "signal", where, Signal),
        shape=reader.choice(source, "shape", where, Shape),
        choose=reader.choice(source, "choose", where, Choice),
        protected=protected if source.get("protected") is not None else None,
        ladder=_read_ladder(reader, source.get("ladder"), where),
        confirm_delete=reader.flag(source, "confirm_delete", where),
        **numbers,
    )


def read_scope(reader: Reader, source: Mapping[str, Any], where: str) -> Scope:
    """Whom an entry applies to."""
    known = tuple(key.name for key in fields(Scope))
    reader.only(source, known, f"{where}: scope")
    texts = {}
    for key in known:
        value = source.get(key) or ""
        if not isinstance(value, str) or len(value) > 255:
            reader.problems.append(f"{where}: scope.{key} must be a text of at most 255 characters")
            value = ""
        texts[key] = value
    return Scope(**texts)


def _read_ladder(reader: Reader, source: Any, where: str) -> tuple[RungSettings, ...] | None:
    if source is None:
        return None
    listed = isinstance(source, (list, tuple)) and all(isinstance(rung, Mapping) for rung in source)
    if not listed or not 1 <= len(source) <= MAX_RUNGS:
        reader.problems.append(f"{where}: ladder must be a list of 1 to {MAX_RUNGS} rungs")
        return None
    return tuple(rung for entry in source if (rung := _read_rung(reader, entry, where)) is not None)


def _read_rung(reader: Reader, source: Mapping[str, Any], where: str) -> RungSettings | None:
    reader.only(source, tuple(RungSettings.__dataclass_fields__), f"{where}: a rung")
    action = reader.choice(source, "action", where, Action)
    at_percent = reader.number(source, "at_percent", where, 1, 100)
    after_ms = reader.number(source, "after_ms", where, 0, MAX_MS)
    for_ms = reader.number(source, "for_ms", where, 0, MAX_MS)
    if action is None:
        reader.problems.append(f"{where}: a rung needs an action")
        return None
    return RungSettings(action, 100 if at_percent is None else at_percent, after_ms or 0, for_ms or 0)


def _check_layers(reader: Reader, rules: tuple[RuleSettings, ...]) -> None:
    """Each entry, laid over the instance-wide one of its name, must be a whole rule that makes sense."""
    base = {rule.name: rule for rule in rules if rule.scope == Scope()}
    seen: set[tuple[str, Scope]] = set()
    for rule in rules:
        where = f"rule {rule.name!r} ({rule.scope})"
        if (rule.name, rule.scope) in seen:
            reader.problems.append(f"{where}: there is another entry for the same scope")
        seen.add((rule.name, rule.scope))
        whole = rule.over(base[rule.name]) if rule.name in base else rule
        reader.problems += [f"{where}: {problem}" for problem in problems_of(whole)]
