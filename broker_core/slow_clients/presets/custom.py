"""The operator's own rules: entries of one name laid over each other, compiled with the pool their percents are of."""

from __future__ import annotations

from typing import Any, Final

from broker_core.config import PolicyDocument
from broker_core.config.rules import RULE_FIELDS
from broker_core.config.vocabulary import (
    POOL_SIGNALS,
    SUBSCRIPTION_SIGNALS,
    UNIT_OF,
    Choice,
    Mode,
    Shape,
    Signal,
    Unit,
)
from broker_core.slow_clients.presets.layers import set_fields
from broker_core.slow_clients.rules import REASON_OF, TICK_MS, PoolLimits, Rule, Rung
from broker_core.slow_clients.scopes import Layer

DEFAULTS: Final[dict[str, Any]] = {
    "mode": Mode.SHADOW, "signal": None, "shape": Shape.HARD, "limit": None, "percent": None, "hold_ms": 0,
    "window_ms": 0, "count": 0, "clear": 0, "guard_bytes": 1, "check_ms": TICK_MS, "cooldown_ms": 0,
    "choose": Choice.SELF, "protected": (), "ladder": (), "confirm_delete": False,
}  # fmt: skip


def layers(document: PolicyDocument) -> dict[str, list[Layer]]:
    """The entries of each rule's name by scope."""
    named: dict[str, list[Layer]] = {}
    for entry in document.rules:
        layer = Layer(f"rule {entry.name} ({entry.scope})", entry.scope, set_fields(entry, RULE_FIELDS))
        named.setdefault(entry.name, []).append(layer)
    return named


def is_per_subscription(entries: list[Layer]) -> bool:
    """Whether a rule measures each subscription alone: its signal or one of its entries is about subscriptions."""
    return any(
        layer.scope.per_subscription or layer.fields.get("signal") in SUBSCRIPTION_SIGNALS for layer in entries
    )


def is_pooled(entries: list[Layer]) -> bool:
    """Whether a rule is about pools."""
    return any(layer.fields.get("signal") in POOL_SIGNALS for layer in entries)


def rule(
    name: str, settings: dict[str, Any], pool: PoolLimits, revision: int, *, scope: str = "", per_subscription: bool = False
) -> Rule | None:
    """The rule of effective settings; None when what matches doesn't make a whole one."""
    signal, percent = settings["signal"], settings["percent"]
    limit = settings["limit"]
    if settings["shape"] is Shape.PERCENT_OF and percent is not None:
        whole = pool.disk if signal in (Signal.SPOOL_BYTES, Signal.POOL_DISK) else pool.memory
        limit = whole * percent // 100
    if signal is None or limit is None or not settings["ladder"]:
        return None
    ladder = tuple(Rung(rung.action, rung.at_percent, rung.after_ms, rung.for_ms) for rung in settings["ladder"])
    counted = settings["shape"] is Shape.COUNT_IN_WINDOW
    return Rule(
        name, name, scope, signal, settings["shape"], limit, Unit.TIMES if counted else UNIT_OF[signal],
        settings["choose"], ladder, REASON_OF[signal], revision, percent, settings["mode"], settings["hold_ms"],
        settings["window_ms"], settings["count"], settings["clear"], settings["check_ms"], settings["cooldown_ms"],
        settings["guard_bytes"], per_subscription, tuple(settings["protected"]),
    )  # fmt: skip
