"""Effective settings of connected clients, and their changes under another policy. Pure.

Each setting has its value, unit and origin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

from broker_core.config.preset_settings import PRESETS
from broker_core.config.rule_terms import SIGNALS, Unit
from broker_core.config.rules import Rung
from broker_core.documents.base import Setting
from broker_core.documents.clients import EffectiveSetting
from broker_core.documents.instance import AffectedEntry, SettingChange, SettingValue
from broker_core.slow_clients.rules.rule import PoolLimits
from broker_core.slow_clients.rules.rulebook import RuleBook
from broker_core.slow_clients.rules.scopes import EffectiveValue, RuleSubject

CUSTOM_RULE_UNITS: Final = {
    "percent": "%",
    "hold_ms": "ms",
    "window_ms": "ms",
    "check_ms": "ms",
    "cooldown_ms": "ms",
    "count": "times",
    "guard_bytes": "bytes",
}
"""Units of custom rules' fields."""


def describe_settings(
    settings: Mapping[str, EffectiveValue], pool: PoolLimits, subscription: str = ""
) -> list[EffectiveSetting]:
    """Return settings with their units and origins.

    A setting that the policy leaves to the host is shown with the resulting value of the client's pool.
    """
    worked_out = {
        "amps.message_memory_limit": pool.memory,
        "amps.message_disk_limit": pool.disk,
        "amps.message_disk_path": pool.disk_path,
    }
    return [
        EffectiveSetting(
            setting=name,
            value=_plain(worked_out.get(name) if value is None else value),
            unit=_unit(name, settings),
            origin=origin,
            subscription=subscription,
        )
        for name, (value, origin) in settings.items()
    ]


def _unit(name: str, settings: Mapping[str, EffectiveValue]) -> str:
    """Return the unit of a setting; "" without one."""
    group, _, field = name.rpartition(".")
    if group in PRESETS:
        return str(PRESETS[group][field].unit)
    if field in ("limit", "clear"):
        signal = settings[f"{group}.signal"].value
        return (SIGNALS[signal].unit if signal is not None else Unit.TIMES).value
    return CUSTOM_RULE_UNITS.get(field, "")


def _plain(value: Any) -> Setting:
    """Return a setting's value as JSON types."""
    if isinstance(value, (tuple, list)):
        return [asdict(one) if isinstance(one, Rung) else str(one) for one in value]
    settings: Setting = value
    return settings


NOT_SET: Final = SettingValue(value=None, origin="not set")


def compare_policies(
    before: RuleBook, after: RuleBook, subjects: Iterable[RuleSubject]
) -> list[AffectedEntry]:
    """Return the clients and subscriptions for which a value changes. A different origin is no change.

    Subjects are clients, each followed by its subscriptions. For a subscription, only changes that its client
    does not have are listed.
    """
    touched = []
    of_client: list[SettingChange] = []
    for subject in subjects:
        changes = _changes(_settings(before, subject), _settings(after, subject))
        if subject.topic:
            changes = [change for change in changes if change not in of_client]
        else:
            of_client = changes
        if changes:
            touched.append(
                AffectedEntry(
                    client=subject.client,
                    transport=subject.transport,
                    subscription=subject.subscription,
                    changes=changes,
                )
            )
    return touched


def _settings(book: RuleBook, subject: RuleSubject) -> dict[str, SettingValue]:
    """Return the settings in force for a subject, by name."""
    settings = describe_settings(book.effective(subject), book.pool_for(subject))
    return {one.setting: SettingValue(value=one.value, origin=one.origin) for one in settings}


def _changes(old: dict[str, SettingValue], new: dict[str, SettingValue]) -> list[SettingChange]:
    """Return the settings whose values differ."""
    return [
        SettingChange(setting=setting, before=before, after=after)
        for setting in new | old
        if (before := old.get(setting, NOT_SET)).value != (after := new.get(setting, NOT_SET)).value
    ]
