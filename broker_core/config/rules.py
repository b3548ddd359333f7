"""Reads the custom rules of a policy document: an operator's own, by name, each entry for a scope (`rule_settings`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from broker_core.config.reading import Reader, is_list
from broker_core.config.rule_problems import problems_of
from broker_core.config.rule_settings import (
    MAX_MS,
    RULE_FIELDS,
    RuleSettings,
    Rung,
    is_per_subscription,
    laid_over,
)
from broker_core.config.scopes import Scope
from broker_core.config.vocabulary import POOL_SIGNALS, Action, Choice, Mode, Shape, Signal

MAX_RULES: Final = 200
MAX_RUNGS: Final = 8


_NUMBERS: Final = {
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
    where = f"rule {source.get('name', '')!r}"
    reader.only(source, ("name", "scope", *RULE_FIELDS), where)
    name = reader.name(source, where)
    numbers = {key: reader.number(source, key, where, *bounds) for key, bounds in _NUMBERS.items()}
    protected = reader.texts(source, "protected", where, (), "client names")
    return RuleSettings(
        name=name,
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


def _read_ladder(reader: Reader, source: Any, where: str) -> tuple[Rung, ...] | None:
    if source is None:
        return None
    if not is_list(source, Mapping, MAX_RUNGS) or not source:
        reader.problems.append(f"{where}: ladder must be a list of 1 to {MAX_RUNGS} rungs")
        return None
    return tuple(rung for entry in source if (rung := _read_rung(reader, entry, where)) is not None)


def _read_rung(reader: Reader, source: Mapping[str, Any], where: str) -> Rung | None:
    reader.only(source, Rung.__dataclass_fields__, f"{where}: a rung")
    action = reader.choice(source, "action", where, Action)
    bounds = {"at_percent": (1, 100), "after_ms": (0, MAX_MS), "for_ms": (0, MAX_MS)}
    numbers = {key: reader.number(source, key, where, *its) for key, its in bounds.items()}
    if action is None:
        reader.problems.append(f"{where}: a rung needs an action")
        return None
    return Rung(action, **{key: number for key, number in numbers.items() if number is not None})


def _check_layers(reader: Reader, rules: tuple[RuleSettings, ...]) -> None:
    """Each entry, laid over those that apply wherever it does, must be a whole rule that makes sense."""
    named: dict[str, list[RuleSettings]] = {}
    for rule in rules:
        where = f"rule {rule.name!r} ({rule.scope})"
        entries = named.setdefault(rule.name, [])
        if any(rule.scope == other.scope for other in entries):
            reader.problems.append(f"{where}: there is another entry for the same scope")
        entries.append(rule)
    for rule in rules:
        whole, narrow = laid_over(named[rule.name], rule.scope) or rule, is_per_subscription(named[rule.name])
        where = f"rule {rule.name!r} ({rule.scope})"
        reader.problems += [f"{where}: {problem}" for problem in problems_of(whole, narrow)]
    for name, entries in named.items():
        if len({entry.signal in POOL_SIGNALS for entry in entries if entry.signal is not None}) > 1:
            reader.problems.append(
                f"rule {name!r}: some of its entries measure pools, and some don't: name them differently"
            )
