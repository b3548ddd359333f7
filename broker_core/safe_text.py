"""The one place where text from outside is made safe for a terminal, a log, a line of JSON, a CSV cell or a
mail header.

A body, a name or a reason may hold newlines, which forge records of line-oriented output, escape sequences,
which drive a terminal, and the first characters of a formula. Everything that prints, logs or exports goes
through here.
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
"""C0, DEL and C1, line and paragraph separators, marks that reorder or annotate text, byte-order marks, and
halves of surrogate pairs."""
_LETTERS: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_JSON_CONTROLS: Final = re.compile(
    rb"[\x00-\x1f\x7f]|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xaf]"
    rb"|\xef\xbb\xbf|\xef\xbf[\xb9-\xbb]"
)
_FORMULA: Final = re.compile(r"[\t\r]|\s*[=+\-@\uff1d\uff0b\uff0d\uff20]")
"""A spreadsheet takes a cell that begins so for a formula. Some leave out whitespace first, and some read
full-width signs."""
_LATER_FORMULA: Final = re.compile(r";(?=\s*[=+\-@\uff1d\uff0b\uff0d\uff20])")
"""Spreadsheets whose list separator is a semicolon, as in German, split cells there, quoted or not."""
_INDENT: Final = "  "


def escape_line(text: str) -> str:
    """Return a text as one line without control characters: a newline is shown as `\\n`, ESC as `\\x1b`."""
    return text if text.isascii() and text.isprintable() else _CONTROLS.sub(_escaped, text)


def escape_bytes(body: bytes) -> bytes:
    """Return a body as one line for a terminal; bytes that aren't UTF-8 are shown as `\\x…`."""
    return escape_line(body.decode(errors="backslashreplace")).encode()


def escape_block(text: str) -> str:
    """Return a text of several lines, each escaped.

    Lines after the first are indented, so that none looks like a record.
    """
    return f"\n{_INDENT}".join(map(escape_line, text.rstrip("\n").split("\n")))


def escape_json(text: bytes) -> bytes:
    """Return valid JSON as one line: whitespace outside strings is a space, control characters in strings are
    `\\u…`."""
    return _JSON_CONTROLS.sub(_escaped_json, text) if _JSON_CONTROLS.search(text) else text


def to_json_line(document: Any) -> bytes:
    """Return a value as one line of JSON, with its newline. A `Fragment` in it must be valid JSON."""
    return escape_json(orjson.dumps(document, default=str)) + b"\n"


def to_csv_cell(value: Any) -> Any:
    """Return one CSV cell: None is empty, nested values are JSON, texts are one line and no formula.

    A formula behind a semicolon is defused too: by an apostrophe; in JSON the semicolon becomes `\\u003b`.
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
    """Return rows as CSV, each on a line of its own."""
    text = io.StringIO()
    csv.writer(text).writerows([to_csv_cell(value) for value in row] for row in rows)
    return text.getvalue()


def to_mail_header(text: str, most: int = 150) -> str:
    """Return a text as a mail header: one line, spaces for whitespace, at most so many characters."""
    return escape_line(" ".join(text.split()))[:most]


def say(text: str, stream: TextIO | None = None, *, flush: bool = True) -> None:
    """Print one line, escaped, to standard output or to another stream."""
    print(escape_line(text), file=stream or sys.stdout, flush=flush)


def say_block(text: str, stream: TextIO | None = None) -> None:
    """Print several lines of a text of our own, each escaped."""
    for line in text.split("\n"):
        say(line, stream)


def write_bytes(line: bytes) -> None:
    """Write a line of data that was made safe for where it goes, and flush it."""
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def escape_event(logger: object, method: str, event: Mapping[str, Any]) -> dict[str, Any]:
    """Escape the texts of a log event, as a processor of structlog."""
    return {escape_line(key): _event_value(value) for key, value in event.items()}


class EscapingFormatter(logging.Formatter):
    """Formats a record of the standard library's logging as one line, and a traceback as indented lines."""

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
        return value  # exc_info, which its formatter escapes
    return escape_line(value if isinstance(value, str) else repr(value))


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    code = ord(character)
    return _LETTERS.get(character) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def _escaped_json(found: re.Match[bytes]) -> bytes:
    if found[0] in b"\t\n\r":
        return b" "
    return b"\\u%04x" % ord(found[0].decode())
