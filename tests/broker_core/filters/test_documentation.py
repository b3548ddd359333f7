"""Examples of docs/filters.md; each is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from broker_core.errors import ClientError
from broker_core.filters import compile_filter, parser, tokens
from broker_core.filters.compiler import compile_value
from broker_core.filters.parser import parse
from broker_core.subscriptions import TopicPattern

PAGE = (Path(__file__).parents[3] / "docs" / "filters.md").read_text()
WORDS = {"TRUE": True, "FALSE": False, "NULL": None}


def blocks(kind: str) -> list[str]:
    """The lines of all fenced blocks of a kind."""
    lines: list[str] = []
    inside = False
    for line in PAGE.splitlines():
        if line.startswith("```"):
            inside = line == f"```{kind}"
        elif inside:
            lines.append(line)
    return lines


def examples(kind: str) -> list[tuple[str, str]]:
    return [(left.strip(), right.strip()) for left, right in (line.split("→") for line in blocks(kind))]


MESSAGE: Any = json.loads("\n".join(blocks("json")))


@pytest.mark.parametrize(("text", "result"), examples("filter"))
def test_an_example_yields_what_the_page_says(text: str, result: str) -> None:
    expected = WORDS[result] if result in WORDS else json.loads(result)
    assert compile_value(parse(text))(MESSAGE) == expected
    assert compile_filter(text).matches_object(MESSAGE) is bool(expected)


@pytest.mark.parametrize(("text", "where"), examples("filter-error"))
def test_an_error_points_where_the_page_says(text: str, where: str) -> None:
    place, sentence = where.split(": ", 1)
    with pytest.raises(ClientError) as caught:
        compile_filter(text)
    assert caught.value.code == "bad_filter"
    assert caught.value.details["column"] == int(place.removeprefix("column "))
    assert caught.value.sentence.startswith(sentence)


@pytest.mark.parametrize(("line", "answer"), examples("topics"))
def test_a_topic_pattern_stands_for_what_the_page_says(line: str, answer: str) -> None:
    pattern, topic = line.split()
    assert TopicPattern.parse(pattern).matches(topic) is (answer == "yes")


@pytest.mark.parametrize(
    ("words", "limit"),
    [
        ("characters of a filter", tokens.MAX_FILTER_TEXT),
        ("parentheses, NOT and minus inside one another", parser.MAX_NESTING),
        ("steps of one field", tokens.MAX_STEPS),
        ("LIKE patterns in a filter", parser.MAX_PATTERNS),
    ],
)
def test_the_page_states_the_limits_that_hold(words: str, limit: int) -> None:
    assert f"| {words} | {limit} |" in PAGE


def test_the_page_has_examples_of_each_kind() -> None:
    assert len(examples("filter")) > 50
    assert examples("filter-error")
    assert examples("topics")
