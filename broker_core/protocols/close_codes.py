"""Why a connection ends: one table of codes, WebSocket close numbers, and whether to come back.

On TCP the code stands in the `closing` command before the close; a WebSocket also carries the number. Numbers are
never reused: 40xx the peer's frames, 41xx logon, 42xx acted on by a policy or an operator, 43xx the broker's own.
"""

from __future__ import annotations

from typing import NamedTuple


class CloseCode(NamedTuple):
    """A code's number on WebSockets, and whether a client that comes back can expect better."""

    number: int
    reconnect: bool


CLOSE_CODES: dict[str, CloseCode] = {
    "bad_frame": CloseCode(4000, False),
    "frame_too_large": CloseCode(4001, False),
    "bad_batch": CloseCode(4002, False),
    "bad_command": CloseCode(4003, False),
    "unknown_command": CloseCode(4004, False),
    "not_logged_on": CloseCode(4100, False),
    "bad_logon": CloseCode(4101, False),
    "bad_client_name": CloseCode(4102, False),
    "name_taken": CloseCode(4103, False),
    "logon_timeout": CloseCode(4104, True),
    "heartbeat_timeout": CloseCode(4105, True),
    "too_many_attempts": CloseCode(4106, True),
    "too_many_logons": CloseCode(4107, True),
    "access_changed": CloseCode(4108, True),
    "transport_closed": CloseCode(4109, True),
    "client_replaced": CloseCode(4200, False),
    "slow_client_disk": CloseCode(4201, True),
    "slow_client_capacity": CloseCode(4202, True),
    "slow_client_age": CloseCode(4203, True),
    "operator_disconnect": CloseCode(4204, True),
    "too_many_connections": CloseCode(4205, True),
    "slow_client_pool_memory": CloseCode(4206, True),
    "slow_client_memory_capacity": CloseCode(4207, True),
    "slow_client_backlog": CloseCode(4208, True),
    "slow_client_conflation": CloseCode(4209, True),
    "slow_client_drain_rate": CloseCode(4210, True),
    "slow_client_write_blocked": CloseCode(4211, True),
    "slow_client_window_full": CloseCode(4212, True),
    "slow_client_unacked": CloseCode(4213, True),
    "slow_client_ack_silence": CloseCode(4214, True),
    "slow_client_resource_error": CloseCode(4215, True),
    "name_refused": CloseCode(4216, True),
    "shutting_down": CloseCode(4300, True),
    "journal_failed": CloseCode(4301, True),
    "disk_full": CloseCode(4302, True),
    "internal_error": CloseCode(4303, True),
}
OTHER = CloseCode(4999, True)
"""For a code that isn't in the table, as from a newer broker."""

_BY_NUMBER = {entry.number: code for code, entry in CLOSE_CODES.items()}


def close_code(code: str) -> CloseCode:
    """The number and reconnect hint of an error code."""
    return CLOSE_CODES.get(code, OTHER)


def code_of(number: int) -> str | None:
    """The error code of a WebSocket close number, None when it isn't one of ours."""
    return _BY_NUMBER.get(number)
