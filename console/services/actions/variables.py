"""`{{NAME}}` in the options of steps, and the variables every run has. Pure.

An undefined name becomes nothing; what a value contains is never expanded again. Always there: AMPS_INSTANCE_NAME,
AMPS_DATETIME (ISO 8601, UTC) and AMPS_UNIX_TIMESTAMP, both of the moment the run begins, and AMPS_BYTE_XX, the byte of two
uppercase hexadecimal digits. The trigger and earlier steps add theirs. Source: AMPS's page Actions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

MAX_CHARACTERS = 65_536
"""Of one value; longer ones are cut."""
MAX_VARIABLES = 100
MAX_EXPANDED = 4 * 1024 * 1024
"""Characters of an expanded text: a template may name a long value many times."""

_REFERENCE = re.compile(r"\{\{([A-Za-z_][A-Za-z0-9_]{0,99})\}\}")  # ours, and linear
_BYTE = "AMPS_BYTE_"
_HEX = frozenset("0123456789ABCDEF")

Variables = Mapping[str, str]


def initial_variables(instance: str, at: datetime, given: Variables) -> dict[str, str]:
    """The variables a run begins with: what its trigger gave, and AMPS's own, which can't be replaced."""
    moment = at.astimezone(UTC)
    kept = {name: str(value)[:MAX_CHARACTERS] for name, value in list(given.items())[:MAX_VARIABLES]}
    return kept | {
        "AMPS_INSTANCE_NAME": instance,
        "AMPS_DATETIME": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "AMPS_UNIX_TIMESTAMP": str(int(moment.timestamp())),
    }


def expand(template: str, variables: Variables) -> str:
    """The text with every reference replaced; AMPS_BYTE_XX is the character of that number."""

    def replace(found: re.Match[str]) -> str:
        byte = _byte(found[1])
        return variables.get(found[1], "") if byte is None else chr(byte)

    return _REFERENCE.sub(replace, template)[:MAX_EXPANDED]


def expand_bytes(template: str, variables: Variables) -> bytes:
    """The same for a message's body: UTF-8, with AMPS_BYTE_XX as that very byte."""
    parts, end = [], 0
    for found in _REFERENCE.finditer(template):
        byte = _byte(found[1])
        parts.append(template[end : found.start()].encode())
        parts.append(variables.get(found[1], "").encode() if byte is None else bytes([byte]))
        end = found.end()
    parts.append(template[end:].encode())
    return b"".join(parts)[:MAX_EXPANDED]


def expand_all(
    options: Mapping[str, str], variables: Variables, leave: Callable[[str], bool]
) -> dict[str, str]:
    """Every option expanded, but those that `leave` names (bodies, whose bytes count)."""
    return {name: text if leave(name) else expand(text, variables) for name, text in options.items()}


def has_reference(text: str) -> bool:
    """Whether a text names any variable."""
    return _REFERENCE.search(text) is not None


def _byte(name: str) -> int | None:
    digits = name[len(_BYTE) :]
    return (
        int(digits, 16) if name.startswith(_BYTE) and len(digits) == 2 and _HEX.issuperset(digits) else None
    )
