"""The operator's own rules: entries of one name laid over each other, compiled with the pool their percents are of."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from broker_core.config import PolicyDocument, RuleSettings, Scope
from broker_core.config.rule_problems import problems_of
from broker_core.config.rule_settings import RULE_FIELDS, is_per_subscription
from broker_core.config.vocabulary import POOL_SIGNALS, SIGNALS, Choice, Mode, Shape, Signal, Unit
from broker_core.slow_clients.rules.presets.layers import set_fields
from broker_core.slow_clients.rules.rule import TICK_MS, PoolLimits, Rule, Rung
from broker_core.slow_clients.rules.scopes import Layer, Layers, effective, subject_of

DEFAULTS: Final[dict[str, Any]] = {
    "mode": Mode.SHADOW, "signal": None, "shape": Shape.HARD, "limit": None, "percent": None, "hold_ms": 0,
    "window_ms": 0, "count": 0, "clear": 0, "guard_bytes": 1, "check_ms": TICK_MS, "cooldown_ms": 0,
    "choose": Choice.SELF, "protected": (), "ladder": (), "confirm_delete": False,
}  # fmt: skip


class Own(NamedTuple):
    """One rule of the operator's own."""

    layers: list[Layer]
    """Its entries."""
    per_subscription: bool
    """It measures each subscription alone."""
    pooled: bool
    """It is about pools."""


def own_rules(document: PolicyDocument) -> dict[str, Own]:
    """The operator's rules by name."""
    named: dict[str, list[RuleSettings]] = {}
    for entry in document.rules:
        named.setdefault(entry.name, []).append(entry)
    return {
        name: Own(
            [
                Layer(f"rule {name} ({entry.scope})", entry.scope, set_fields(entry, RULE_FIELDS))
                for entry in entries
            ],
            is_per_subscription(entries),
            any(entry.signal in POOL_SIGNALS for entry in entries),
        )
        for name, entries in named.items()
    }


def settings_within(own: Own, scope: Scope) -> dict[str, Any]:
    """What holds wherever a scope applies, laid over each other."""
    merged = effective(Layers(own.layers).of(subject_of(scope)), DEFAULTS)
    return {field: entry.value for field, entry in merged.items()}


def rule(
    name: str,
    settings: dict[str, Any],
    pool: PoolLimits,
    revision: int,
    *,
    scope: str = "",
    per_subscription: bool = False,
) -> Rule | None:
    """The rule of effective settings; None when what matches doesn't make a whole one, or contradicts itself: entries
    that neither lies within the other's scope are laid over each other only for those whom both are about."""
    if any(problems_of(RuleSettings(name, **settings), per_subscription)):
        return None
    signal, percent = settings["signal"], settings["percent"]
    limit = settings["limit"]
    if settings["shape"] is Shape.PERCENT_OF and percent is not None:
        whole = pool.disk if signal in (Signal.SPOOL_BYTES, Signal.POOL_DISK) else pool.memory
        limit = whole * percent // 100
    assert limit is not None, "problems_of asks for one"
    ladder = tuple(
        Rung(rung.action, rung.at_percent, rung.after_ms, rung.for_ms) for rung in settings["ladder"]
    )
    counted, row = settings["shape"] is Shape.COUNT_IN_WINDOW, SIGNALS[signal]
    return Rule(
        name, name, scope, signal, settings["shape"], limit, Unit.TIMES if counted else row.unit,
        settings["choose"], ladder, row.reason, revision, percent, settings["mode"], settings["hold_ms"],
        settings["window_ms"], settings["count"], settings["clear"], settings["check_ms"], settings["cooldown_ms"],
        settings["guard_bytes"], per_subscription, tuple(settings["protected"]),
    )  # fmt: skip
