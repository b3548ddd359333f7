r"""A record's headers: what its publisher says of it besides the body, as lines `name:value` with LF at the end of each.

The lines are those of STOMP 1.2, escaped (`\n` `\r` `\c` `\\`), so that a delivery over STOMP joins them as they are. A record
that was published natively has none.
"""

from __future__ import annotations

from collections.abc import Iterable

_ESCAPED = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", ":": "\\c"})
_PLAIN = {"n": "\n", "r": "\r", "c": ":", "\\": "\\"}


def escape(text: str) -> str:
    """A name or a value as it stands in a line."""
    return text if text.isalnum() else text.translate(_ESCAPED)


def unescape(text: str, known: str = "nrc\\") -> str:
    """The name or value that stands so in a line. ValueError for an escape that isn't one of the `known`."""
    if "\\" not in text:
        return text
    # A run of backslashes begins where an escape does, so the first two of it are one. What is left between is looked for at once.
    parts = text.split("\\\\") if "\\" in known else [text]
    for sign in known:
        if sign != "\\":
            parts = [part.replace(f"\\{sign}", _PLAIN[sign]) for part in parts]
    for part in parts:
        at = part.find("\\")
        if at >= 0:
            raise ValueError(part[at : at + 2])
    return "\\".join(parts)


def encode(headers: Iterable[tuple[str, str]]) -> bytes:
    """The lines of these headers."""
    return "".join([f"{escape(name)}:{escape(value)}\n" for name, value in headers]).encode()


def decode(lines: bytes) -> dict[str, str]:
    """The headers in a record's lines; {} when they aren't such lines, as those of a foreign batch may be."""
    found: dict[str, str] = {}
    try:
        for line in lines.decode().split("\n")[:-1]:
            name, colon, value = line.partition(":")
            if not colon:
                return {}
            found.setdefault(unescape(name), unescape(value))
    except ValueError:
        return {}
    return found
