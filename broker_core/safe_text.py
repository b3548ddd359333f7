"""Escaping of external text for terminals, logs, JSON lines, CSV cells and mail headers.

A body, a name or a reason may contain newlines, escape sequences and beginnings of spreadsheet formulas.
Newlines forge records of line-oriented output, and escape sequences control a terminal. All code that prints,
logs or exports such text must use this module.
"""

from __future__ import annotations

import csv
import io
import logging
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TextIO

import orjson

_CONTROLS: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
"""Characters that must be escaped in text.

C0, DEL and C1 controls, line and paragraph separators, marks that reorder or annotate text, byte-order marks,
and halves of surrogate pairs.
"""
_LETTERS: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_JSON_CONTROLS: Final = re.compile(
    rb"[\x00-\x1f\x7f]|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xaf]"
    rb"|\xef\xbb\xbf|\xef\xbf[\xb9-\xbb]"
)
"""The same characters in UTF-8, as valid JSON may contain them."""
_FORMULA: Final = re.compile(r"[\t\r]|\s*[=+\-@\uff1d\uff0b\uff0d\uff20]")
"""Beginnings of a cell that spreadsheets take for a formula.

Some spreadsheets ignore leading whitespace, and some accept full-width signs.
"""
_LATER_FORMULA: Final = re.compile(r";(?=\s*[=+\-@\uff1d\uff0b\uff0d\uff20])")
"""Formula after a semicolon.

Spreadsheets whose list separator is a semicolon, as in German, split cells there, quoted or not.
"""
_INDENT: Final = "  "


def escape_line(text: str) -> str:
    r"""Return a text as one line without control characters: a newline becomes `\n`, ESC becomes `\x1b`."""
    return text if text.isascii() and text.isprintable() else _CONTROLS.sub(_escape_match, text)


def escape_bytes(body: bytes) -> bytes:
    r"""Return a body as one line for a terminal. Bytes that are not UTF-8 become `\x…`."""
    return escape_line(body.decode(errors="backslashreplace")).encode()


def escape_block(text: str) -> str:
    """Return a text of several lines, each escaped.

    Lines after the first are indented, so that none can be mistaken for a record.
    """
    return f"\n{_INDENT}".join(map(escape_line, text.rstrip("\n").split("\n")))


def escape_json(text: bytes) -> bytes:
    r"""Return valid JSON as one line.

    Whitespace outside strings becomes a space, and control characters in strings become `\u…`.
    """
    return _JSON_CONTROLS.sub(_escape_json_match, text) if _JSON_CONTROLS.search(text) else text


def to_json_line(document: Any) -> bytes:
    """Return a value as one line of JSON, with a newline. A `Fragment` in it must be valid JSON."""
    return escape_json(orjson.dumps(document, default=str)) + b"\n"


def to_csv_cell(value: Any) -> Any:
    r"""Return the content of one CSV cell.

    None becomes "", numbers and booleans are unchanged, nested values become JSON, and other values one line
    of text.

    Formulas are defused by an apostrophe, also after a semicolon. In JSON the semicolon becomes `\u003b`.
    """
    if value is None or isinstance(value, bool | int | float):
        return "" if value is None else value
    if isinstance(value, dict | list | tuple):
        document = escape_json(orjson.dumps(value, default=str)).decode()
        return _LATER_FORMULA.sub(r"\\u003b", document)
    text = str(value)
    line = _LATER_FORMULA.sub(";'", escape_line(text))
    return f"'{line}" if _FORMULA.match(text) else line


def to_csv(rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as CSV, one line each."""
    text = io.StringIO()
    csv.writer(text).writerows([to_csv_cell(value) for value in row] for row in rows)
    return text.getvalue()


def to_mail_header(text: str, max_characters: int = 150) -> str:
    """Return a text as a mail header: one line of at most `max_characters` characters, with single spaces."""
    return escape_line(" ".join(text.split()))[:max_characters]


def print_line(text: str, stream: TextIO | None = None, *, flush: bool = True) -> None:
    """Print one escaped line to standard output or another stream."""
    print(escape_line(text), file=stream or sys.stdout, flush=flush)


def print_block(text: str, stream: TextIO | None = None) -> None:
    """Print several lines of trusted text, each escaped."""
    for line in text.split("\n"):
        print_line(line, stream)


def write_bytes(line: bytes) -> None:
    """Write a line to standard output and flush it. The caller must have escaped it for its destination."""
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def escape_event(logger: object, method: str, event: Mapping[str, Any]) -> dict[str, Any]:
    """Escape the keys and values of a log event, as a processor of structlog."""
    return {escape_line(key): _event_value(value) for key, value in event.items()}


class EscapingFormatter(logging.Formatter):
    """Logging formatter that writes a record as one escaped line, and a traceback as indented lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return escape_line(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return _INDENT + escape_block(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _INDENT + escape_block(super().formatStack(stack_info))


def _event_value(value: Any) -> Any:
    if isinstance(value, bool | int | float) or value is None:
        return value
    if isinstance(value, tuple | BaseException):
        return value  # exc_info: its formatter escapes it
    return escape_line(value if isinstance(value, str) else repr(value))


def _escape_match(found: re.Match[str]) -> str:
    character = found[0]
    code = ord(character)
    return _LETTERS.get(character) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def _escape_json_match(found: re.Match[bytes]) -> bytes:
    if found[0] in b"\t\n\r":
        return b" "
    return b"\\u%04x" % ord(found[0].decode())
