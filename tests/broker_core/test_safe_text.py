"""Text from outside, wherever it leaves: one record a line, no control characters, no formulas."""

from __future__ import annotations

import csv
import io
import json
import logging
import subprocess
import sys
import unicodedata
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core import safe_text
from broker_core.safe_text import (
    EscapingFormatter,
    escape_block,
    escape_bytes,
    escape_event,
    escape_json,
    escape_line,
    to_csv,
    to_csv_cell,
    to_json_line,
    to_mail_header,
)

ATTACK = "\ufeff\u200f\u061c\x1b]0;owned\x07\x1b[2J\r\n2026-11-28 INFO forged\u2028\u202e\x9b31m\x7f"
BAD = {"Cc", "Zl", "Zp", "Cs"}
REORDERING = {"LRE", "LRO", "RLE", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
INVISIBLE = "\u061c\u200e\u200f\ufeff\ufff9\ufffa\ufffb"
WHITESPACE = st.text(" \t\n\r", max_size=3)


def is_safe(text: str) -> bool:
    return not any(
        unicodedata.category(one) in BAD or unicodedata.bidirectional(one) in REORDERING or one in INVISIBLE
        for one in text
    )


@given(st.text(st.characters(exclude_categories=[])))
def test_a_line_holds_no_control_character_and_harmless_text_stays(text: str) -> None:
    assert is_safe(escape_line(text))
    if text.isprintable():
        assert escape_line(text) == text
    block = escape_block(text).split("\n")
    assert all(map(is_safe, block)) and all(line.startswith("  ") for line in block[1:])
    assert is_safe(to_mail_header(text)) and len(to_mail_header(text)) <= 150


@given(st.binary())
def test_a_body_of_any_bytes_is_one_line(body: bytes) -> None:
    assert is_safe(escape_bytes(body).decode())


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(VALUES, st.booleans(), WHITESPACE)
def test_json_becomes_one_line_with_the_same_value(value: object, ascii_only: bool, around: str) -> None:
    text = f"{around}{json.dumps(value, ensure_ascii=ascii_only, indent=1)}{around}".encode()
    line = escape_json(text)
    assert is_safe(line.decode())
    assert orjson.loads(line) == value
    whole = to_json_line({"data": orjson.Fragment(text)})
    assert whole.count(b"\n") == 1 and whole.endswith(b"\n")
    assert orjson.loads(whole) == {"data": value}


@given(st.lists(st.lists(VALUES, min_size=1, max_size=3), max_size=4))
def test_csv_has_one_line_a_row_and_no_formulas(rows: list[list[object]]) -> None:
    text = to_csv(rows)
    assert len(text.splitlines()) == len(rows)
    for row in csv.reader(io.StringIO(text)):
        for cell in row:
            assert is_safe(cell)
            if cell.lstrip().startswith(("=", "+", "@", "-")):
                int(cell)  # a number


@pytest.mark.parametrize(
    "text",
    ["=1+1", "+1", "-cmd", "@SUM(A1)", "\t=1", "\r=1", " =1", "\u00a0=1", "\n =1", "\u3000@x", "\uff1d1+1"],
)
def test_a_formula_is_a_text(text: str) -> None:
    assert str(to_csv_cell(text)).startswith("'")


@pytest.mark.parametrize("text", ["x;=2+5", "x; =1", "a;b;@SUM(1)", ";;-1", "x;\uff1d1", "1;\u3000+1"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_formula_behind_a_semicolon_is_a_text(text: str, nested: bool) -> None:
    """Spreadsheets with a semicolon as list separator split there, also within earlier quotes."""
    cell = str(to_csv_cell({"data": text} if nested else text))
    assert not any(part.lstrip().startswith(tuple("=+-@\uff1d")) for part in cell.split(";")), cell
    if nested:
        assert orjson.loads(cell) == {"data": text}


def test_a_log_record_is_one_line_and_a_traceback_is_indented() -> None:
    formatter = EscapingFormatter("{levelname} {name}: {message}", style="{")
    try:
        raise ValueError(ATTACK)
    except ValueError:
        record = logging.LogRecord("web\n", logging.INFO, "", 1, "%s", (ATTACK,), sys.exc_info())
    first, *rest = formatter.format(record).split("\n")
    assert first.startswith("INFO web\\n: \\ufeff\\u200f\\u061c\\x1b") and is_safe(first)
    assert rest and all(line.startswith("  ") and is_safe(line) for line in rest)


def test_a_brokers_log_holds_no_newline_of_a_client(tmp_path: Path) -> None:
    code = (
        "import structlog, sys; from broker_core import logs; logs.install_logging();"
        "log = structlog.get_logger('t'); attack = sys.argv[1];"
        "log.warning('refused', client=attack, many=[attack], n=1)\n"
        "try: raise ValueError(attack)\n"
        "except ValueError: log.exception('failed', why=attack)\n"
        "logs.flush_logs()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, ATTACK.replace("\0", "")], capture_output=True, timeout=120, check=True
    )
    lines = done.stdout.decode().split("\n")
    assert all(map(is_safe, lines))
    assert not any(line.startswith("2026-11-28 INFO forged") for line in lines)
    assert "\\x1b]0;owned" in lines[0]


def test_events_keep_their_numbers() -> None:
    assert escape_event(None, "info", {"event": "a\nb", "n": 3, "x": [1]}) == {
        "event": "a\\nb",
        "n": 3,
        "x": "[1]",
    }


def test_what_is_said_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    safe_text.print_line(ATTACK)
    assert is_safe(capsys.readouterr().out.removesuffix("\n"))
