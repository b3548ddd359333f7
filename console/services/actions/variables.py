"""`{{NAME}}` in the options of steps, and the variables that each run has. Pure.

An undefined variable expands to nothing. Values are never expanded again. Each run has AMPS_INSTANCE_NAME,
AMPS_DATETIME (ISO 8601, UTC) and AMPS_UNIX_TIMESTAMP, both of the run's start, and AMPS_BYTE_XX, the byte
with two uppercase hexadecimal digits. Trigger and earlier steps add more. Source: AMPS's page Actions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

MAX_CHARACTERS = 65_536
"""Maximum characters of one value. Longer values are cut."""
MAX_VARIABLES = 100
MAX_EXPANDED = 4 * 1024 * 1024
"""Maximum characters of an expanded text, since a template may contain a long value many times."""

_REFERENCE = re.compile(r"\{\{([A-Za-z_][A-Za-z0-9_]{0,99})\}\}")  # a constant, and linear: safe with `re`
_BYTE = "AMPS_BYTE_"
_HEX = frozenset("0123456789ABCDEF")

Variables = Mapping[str, str]


def initial_variables(instance: str, at: datetime, variables: Variables) -> dict[str, str]:
    """Return the variables at a run's start: the trigger's, cut to the limits, overridden by AMPS's."""
    moment = at.astimezone(UTC)
    limited = {name: str(value)[:MAX_CHARACTERS] for name, value in list(variables.items())[:MAX_VARIABLES]}
    return limited | {
        "AMPS_INSTANCE_NAME": instance,
        "AMPS_DATETIME": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "AMPS_UNIX_TIMESTAMP": str(int(moment.timestamp())),
    }


def expand(template: str, variables: Variables) -> str:
    """Return the text with every reference replaced. AMPS_BYTE_XX becomes the character with that number."""

    def replace(found: re.Match[str]) -> str:
        byte = _byte(found[1])
        return variables.get(found[1], "") if byte is None else chr(byte)

    return _REFERENCE.sub(replace, template)[:MAX_EXPANDED]


def expand_bytes(template: str, variables: Variables) -> bytes:
    """Return a message's body in UTF-8 with every reference replaced.

    AMPS_BYTE_XX becomes that single byte.
    """
    parts, end = [], 0
    for found in _REFERENCE.finditer(template):
        byte = _byte(found[1])
        parts.append(template[end : found.start()].encode())
        parts.append(variables.get(found[1], "").encode() if byte is None else bytes([byte]))
        end = found.end()
    parts.append(template[end:].encode())
    return b"".join(parts)[:MAX_EXPANDED]


def expand_options(
    options: Mapping[str, str], variables: Variables, is_excluded: Callable[[str], bool]
) -> dict[str, str]:
    """Return the options expanded, except those that `is_excluded` selects (bodies; see `expand_bytes`)."""
    return {name: text if is_excluded(name) else expand(text, variables) for name, text in options.items()}


def has_reference(text: str) -> bool:
    """Whether a text contains a reference to a variable."""
    return _REFERENCE.search(text) is not None


def _byte(name: str) -> int | None:
    """Return the byte of a variable AMPS_BYTE_XX, or None for any other name."""
    digits = name[len(_BYTE) :]
    return (
        int(digits, 16) if name.startswith(_BYTE) and len(digits) == 2 and _HEX.issuperset(digits) else None
    )
