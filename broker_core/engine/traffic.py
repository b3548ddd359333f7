"""What is recorded of the clients for whom something waits, a look each a second: `documents/traffic.py` says what for.

A client that keeps up costs a comparison. Recording is bounded: what is too much in a second is counted and left out.
"""

from __future__ import annotations

from array import array
from typing import Final

from broker_core.connections.connection_view import ConnectionView
from broker_core.documents.system_records import (
    MAX_ROWS,
    TrafficEntry,
    TrafficRowKey,
    TrafficSample,
    pack_samples,
)
from broker_core.slow_clients.accounts.client_usage import ClientUsage

MOST_IN_A_SECOND: Final = 3_000
"""A look costs some 15 µs: a twentieth of the loop at most."""
_MS: Final = 1_000_000
_SECOND: Final = 1_000 * _MS
"""What is on its way and unacknowledged for less isn't late: everybody has some of that."""


class Traffic:
    """Looks that wait to be published."""

    def __init__(self) -> None:
        self._whose: list[TrafficRowKey] = []
        self._figures: array[int] = array("q")
        self._waited: set[str] = set()
        """For whom something waited at the last look: the look at which that has ended is recorded too."""
        self._entries: list[TrafficEntry] = []
        self._taken = 0
        self._left_out = 0

    def look(self, connection: ConnectionView, use: ClientUsage, now_ns: int) -> None:
        """Once a second, for every client, right after its backlog was looked at."""
        name, sent = use.name, connection.backlog.in_flight.oldest_at
        if not (use.memory or use.disk or use.offlined or (sent and now_ns - sent >= _SECOND)):
            if name not in self._waited:
                return
            self._waited.discard(name)
        else:
            self._waited.add(name)
        if self._taken >= MOST_IN_A_SECOND:
            self._left_out += 1
            return
        self._taken += 1
        self._note(connection, use, now_ns)
        if len(self._whose) >= MAX_ROWS:
            self._pack(now_ns)

    def _note(self, connection: ConnectionView, use: ClientUsage, now_ns: int) -> None:
        backlog, subscriptions = connection.backlog, connection.subscriptions
        messages = nbytes = acknowledged = unjournaled = 0
        # By hand: sums of accounts as objects take three times as long, and there may be thousands of clients.
        for account in (backlog.ended, *[one.account for one in backlog.recipients.values()]):
            for side in (account.journaled, account.unjournaled):
                if side.matched:
                    messages += side.matched
                    nbytes += side.matched_bytes
                    acknowledged += side.acknowledged_bytes
                    if side is account.unjournaled:
                        waiting, sent = side.lost_waiting.messages, side.lost_in_flight.messages
                        unjournaled += side.matched - side.acknowledged - waiting - sent
        owed = backlog.owed
        topic = next(iter(subscriptions.values())).topic if len(subscriptions) == 1 else ""
        self._whose.append(
            TrafficRowKey(use.name, use.transport, use.user, connection.connected_at // _MS, topic)
        )
        self._figures.extend(
            TrafficSample(
                now_ns // _MS,
                int(use.offlined),
                use.memory,
                use.disk,
                backlog.messages,
                messages,
                nbytes,
                acknowledged,
                backlog.taken_bytes,
                owed.messages,
                owed.nbytes,
                backlog.oldest_at // _MS,
                backlog.unacked_at // _MS,
                backlog.blocked_since // _MS,
                backlog.lump_bytes,
                unjournaled,
                len(subscriptions),
            )
        )

    def _pack(self, now_ns: int) -> None:
        self._entries.append(pack_samples(now_ns // _MS, self._whose, self._figures, self._left_out))
        self._whose, self._figures, self._left_out = [], array("q"), 0

    def left(self, name: str) -> None:
        """A client is gone."""
        self._waited.discard(name)

    def take(self, now_ns: int) -> list[TrafficEntry]:
        """The second is over: its records."""
        if self._whose or self._left_out:
            self._pack(now_ns)
        taken, self._entries, self._taken = self._entries, [], 0
        return taken
