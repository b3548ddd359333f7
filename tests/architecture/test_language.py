"""Names and docstrings stay readable: each count has a limit, which a commit may lower and none may raise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support import language

LIMITS = [
    (language.duplicate_classes, 0),
    (language.vague_names, 0),
    (language.vague_functions, 0),
    (language.riddle_docstrings, 0),
    (language.wide_lines, 0),
]


@pytest.mark.parametrize(("find", "limit"), LIMITS, ids=[find.__name__ for find, _ in LIMITS])
def test_no_more_names_docstrings_or_lines_break_the_rules_than_before(
    find: Callable[[], list[str]], limit: int
) -> None:
    found = find()
    assert len(found) <= limit, "\n".join([f"{len(found)} of at most {limit}:", *found[-20:]])
