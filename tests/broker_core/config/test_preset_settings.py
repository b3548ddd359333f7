"""The table of preset settings, and the modules that derive bounds, defaults and texts from it."""

from __future__ import annotations

from typing import Any

import pytest

from broker_core.config import (
    PolicyDocument,
    PoolSettings,
    default_policy,
)
from broker_core.config.preset_settings import (
    ACTIVEMQ,
    AMPS,
    AMPS_POOL,
    PRESETS,
    QPID,
    XAP,
    PresetField,
    SettingType,
    Table,
)
from broker_core.errors import OperatorError
from broker_core.slow_clients.rules import presets

NUMBERS = [
    (system, row)
    for system, table in PRESETS.items()
    for row in table.values()
    if row.kind in (SettingType.INTEGER, SettingType.DECIMAL)
]


def document(system: str, name: str, value: Any) -> dict[str, Any]:
    """A policy document with one setting."""
    made = default_policy("here").to_dict()
    if system == "amps":
        made["pool" if name in AMPS_POOL else "client_policy"][name] = value
    else:
        made[system] = [{name: value} if system in ("xap", "quotas") else {"topic": "a", name: value}]
    return made


@pytest.mark.parametrize(("system", "row"), NUMBERS, ids=lambda given: getattr(given, "name", given))
def test_a_document_is_held_to_the_bounds_and_no_tighter(system: str, row: PresetField) -> None:
    for value in (row.low, row.high):
        PolicyDocument.from_dict(document(system, row.name, value))
    for value in (row.low - 1, row.high + 1):
        with pytest.raises(OperatorError, match=row.name):
            PolicyDocument.from_dict(document(system, row.name, value))


@pytest.mark.parametrize(
    ("table", "compiled"),
    [(XAP, presets.XAP_DEFAULTS), (ACTIVEMQ, presets.ACTIVEMQ_DEFAULTS), (QPID, presets.QPID_DEFAULTS)],
)
def test_rules_compile_with_the_defaults(table: Table, compiled: dict[str, Any]) -> None:
    assert compiled == {name: row.default for name, row in table.items() if name != "confirm_delete"}


def test_a_new_instance_has_the_default_capacity_and_a_pool_has_its_limits() -> None:
    assert default_policy("here").client_policy.client_max_capacity == AMPS["client_max_capacity"].default
    pool = presets.pool_limits("instance", PoolSettings(), 16 << 30, 4 << 30, "/spool")
    assert AMPS["message_memory_limit"].default_text.startswith("the lower of 10 %")
    assert pool.memory == (4 << 30) // 10
    assert AMPS["message_disk_limit"].default_text.startswith("1 GB or the memory limit, whichever is higher")
    assert pool.disk == 10**9


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (XAP["throughput"], "5000"),
        (XAP["enabled"], "false"),
        (XAP["mode"], "enforce"),
        (QPID["depth"], "no limit"),
        (ACTIVEMQ["max_slow_count"], "-1 (any number)"),
    ],
)
def test_a_default_is_said_as_operators_read_it(row: PresetField, text: str) -> None:
    assert row.default_text == text
    assert row.help_text == f"{row.meaning} Default: {text}."


def test_every_setting_says_what_it_means_and_what_holds_without_it() -> None:
    for table in PRESETS.values():
        for name, row in table.items():
            assert row.name == name
            assert row.meaning.endswith(".")
            assert row.default_text
