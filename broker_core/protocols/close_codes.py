"""Close codes: the error codes that end a connection, with their WebSocket close numbers.

On TCP the `closing` command has the code before the close. A WebSocket close also has the number.
"""

from __future__ import annotations

from typing import Final

from broker_core.error_codes import CODES, UNKNOWN, error_code_entry

CLOSE_CODES: Final = {code: entry.close for code, entry in CODES.items() if entry.close is not None}
"""WebSocket close numbers by error code."""
OTHER: Final = UNKNOWN.close or 0
"""Close number for a code that isn't in the table."""

_BY_NUMBER: Final = {number: code for code, number in CLOSE_CODES.items()}


def close_number(code: str) -> int:
    """Return the WebSocket close number of an error code."""
    return CLOSE_CODES.get(code, OTHER)


def code_from_close_number(number: int) -> str | None:
    """Return the error code of a WebSocket close number; None if it isn't one of Sluice's."""
    return _BY_NUMBER.get(number)


def is_permanent(code: str) -> bool:
    """Return whether reconnecting is pointless, because a connection would end with this code each time."""
    return code in CLOSE_CODES and not error_code_entry(code).retry_advice


def reconnect_after_ms(code: str) -> int | None:
    """Return the delay, ms, after which a client may reconnect; None if reconnecting is pointless."""
    return error_code_entry(code).retry_after_ms if code in CLOSE_CODES else None
