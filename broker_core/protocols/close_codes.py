"""Why a connection ends: the codes with a close number, out of the table of all codes.

On TCP the code stands in the `closing` command before the close; a WebSocket also carries the number.
"""

from __future__ import annotations

from typing import Final

from broker_core.error_codes import CODES, UNKNOWN, error_code_entry

CLOSE_CODES: Final = {code: entry.close for code, entry in CODES.items() if entry.close is not None}
"""WebSocket close numbers by code."""
OTHER: Final = UNKNOWN.close or 0
"""The number for a code that isn't in the table."""

_BY_NUMBER: Final = {number: code for code, number in CLOSE_CODES.items()}


def close_number(code: str) -> int:
    return CLOSE_CODES.get(code, OTHER)


def code_from_close_number(number: int) -> str | None:
    """The error code of a WebSocket close number, None when it isn't one of ours."""
    return _BY_NUMBER.get(number)


def is_permanent(code: str) -> bool:
    """Whether a connection that ended with this code ends again each time, so that coming back is pointless."""
    return code in CLOSE_CODES and not error_code_entry(code).retry_advice


def reconnect_after_ms(code: str) -> int | None:
    """When a client whose connection ended with this code may come back; None when that is pointless."""
    return error_code_entry(code).retry_after_ms if code in CLOSE_CODES else None
