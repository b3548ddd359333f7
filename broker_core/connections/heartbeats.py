"""Heartbeats: the intervals in which client and broker agreed at the logon to send something.

Most connections are checked together, once a second. That is too seldom for an interval of less than two
seconds: such a connection has its own timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from broker_core.connections.connection_view import ConnectionView
from broker_core.protocols import replies
from broker_core.protocols.liveness import FRAME_GRACE_MS

FAST_MS: Final = 2_000
"""Interval below which a check once a second is too seldom, ms."""
SLACK_MS: Final = 1_000
"""Additional time, ms, beyond twice the interval before a silent peer is closed."""


def needs_own_timer(connection: ConnectionView) -> bool:
    """Return whether the common check is too seldom for a connection."""
    return 0 < _shortest_interval_ms(connection) < FAST_MS


def _shortest_interval_ms(connection: ConnectionView) -> int:
    """Return the shorter one of both agreed intervals, ms; 0: there is none."""
    return min(filter(None, (connection.broker_heartbeat_ms, connection.client_heartbeat_ms)), default=0)


def check_heartbeat(connection: ConnectionView, now: int, next_check_ms: int) -> None:
    """Send a heartbeat if it is due, or close a peer that is silent or doesn't end its frame.

    A heartbeat is due if it would be late at the next check, in `next_check_ms`, which may be a quarter late
    itself.

    Bytes are signs of life in both directions: those that were received, and sent ones that the peer's kernel
    acknowledged. A pause of the broker itself doesn't count as silence. While older bytes wait to be sent, a
    heartbeat would arrive no sooner than they do, so none is sent.
    """
    life, sink = connection.liveness, connection.sink
    life.note_check(now, next_check_ms)
    broker_ms, client_ms = connection.broker_heartbeat_ms, connection.client_heartbeat_ms
    if connection.is_reading:
        life.note_read(now, sink.read_progress())
    else:
        life.restart(now)
    if client_ms and life.is_silent(now, client_ms // 2):  # asking the kernel earlier would change nothing
        life.note_written(now, sink.written_bytes, sink.acked_bytes())
    if client_ms and life.is_silent(now, client_ms, SLACK_MS):
        silent_ms = now - life.last_alive_at
        connection.close(
            "heartbeat_timeout",
            f"No byte came for {silent_ms} ms, and none of ours was acknowledged.",
            f"Send something at least every {client_ms} ms, as announced in the logon.",
        )
    elif life.is_frame_overdue(now):
        connection.close(
            "frame_timeout",
            f"A frame was not whole after {FRAME_GRACE_MS // 1_000} s and a second for each KiB of it.",
            "Send smaller frames, or use a faster line.",
        )
    elif (
        broker_ms and now - connection.last_sent_at >= broker_ms - next_check_ms * 5 // 4 and sink.is_flushed
    ):
        connection.reply(replies.BrokerHeartbeat())


def start_heartbeat(connection: ConnectionView, monotonic_ms: Callable[[], int]) -> None:
    """Start a timer after the logon if the agreed interval is too short for the common check."""
    if not needs_own_timer(connection):
        return
    pause = _shortest_interval_ms(connection) // 2

    def send_and_rearm() -> None:
        if not connection.is_closed:
            check_heartbeat(connection, monotonic_ms(), pause)
            loop.call_later(pause / 1_000, send_and_rearm)

    loop = asyncio.get_running_loop()
    loop.call_later(pause / 1_000, send_and_rearm)
