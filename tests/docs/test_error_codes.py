"""The tables of error codes in the documents equal the table in the source, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_core.error_codes import CODES, ErrorAudience, ErrorCode

DOCS = Path(__file__).parents[2] / "docs"


def _again(entry: ErrorCode) -> str:
    if entry.retry_after_ms is None:
        return "no"
    return f"after {entry.retry_after_ms / 1_000:g} s" if entry.retry_after_ms else "immediately"


def _row(code: str, *cells: object) -> str:
    return f"| `{code}` | {' | '.join(str(cell) for cell in cells)} |"


def _of_clients() -> list[str]:
    return [
        _row(code, entry.close or "", _again(entry), entry.meaning)
        for code, entry in CODES.items()
        if ErrorAudience.CLIENT in entry.audience
    ]


def _of_the_library() -> list[str]:
    return [
        _row(code, _again(entry), entry.meaning)
        for code, entry in CODES.items()
        if ErrorAudience.LIBRARY in entry.audience
    ]


def _of_the_api() -> list[str]:
    answered = [(entry.status, code, entry) for code, entry in CODES.items() if entry.status is not None]
    answered.sort(key=lambda one: one[0])
    return [_row(code, int(status), _again(entry), entry.meaning) for status, code, entry in answered]


def _of_operators_alone() -> list[str]:
    return [
        _row(code, _again(entry), entry.meaning)
        for code, entry in CODES.items()
        if ErrorAudience.OPERATOR in entry.audience and entry.status is None
    ]


TABLES = {
    ("protocol.md", "| code | close | again | |"): _of_clients,
    ("client.md", "| code | again | |"): _of_the_library,
    ("api.md", "| code | status | again | |"): _of_the_api,
    ("api.md", "| code | again | |"): _of_operators_alone,
}


def _table(document: str, head: str) -> Iterator[str]:
    lines = (DOCS / document).read_text().splitlines()
    for line in lines[lines.index(head) + 2 :]:
        if not line.startswith("|"):
            return
        yield line


@pytest.mark.parametrize(("document", "head"), TABLES, ids=lambda part: part)
def test_a_table_of_codes_is_the_table_of_codes(document: str, head: str) -> None:
    assert list(_table(document, head)) == TABLES[document, head]()
