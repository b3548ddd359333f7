r"""Headers of a record: properties that its publisher sends beside the body.

They are stored as lines `name:value`, each ended by LF. The lines are those of STOMP 1.2, with its escapes
(`\n` `\r` `\c` `\\`), so that a delivery over STOMP sends them unchanged. A record that was published with
the native protocol has no headers.
"""

from __future__ import annotations

from collections.abc import Iterable

_ESCAPED = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r", ":": "\\c"})
_PLAIN = {"n": "\n", "r": "\r", "c": ":", "\\": "\\"}


def escape(text: str) -> str:
    """Return a name or value with the escapes of a header line."""
    return text if text.isalnum() else text.translate(_ESCAPED)


def unescape(text: str, known: str = "nrc\\") -> str:
    """Return the name or value of an escaped text.

    `known` lists the characters that may follow a backslash.

    Raises:
        ValueError: Another escape occurs.
    """
    if "\\" not in text:
        return text
    # Backslashes pair up from the left, so split at escaped backslashes first, then replace the other escapes
    # in the remaining parts.
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
    """Return the lines of these headers."""
    return "".join([f"{escape(name)}:{escape(value)}\n" for name, value in headers]).encode()


def decode(lines: bytes) -> dict[str, str]:
    """Return the headers of a record's lines.

    Of several headers with one name, the first counts. Returns {} for invalid lines, which a foreign batch
    may have.
    """
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
