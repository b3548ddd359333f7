"""What a connection and its broker promised each other at the logon: to say something at least so often.

Most are looked at with everybody else, once a second. That is too seldom for a promise of less than two seconds: such a
connection has a timer of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from broker_core.connections.connection_view import ConnectionView
from broker_core.protocols import replies
from broker_core.protocols.liveness import FRAME_GRACE_MS

FAST_MS: Final = 2_000
"""A shorter promise isn't kept by a look once a second."""
SLACK_MS: Final = 1_000
"""A peer may be so much later than twice what it promised."""


def needs_own_timer(connection: ConnectionView) -> bool:
    """Whether the common look is too seldom for it."""
    return 0 < _shortest(connection) < FAST_MS


def _shortest(connection: ConnectionView) -> int:
    """Of what both promised; 0: nothing."""
    return min(filter(None, (connection.heartbeat_ms, connection.promised_ms)), default=0)


def check_heartbeat(connection: ConnectionView, now: int, next_look_ms: int) -> None:
    """Send a heartbeat that would be late at the next look; close a silent peer, or one whose frame does not
    end.

    Bytes are signs of life in both directions: those that came, and those of ours that the peer's kernel
    acknowledged. While older bytes wait in front of it a heartbeat would arrive no sooner than they do, so
    none is sent.
    """
    life, sink = connection.liveness, connection.sink
    says, hears = connection.heartbeat_ms, connection.promised_ms
    if connection.is_reading:
        life.note_read(now, sink.read_progress())
    else:
        life.restart(now)
    if hears and life.is_silent(now, hears // 2):  # sooner it makes no difference
        life.note_written(now, sink.written_bytes, sink.acked_bytes())
    if hears and life.is_silent(now, hears, SLACK_MS):
        silent_ms = now - life.heard_at
        connection.close(
            "heartbeat_timeout",
            f"No byte came for {silent_ms} ms, and none of ours was acknowledged.",
            f"Send something at least every {hears} ms, as the logon promised.",
        )
    elif life.is_frame_overdue(now):
        connection.close(
            "frame_timeout",
            f"A frame was not whole after {FRAME_GRACE_MS // 1_000} s and a second for each KiB of it.",
            "Send smaller frames, or use a faster line.",
        )
    elif says and now - connection.spoke_at > says - next_look_ms and sink.is_flushed:
        connection.reply(replies.BrokerHeartbeat())


def start_heartbeat(connection: ConnectionView, monotonic_ms: Callable[[], int]) -> None:
    """After the logon: keep a promise that is too short for the common look."""
    if not needs_own_timer(connection):
        return
    pause = _shortest(connection) // 2

    def turn() -> None:
        if not connection.is_closed:
            check_heartbeat(connection, monotonic_ms(), pause)
            loop.call_later(pause / 1_000, turn)

    loop = asyncio.get_running_loop()
    loop.call_later(pause / 1_000, turn)
