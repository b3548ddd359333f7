"""Watchdog for clients that could be sent their backlog, but are not.

Such a standstill is a defect of the broker, never of the client. Each delivery waits for a signal: the socket
is writable, a window has a free slot, a chunk was read, an interval has ended. If a signal is lost, or a task
has died, the client waits forever. So each client is checked once a second:

    outbox, queues  A message waits, the socket is writable, and its queue is not paused and has a free
                    slot in its window and credit.
    spool           The client can be sent more than waits in memory, and is not live.
    log             A subscription reads the log, its client and its rate allow sending, and more can be
                    read; or nothing more can be read and it is not live.
    conflation      A live subscription holds messages back and no timer releases them.

A client that is in such a state at SAMPLES checks, without any movement between them, is at a standstill. The
watchdog logs everything known about it, counts it, and repeats the signals that may have been lost. Besides
the time, the number of checks counts, because a blocked event loop moves no client.

A wait for the reader thread or for a slot among replays is no lost signal, however long it takes. While these
are at work, a standstill is reported after MAX_PATIENCE_MS; otherwise PATIENCE_MS after they became idle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import structlog

from broker_core.connections.connection_view import ConnectionView
from broker_core.delivery.account import list_account_volumes
from broker_core.delivery.lifecycle import ClientState
from broker_core.delivery.ports import InstanceResources
from broker_core.replay.client_subscription import ClientSubscription
from broker_core.replay.cursor import DurableFrontier

STANDSTILL_MS: Final = 2_000
"""Minimum duration of a standstill, counted from when shared resources are idle."""
MAX_STANDSTILL_MS: Final = 60_000
"""Duration after which a standstill is reported even while shared resources are at work."""
MIN_CHECKS: Final = 3
"""Minimum checks without movement."""
log = structlog.get_logger("sluice.watchdog")


@dataclass(slots=True)
class _StallCandidate:
    """Client without movement since `since_ms` (monotonic ms).

    `counters` has the counters of its deliveries at the first check; `checks` is the number of checks.
    `is_reported` is whether the standstill was reported.
    """

    counters: tuple[int, ...]
    since_ms: int
    checks: int = 1
    is_reported: bool = False


class Watchdog:
    """Checker of every client once a second.

    `standstills` counts the standstills since the start, each once.
    """

    def __init__(self, facilities: InstanceResources, frontier: DurableFrontier) -> None:
        self._facilities = facilities
        self._frontier = frontier
        self.standstills = 0
        self._suspects: dict[ConnectionView, _StallCandidate] = {}
        self._worked_at = 0

    def note_shared_work(self) -> None:
        """Record whether shared resources are at work. Call it before each slice of checks."""
        if self._facilities.reader.pending or self._facilities.share.waiting_replays:
            self._worked_at = self._facilities.clock.monotonic_ms()

    def check_client(self, connection: ConnectionView) -> None:
        """Check a client, and report a standstill. Call it once a second."""
        reason = find_stall_reason(connection)
        if not reason:
            self._suspects.pop(connection, None)
            return
        now, counters = self._facilities.clock.monotonic_ms(), _delivery_counters(connection)
        suspect = self._suspects.get(connection)
        if suspect is None or suspect.counters != counters:
            self._suspects[connection] = _StallCandidate(counters, now)
            return
        suspect.checks += 1
        may_be_waiting = (
            now - max(suspect.since_ms, self._worked_at) < STANDSTILL_MS
            and now - suspect.since_ms < MAX_STANDSTILL_MS
        )
        if suspect.checks >= MIN_CHECKS and not may_be_waiting and not suspect.is_reported:
            suspect.is_reported = True
            self.standstills += 1
            log.error("delivery_stands_still", why=reason, **dump_delivery_state(connection))
            _repeat_signals(connection)
            self._frontier.notify_waiters()

    def forget(self, connection: ConnectionView) -> None:
        """Remove a client that has disconnected."""
        self._suspects.pop(connection, None)


def find_stall_reason(connection: ConnectionView) -> str:
    """Return the delivery that waits although nothing visible prevents it; "" if there is none."""
    backlog = connection.backlog
    if backlog.state is ClientState.CLOSED:
        return ""
    if connection.sink.is_writable:
        if backlog.outbox.nbytes:
            return "outbox"
        for queue in backlog.queues.nonempty.values():
            if not (queue.paused or queue.is_window_full or queue.is_credit_spent):
                return f"lane {queue.stream}"
        if backlog.offline is not None and backlog.offline.is_draining:
            return "spool"
    for target in connection.subscriptions.values():
        if _is_subscription_stalled(target):
            return f"subscription {target.id}"
    return ""


def _is_subscription_stalled(target: ClientSubscription) -> bool:
    """Return whether a subscription waits for a signal of its own.

    That is progress in the log, or the end of its conflation interval.
    """
    cursor = target.cursor
    if cursor.is_live:
        return target.conflating is not None and target.conflating.is_stranded
    return (
        cursor.is_behind
        and not cursor.is_paused
        and (target.serving_replay is None or target.serving_replay.is_due)
    )


def _delivery_counters(connection: ConnectionView) -> tuple[int, ...]:
    """Return the counters of a client's deliveries. At least one changes when the client is served."""
    spool = connection.backlog.spool
    reading = [one.cursor.next_sequence for one in connection.subscriptions.values() if one.cursor.is_behind]
    return (connection.backlog.delivered.messages, spool.messages if spool is not None else -1, *reading)


def _repeat_signals(connection: ConnectionView) -> None:
    """Repeat the signals that may have been lost."""
    for target in connection.subscriptions.values():
        if target.cursor.is_live and target.conflating is not None:
            target.conflating.start_timer()
    connection.backlog.resume_sending()


def dump_delivery_state(connection: ConnectionView) -> dict[str, object]:
    """Return everything known about a client's deliveries, for the log."""
    backlog, offline = connection.backlog, connection.backlog.offline
    return {
        "client": connection.name,
        "state": backlog.state.value,
        "writable": connection.sink.is_writable,
        "silent_since": backlog.silent_since,
        "outbox_bytes": backlog.outbox.nbytes,
        "lanes": {
            stream: {
                "messages": queue.messages,
                "paused": queue.paused,
                "busy": queue.is_conflating,
                "room": queue.window.free_slots if queue.window is not None else None,
                "credit": queue.credit - queue.sent_bytes if queue.credit is not None else None,
            }
            for stream, queue in backlog.queues.items()
        },
        "spool": None
        if offline is None
        else {"messages": offline.spool.messages, "chunk_messages": offline.chunk_messages},
        "subscriptions": {
            target.id: {
                "cursor": target.cursor.state.value,
                "next_sequence": target.cursor.next_sequence,
                "served": target.serving_replay is not None,
                "held_bytes": target.conflating.nbytes if target.conflating is not None else 0,
                "matched": target.account.matched,
                **dict(list_account_volumes(target.account)),
            }
            for target in connection.subscriptions.values()
        },
    }
