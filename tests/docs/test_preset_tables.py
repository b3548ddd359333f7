"""Tables of settings in docs/slow-clients.md equal broker_core/config/preset_settings.py cell for cell.

The page also lists every signal.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_core.config.preset_settings import PRESETS, PresetField, SettingType, Table
from broker_core.config.rule_terms import EnforcementMode, Signal

PAGE = (Path(__file__).parents[2] / "docs" / "slow-clients.md").read_text(encoding="utf-8")
VALUES = {
    SettingType.FLAG: "true, false",
    SettingType.CONFIRMATION: "true, false",
    SettingType.MODE: ", ".join(EnforcementMode),
    SettingType.PATH: "",
}


def printed(system: str) -> str:
    """The table that follows the system's mark."""
    _, mark, rest = PAGE.partition(f"<!-- settings: {system} -->\n")
    assert mark, f"docs/slow-clients.md has no mark for the settings of {system}"
    return rest.partition("\n\n")[0]


def rendered(table: Table) -> str:
    head = [
        "| setting | its own word | what it means | unit | values | default |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join(head + [_line(row) for row in table.values()])


def _line(row: PresetField) -> str:
    values = VALUES.get(row.kind, f"{row.low:,} to {row.high:,}")
    cells = (
        f"`{row.name}`",
        f"`{row.word}`" if row.word else "",
        row.meaning,
        row.unit,
        values,
        row.default_text,
    )
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


@pytest.mark.parametrize("system", PRESETS)
def test_the_page_prints_the_table(system: str) -> None:
    assert printed(system) == rendered(PRESETS[system])


def test_the_page_prints_every_signal() -> None:
    rows = PAGE.partition("| signal | unit | of |\n|---|---|---|\n")[2].partition("\n\n")[0].splitlines()
    printed = [
        name for row in rows for name in row.split("|")[1].replace("`", "").replace(" ", "").split(",")
    ]
    assert sorted(printed) == sorted(Signal)
