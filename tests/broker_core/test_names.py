"""The broker's own name and topics stand in one place."""

from __future__ import annotations

import ast
from pathlib import Path

from broker_core import names

ROOT = Path(__file__).parents[2]


def _texts(path: Path) -> list[str]:
    """The texts of a module that aren't its documentation."""
    tree = ast.parse(path.read_text())
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation
    ]


def test_no_other_module_writes_the_brokers_name_out() -> None:
    writing = [
        path.relative_to(ROOT).as_posix()
        for package in ("broker_core", "api", "console", "pipeline", "sluice_spark", "demo")
        for path in (ROOT / package).rglob("*.py")
        if any(names.BROKER_NAME in text for text in _texts(path))
    ]
    assert writing == ["broker_core/names.py"]


def test_the_brokers_topics_are_its_own() -> None:
    for topic in (names.CLIENTS_TOPIC, names.DECISIONS_TOPIC, names.LEDGER_TOPIC):
        assert topic.startswith(names.EVENTS_PREFIX) and topic.startswith(names.OWN)
    assert not names.is_name(names.BROKER_NAME), "else a client could be called so"
