"""Names of commands and replies in the source are the tags of their unions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import UnionType

import msgspec
import pytest

from broker_core.errors import ClientError
from broker_core.protocols import commands, replies
from broker_core.protocols.commands import parse_command
from broker_core.protocols.field_info import get_tag, list_structs
from broker_core.protocols.replies import parse_reply

SOURCE = Path(__file__).parents[3] / "broker_core"


@pytest.mark.parametrize(
    ("base", "union"), [(commands._Command, commands.Command), (replies._Reply, replies.Reply)]
)
def test_no_struct_is_left_out_of_its_union(base: type[msgspec.Struct], union: UnionType) -> None:
    assert set(base.__subclasses__()) == set(list_structs(union))


@pytest.mark.parametrize("name", commands.NAMES)
def test_every_command_is_known_by_its_name(name: str) -> None:
    with pytest.raises(ClientError) as caught:
        parse_command(msgspec.json.encode({"c": name, "weather": 1}))
    assert (caught.value.code, caught.value.details["c"]) == ("bad_command", name)


def test_the_error_for_an_unknown_command_lists_all_names() -> None:
    with pytest.raises(ClientError) as caught:
        parse_command(b'{"c":"weather"}')
    assert caught.value.fix == f"The commands are {', '.join(commands.NAMES)}."


@pytest.mark.parametrize("name", replies.NAMES)
def test_a_reply_that_is_known_and_wrong_is_refused_and_not_passed_over(name: str) -> None:
    kind = next(kind for kind in list_structs(replies.Reply) if get_tag(kind) == name)
    if any(field.required for field in msgspec.structs.fields(kind)):
        with pytest.raises(ClientError):
            parse_reply(msgspec.json.encode({"c": name}))
    else:
        assert isinstance(parse_reply(msgspec.json.encode({"c": name})), kind)


def _command_names() -> Iterator[tuple[str, str]]:
    """Return texts that name commands: `of=` and `c=` in calls, and comparisons with `.of`."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            texts: list[ast.expr] = []
            if isinstance(node, ast.keyword) and node.arg in ("of", "c"):
                texts = [node.value]
            elif isinstance(node, ast.Compare) and ast.unparse(node.left).endswith(".of"):
                texts = node.comparators
            for text in texts:
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    yield text.value, f"{path.name}:{text.lineno}"


def test_what_the_source_calls_a_command_is_one() -> None:
    named = list(_command_names())
    assert len(named) > 20
    assert not [(name, where) for name, where in named if name not in commands.NAMES]
