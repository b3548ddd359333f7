"""docs/protocol.md lists each command and reply, with the fields, types, units, bounds and defaults of its
struct.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import UnionType

import msgspec
import pytest

from broker_core.filters.tokens import MAX_FILTER_TEXT
from broker_core.protocols import commands, replies
from broker_core.protocols.field_info import get_tag, list_fields, list_structs

LINES = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text().splitlines()
HEAD = "| field | type | unit | bounds | default | required | |"
KINDS = [("Command", kind) for kind in list_structs(commands.Command)] + [
    ("Reply", kind) for kind in list_structs(replies.Reply)
]


def _lines_of(kind: type[msgspec.Struct]) -> Iterator[str]:
    """The fields as rows of a table, without their meaning."""
    for of_struct in msgspec.structs.fields(kind):
        field = list_fields(kind)[of_struct.encode_name]
        value = of_struct.default
        if of_struct.default_factory is not msgspec.NODEFAULT:
            value = of_struct.default_factory()
        empty = value in (msgspec.NODEFAULT, None, "", [], {}) or isinstance(value, msgspec.Raw)
        default = "" if empty else f"`{msgspec.json.encode(value).decode()}`"
        required = "yes" if of_struct.required else ""
        yield f"| `{field.name}` | {field.type} | {field.unit} | {field.bounds} | {default} | {required} |"


def _section(heading: str) -> list[str]:
    start = LINES.index(heading) + 1
    ends = (at for at in range(start, len(LINES)) if LINES[at].startswith("#"))
    return LINES[start : next(ends, len(LINES))]


@pytest.mark.parametrize(
    ("word", "kind"), KINDS, ids=lambda part: part if isinstance(part, str) else get_tag(part)
)
def test_the_fields_are_those_of_the_struct(word: str, kind: type) -> None:
    rows = [line for line in _section(f"### {word} `{get_tag(kind)}`") if line.startswith("|")]
    wanted = list(_lines_of(kind))
    assert rows[:1] == ([HEAD] if wanted else [])
    described = [row.removesuffix(" |").rpartition(" | ") for row in rows[2:]]
    assert [f"{columns} |" for columns, _, _ in described] == wanted
    assert all(meaning for _, _, meaning in described)


@pytest.mark.parametrize(("word", "union"), [("Command", commands.Command), ("Reply", replies.Reply)])
def test_nothing_is_described_that_there_is_not(word: str, union: UnionType) -> None:
    headings = [line for line in LINES if line.startswith(f"### {word} ")]
    assert headings == [f"### {word} `{get_tag(kind)}`" for kind in list_structs(union)]


@pytest.mark.parametrize(
    ("heading", "names"), [("## Commands", commands.NAMES), ("## Replies", replies.NAMES)]
)
def test_the_overviews_name_all(heading: str, names: tuple[str, ...]) -> None:
    firsts = " ".join(line.split("|")[1] for line in _section(heading) if line.startswith("|"))
    assert all(f"`{name}`" in firsts for name in names)


def test_a_filters_bound_is_the_filters_own() -> None:
    assert f"up to {MAX_FILTER_TEXT:,} characters" in list_fields(commands.Subscribe)["filter"].bounds
