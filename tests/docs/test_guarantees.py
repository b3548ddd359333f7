"""Each test named in docs/guarantees.md exists, and each guarantee names a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)))
TABLES = PAGE.partition("## How it is tried")[0]
PROMISES = [
    line.split(" | ") for line in TABLES.splitlines() if line.startswith("| ") and "| promise |" not in line
]


def test_there_are_promises() -> None:
    assert len(PROMISES) > 20 and len(NAMED) > 30


@pytest.mark.parametrize(("path", "test"), NAMED)
def test_what_would_catch_a_breach_exists(path: str, test: str) -> None:
    source = (ROOT / path).read_text(encoding="utf-8")
    assert not test or re.search(rf"^(async )?def {test}\(", source, re.MULTILINE)


@pytest.mark.parametrize("row", PROMISES, ids=lambda row: row[0][2:60])
def test_each_promise_names_what_would_catch_its_breach(row: list[str]) -> None:
    promise, rests_on, caught_by = row
    assert len(promise) > 10 and len(rests_on) > 10
    assert re.search(r"`tests/[\w/]+\.py::test_\w+`", caught_by)
