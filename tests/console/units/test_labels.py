"""Every signal has a label for pages and a short label for the clients' table."""

from __future__ import annotations

import re
from pathlib import Path

from broker_core.config.rule_terms import Signal
from console.units import labels

SCRIPT = Path(__file__).parents[3] / "console" / "static" / "js" / "clients.js"


def test_every_signal_has_a_label() -> None:
    assert set(labels.SIGNALS) == set(Signal)


def test_every_signal_has_a_word_for_the_nearest_limit_in_the_clients_table() -> None:
    table = re.search(r"const SIGNAL_WORDS = \{(.*?)\};", SCRIPT.read_text(encoding="utf-8"))
    assert table is not None
    assert sorted(re.findall(r"(\w+):", table[1])) == sorted(Signal)
