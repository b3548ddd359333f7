"""What holds for one connected client and its subscriptions: each setting with its unit and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from broker_core.config.preset_settings import PRESETS
from broker_core.config.rule_terms import SIGNALS, Unit
from broker_core.config.rules import Rung
from broker_core.documents.base import Setting
from broker_core.documents.clients import EffectiveSetting
from broker_core.slow_clients.rules.rule import PoolLimits
from broker_core.slow_clients.rules.scopes import Effective

_UNITS_OF_OWN: Final = {
    "percent": "%", "hold_ms": "ms", "window_ms": "ms", "check_ms": "ms", "cooldown_ms": "ms", "count": "times", "guard_bytes": "bytes",
}  # fmt: skip


def settings_of(
    found: Mapping[str, Effective], pool: PoolLimits, subscription: str = ""
) -> list[EffectiveSetting]:
    """Settings with their units. What the policy leaves to the host is said as what it comes to in the client's pool."""
    worked_out = {
        "amps.message_memory_limit": pool.memory, "amps.message_disk_limit": pool.disk, "amps.message_disk_path": pool.disk_path,
    }  # fmt: skip
    return [
        EffectiveSetting(
            setting=name,
            value=_plain(worked_out.get(name) if value is None else value),
            unit=_unit(name, found),
            origin=origin,
            subscription=subscription,
        )
        for name, (value, origin) in found.items()
    ]


def _unit(name: str, found: Mapping[str, Effective]) -> str:
    group, _, field = name.rpartition(".")
    if group in PRESETS:
        return str(PRESETS[group][field].unit)
    if field in ("limit", "clear"):
        signal = found[f"{group}.signal"].value
        return (SIGNALS[signal].unit if signal is not None else Unit.TIMES).value
    return _UNITS_OF_OWN.get(field, "")


def _plain(value: Any) -> Setting:
    """A setting's value as JSON has it."""
    if isinstance(value, (tuple, list)):
        return [asdict(one) if isinstance(one, Rung) else str(one) for one in value]
    found: Setting = value
    return found
