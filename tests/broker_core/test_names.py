"""The broker's own name and topics stand in one place."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from broker_core import names
from broker_core.errors import ClientError
from broker_core.protocols.commands import parse_command
from broker_core.protocols.stomp.headers import to_durable_name

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
        assert topic.startswith(names.EVENTS_PREFIX) and topic.startswith(names.RESERVED_PREFIX)
    assert not names.is_name(names.BROKER_NAME), "else a client could be called so"


@pytest.mark.parametrize("name", [".", "..", "." * names.MAX_NAME])
def test_dots_alone_name_nothing_that_has_an_address(name: str) -> None:
    assert not names.is_name(name)
    assert to_durable_name(name).startswith(name[:50]) and names.is_name(to_durable_name(name))
    for command in ("durable", "managed"):
        with pytest.raises(ClientError) as caught:
            parse_command(
                json.dumps({"c": "subscribe", "id": "s", "topic": "t", "bookmark": "0", command: name})
            )
        assert caught.value.details["field"] == command
