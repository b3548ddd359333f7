"""What a connection and its broker promised each other at the logon: to say something at least so often.

Most are looked at with everybody else, once a second. That is too seldom for a promise of less than two seconds: such a
connection has a timer of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from broker_core.connections.member import Member
from broker_core.protocols import replies

FAST_MS: Final = 2_000
"""A shorter promise isn't kept by a look once a second."""
SLACK_MS: Final = 1_000
"""A peer may be so much later than twice what it promised."""


def has_timer(connection: Member) -> bool:
    """Whether the common look is too seldom for it."""
    return 0 < _shortest(connection) < FAST_MS


def _shortest(connection: Member) -> int:
    """Of what both promised; 0: nothing."""
    return min(filter(None, (connection.heartbeat_ms, connection.promised_ms)), default=0)


def look(connection: Member, now: int, next_look_ms: int) -> None:
    """Say something if the promise would be broken before the next look; end a connection that has broken its own."""
    says, hears = connection.heartbeat_ms, connection.promised_ms
    silent = now - connection.heard_at
    if hears and silent > 2 * hears + SLACK_MS:
        connection.close("heartbeat_timeout", f"Nothing was heard for {silent} ms.")
    elif says and now - connection.spoke_at > says - next_look_ms:
        connection.reply(replies.Heartbeat())


def begin(connection: Member, monotonic_ms: Callable[[], int]) -> None:
    """After the logon: keep a promise that is too short for the common look."""
    if not has_timer(connection):
        return
    pause = _shortest(connection) // 2

    def turn() -> None:
        if not connection.closed:
            look(connection, monotonic_ms(), pause)
            loop.call_later(pause / 1_000, turn)

    loop = asyncio.get_running_loop()
    loop.call_later(pause / 1_000, turn)
