"""A client that could be sent what waits for it, and isn't: a defect of the broker's own, never the client's.

Nothing waits for time alone. Whatever waits, waits for a signal: that a socket takes more, that a window has room, that a
chunk was read, that an interval has ended. A signal that is lost, or a task that has died, leaves a client waiting in silence
for ever. So each is looked at once a second:

    outbox, lanes   something waits, the socket takes more, and the lane is neither paused nor has a full window or no credit
    spool           the client takes more than waits in memory, and still isn't live
    log             a subscription reads, its client has room, its pace allows it, and there is more to read, or nothing more
                    and it isn't live
    conflation      a live subscription holds something back and no timer releases it

Standing so at LOOKS looks with nothing moved between them is a standstill: logged with everything that is known of the client,
counted, and set going again as far as a lost signal was all. Looks are counted, besides time, because a loop that was blocked
has moved nobody. What waits for the reader thread or for its turn among replays isn't lost, however long the others take:
while these are at work MOST_PATIENCE_MS count, and PATIENCE_MS from when they rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import structlog

from broker_core.connections.connection_view import ConnectionView
from broker_core.delivery.account import account_parts
from broker_core.delivery.lifecycle import ClientState
from broker_core.delivery.ports import InstanceResources
from broker_core.replay.client_subscription import ClientSubscription
from broker_core.replay.cursor import DurableFrontier

PATIENCE_MS: Final = 2_000
MAX_PATIENCE_MS: Final = 60_000
SAMPLES: Final = 3
log = structlog.get_logger("sluice.watchdog")


@dataclass(slots=True)
class _StallCandidate:
    """A client that stands still. `stands`: where everything of it that may move stood at the first look."""

    stands: tuple[int, ...]
    since: int
    looks: int = 1
    told: bool = False


class Watchdog:
    """Looks at each client once a second. `found` counts the standstills since the start, each once."""

    def __init__(self, facilities: InstanceResources, frontier: DurableFrontier) -> None:
        self._facilities = facilities
        self._frontier = frontier
        self.found = 0
        self._suspects: dict[ConnectionView, _StallCandidate] = {}
        self._worked_at = 0

    def start_round(self) -> None:
        """Before a round of looks: note whether what clients share is at work."""
        if self._facilities.reader.pending or self._facilities.share.in_line:
            self._worked_at = self._facilities.clock.monotonic_ms()

    def check_client(self, connection: ConnectionView) -> None:
        """Once a second."""
        why = stall_reason(connection)
        if not why:
            self._suspects.pop(connection, None)
            return
        now, stands = self._facilities.clock.monotonic_ms(), _stands(connection)
        suspect = self._suspects.get(connection)
        if suspect is None or suspect.stands != stands:
            self._suspects[connection] = _StallCandidate(stands, now)
            return
        suspect.looks += 1
        patient = (
            now - max(suspect.since, self._worked_at) < PATIENCE_MS and now - suspect.since < MAX_PATIENCE_MS
        )
        if suspect.looks >= SAMPLES and not patient and not suspect.told:
            suspect.told = True
            self.found += 1
            log.error("delivery_stands_still", why=why, **dump_delivery_state(connection))
            _set_going(connection)
            self._frontier.notify_waiters()

    def forget(self, connection: ConnectionView) -> None:
        """A client is gone."""
        self._suspects.pop(connection, None)


def stall_reason(connection: ConnectionView) -> str:
    """What of a client's deliveries waits though nothing that can be seen holds it back; "" when nothing does."""
    backlog = connection.backlog
    if backlog.state is ClientState.CLOSED:
        return ""
    if connection.sink.is_writable:
        if backlog.outbox.nbytes:
            return "outbox"
        for lane in backlog.lanes.filled.values():
            if not (lane.paused or lane.is_window_full or lane.is_credit_spent):
                return f"lane {lane.stream}"
        if backlog.offline is not None and backlog.offline.is_draining:
            return "spool"
    for target in connection.subscriptions.values():
        if _stands_by_itself(target):
            return f"subscription {target.id}"
    return ""


def _stands_by_itself(target: ClientSubscription) -> bool:
    """Whether a subscription waits for itself: for its way through the log, or its interval's end."""
    cursor = target.cursor
    if cursor.is_live:
        return target.conflating is not None and target.conflating.is_stranded
    return (
        cursor.is_behind
        and not cursor.is_paused
        and (target.serving_replay is None or target.serving_replay.is_due)
    )


def _stands(connection: ConnectionView) -> tuple[int, ...]:
    """Everything of a client's deliveries that moves when it is served."""
    spool = connection.backlog.spool
    reading = [one.cursor.next_sequence for one in connection.subscriptions.values() if one.cursor.is_behind]
    return (connection.backlog.delivered.messages, spool.messages if spool is not None else -1, *reading)


def _set_going(connection: ConnectionView) -> None:
    """Give again the signals that may have been lost."""
    for target in connection.subscriptions.values():
        if target.cursor.is_live and target.conflating is not None:
            target.conflating.start_timer()
    connection.backlog.resume_sending()


def dump_delivery_state(connection: ConnectionView) -> dict[str, object]:
    """Everything that is known of a client's deliveries, for the log."""
    backlog, offline = connection.backlog, connection.backlog.offline
    return {
        "client": connection.name,
        "state": backlog.state.value,
        "writable": connection.sink.is_writable,
        "silent_since": backlog.silent_since,
        "outbox_bytes": backlog.outbox.nbytes,
        "lanes": {
            stream: {
                "messages": lane.messages,
                "paused": lane.paused,
                "busy": lane.busy,
                "room": lane.window.free_slots if lane.window is not None else None,
                "credit": lane.credit - lane.sent_bytes if lane.credit is not None else None,
            }
            for stream, lane in backlog.lanes.items()
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
                **dict(account_parts(target.account)),
            }
            for target in connection.subscriptions.values()
        },
    }
