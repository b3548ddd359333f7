"""The operator's own rules: entries of one name laid over each other, compiled with the pool their percents are of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from broker_core.config import PolicyDocument, RuleSettings
from broker_core.config.rule_terms import (
    POOL_SIGNALS,
    EnforcementMode,
    Shape,
    Signal,
    SignalSubject,
    TargetSelection,
)
from broker_core.config.rules import RULE_FIELDS, is_per_subscription, rule_contradictions
from broker_core.slow_clients.rules.presets.layers import set_fields
from broker_core.slow_clients.rules.rule import TICK_MS, PoolLimits, Rule
from broker_core.slow_clients.rules.scopes import Layer, Layers

DEFAULTS: Final[dict[str, Any]] = {
    "mode": EnforcementMode.SHADOW, "signal": None, "shape": Shape.HARD, "limit": None, "percent": None, "hold_ms": 0,
    "window_ms": 0, "count": 0, "clear": 0, "guard_bytes": 1, "check_ms": TICK_MS, "cooldown_ms": 0,
    "choose": TargetSelection.SELF, "protected": (), "ladder": (), "confirm_delete": False,
}  # fmt: skip
_AS_SET: Final = (
    "signal", "shape", "ladder", "mode", "hold_ms", "window_ms", "count", "clear", "check_ms", "cooldown_ms", "guard_bytes", "protected",
)  # fmt: skip


class Own(NamedTuple):
    """One rule of the operator's own: its entries, and what it measures."""

    name: str
    layers: Layers
    measured: SignalSubject

    def rule(self, settings: Mapping[str, Any], pool: PoolLimits, revision: int) -> Rule | None:
        """The rule of effective settings; None when what matches doesn't make a whole one, or contradicts itself: entries
        that neither lies within the other's scope are laid over each other only for those whom both are about."""
        narrow, pooled = self.measured is SignalSubject.SUBSCRIPTION, self.measured is SignalSubject.POOL
        if any(rule_contradictions(RuleSettings(self.name, **settings), narrow)):
            return None
        limit = settings["limit"]
        if settings["shape"] is Shape.PERCENT_OF:
            on_disk = settings["signal"] in (Signal.SPOOL_BYTES, Signal.POOL_DISK)
            limit = (pool.disk if on_disk else pool.memory) * settings["percent"] // 100
        return Rule(
            self.name, self.name, pool.name if pooled else "", limit=limit, revision=revision, per_subscription=narrow,
            at_tick=pooled, **{key: settings[key] for key in _AS_SET},
        )  # fmt: skip


def own_rules(document: PolicyDocument) -> dict[str, Own]:
    """The operator's rules by name."""
    named: dict[str, list[RuleSettings]] = {}
    for entry in document.rules:
        named.setdefault(entry.name, []).append(entry)
    return {name: _own(name, entries) for name, entries in named.items()}


def _own(name: str, entries: list[RuleSettings]) -> Own:
    layers = [
        Layer(f"rule {name} ({entry.scope})", entry.scope, set_fields(entry, RULE_FIELDS))
        for entry in entries
    ]
    if any(entry.signal in POOL_SIGNALS for entry in entries):
        measured = SignalSubject.POOL
    else:
        measured = SignalSubject.SUBSCRIPTION if is_per_subscription(entries) else SignalSubject.CLIENT
    return Own(name, Layers(layers, DEFAULTS), measured)
