"""The broker's own records, and their buffers.

    $SLUICE.clients    what happens to clients
    $SLUICE.decisions  decisions
    $SLUICE.ledger     intervals of messages that subscriptions have lost
    $SLUICE.traffic    backlog of each slow client, each second

Records are collected and published once a second as batches, so that 10,000 clients that connect together
make one batch and not 10,000.

`RecentDecisions` also stores the newest decisions for queries. `TrafficRecorder` records clients with a
backlog once a second; `documents/system_records.py` describes the purpose. A client that keeps up costs one
comparison. Recording is bounded: samples beyond the limit are counted and left out.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import replace
from typing import Any, Final

import msgspec

from broker_core.config.rule_terms import REPEATED_ACTIONS
from broker_core.connections.connection_view import ConnectionView
from broker_core.delivery.account import DeliveryAccount
from broker_core.delivery.loss_ledger import LossInterval
from broker_core.documents.base import Document
from broker_core.documents.clients import ClientEntry, DecisionSummary
from broker_core.documents.system_records import (
    MAX_ROWS,
    ClientEvent,
    DecisionEntry,
    TrafficEntry,
    TrafficRowKey,
    TrafficSample,
    pack_samples,
)
from broker_core.names import CLIENTS_TOPIC, DECISIONS_TOPIC, LEDGER_TOPIC, TRAFFIC_TOPIC
from broker_core.slow_clients.accounts.client_usage import ClientUsage
from broker_core.slow_clients.evaluate.decision import Decision
from broker_core.slow_clients.evaluate.wording import decision_entry

SAMPLE_INTERVAL_MS = 10_000
"""Interval at which clients with an unchanged backlog are sampled. Changes are sampled each second."""


def encode_compact(document: Document) -> bytes:
    """Return a document as JSON in a buffer of exactly its size.

    Encoders return larger buffers. When 2,000 clients are offlined in one second, these would hold 30 MiB.
    """
    return bytes(memoryview(msgspec.json.encode(document)))


def _account_fields(account: DeliveryAccount) -> dict[str, Any]:
    """Return the fields of an event that contain a delivery account."""
    return {
        "delivered_messages": account.delivered.messages,
        "delivered_bytes": account.delivered.nbytes,
        "matched_messages": account.matched.messages,
        "acknowledged_messages": account.acknowledged.messages,
        "in_flight_messages": account.in_flight.messages,
        "waiting_messages": account.waiting.messages,
        "gone_messages": account.discarded_volume.messages,
    }


class SystemRecordBuffer:
    """Records that wait to be published at the next tick."""

    def __init__(self) -> None:
        self._clients: list[bytes] = []
        self._decisions: list[bytes] = []
        self._losses: list[bytes] = []
        self._traffic: list[bytes] = []

    def add(
        self,
        now_ns: int,
        client: str,
        event: str,
        state: str,
        topic: str | None = None,
        filter: str | None = None,
        transport: str | None = None,
        account: DeliveryAccount | None = None,
    ) -> None:
        """Add an event of a client.

        Args:
            now_ns: Time of the event.
            client: Client name, or the broker's for events of the broker.
            event: Kind of event: connect, disconnect, subscribe, unsubscribe, offline_start, offline_stop,
                slow, …
            state: Delivery state of the client; the reason of a disconnect.
            topic: Topic of the subscription, for subscription events.
            filter: Filter of the subscription, for subscription events.
            transport: Transport of the client.
            account: Delivery account of the client, when it disconnects.
        """
        record = ClientEvent(
            at=now_ns // 1_000_000,
            client=client,
            event=event,
            state=state,
            topic=topic,
            filter=filter,
            transport=transport,
            **(_account_fields(account) if account is not None else {}),
        )
        self._clients.append(encode_compact(record))

    def sample(self, now_ns: int, client: ClientEntry) -> None:
        """Add a sample of how far a client is behind."""
        record = ClientEvent(
            at=now_ns // 1_000_000,
            client=client.name,
            event="sample",
            state=client.delivery,
            lag_messages=client.lag_messages,
            lag_bytes=client.lag_bytes,
            lag_ms=client.lag_ms,
            outbox_bytes=client.outbox_bytes,
            spool_bytes=client.spool_bytes,
            delivered_messages=client.delivered_messages,
            delivered_bytes=client.delivered_bytes,
            seconds_behind=client.seconds_behind,
            health=client.health,
            transport=client.transport,
            matched_messages=client.matched_messages,
            acknowledged_messages=client.acknowledged_messages,
            in_flight_messages=client.in_flight_messages,
            waiting_messages=client.waiting_messages,
            gone_messages=sum(client.gone.values()),
        )
        self._clients.append(encode_compact(record))

    def add_decision(self, decision: DecisionEntry) -> None:
        """Add a decision that was executed or, in shadow mode, only recorded."""
        self._decisions.append(encode_compact(decision))

    def add_losses(self, losses: list[LossInterval], instance: str) -> None:
        """Add intervals of messages that subscriptions will not get."""
        self._losses += [encode_compact(loss.to_entry(instance)) for loss in losses]

    def add_traffic(self, entries: list[TrafficEntry]) -> None:
        """Add the traffic samples of one second."""
        self._traffic += [encode_compact(entry) for entry in entries]

    def take(self) -> dict[str, list[bytes]]:
        """Return the records to publish, by topic, and empty the buffer."""
        drained = {
            CLIENTS_TOPIC: self._clients,
            DECISIONS_TOPIC: self._decisions,
            LEDGER_TOPIC: self._losses,
            TRAFFIC_TOPIC: self._traffic,
        }
        self._clients, self._decisions, self._losses, self._traffic = [], [], [], []
        return {topic: bodies for topic, bodies in drained.items() if bodies}


MAX_DECISIONS: Final = 1_000
"""Maximum decisions stored, and maximum clients whose last decision is stored."""


MAX_UNSTORED_DECISIONS: Final = 20_000
"""Maximum decisions that wait for the database, some 1 KiB each."""


class RecentDecisions:
    """Newest decisions of an instance, as documents. `total` counts all decisions since the start.

    `unstored` has the newest of the decisions that `mark_stored` did not confirm.
    """

    def __init__(self, instance: str, started_at: int, events: SystemRecordBuffer) -> None:
        self._prefix = f"{instance}-{started_at // 1_000_000}"
        self._events = events
        self.recent: deque[DecisionEntry] = deque(maxlen=MAX_DECISIONS)
        self.unstored: deque[DecisionEntry] = deque(maxlen=MAX_UNSTORED_DECISIONS)
        self.total = 0
        self._started = 0
        self._repeated: dict[tuple[str, str, str], tuple[Decision, str]] = {}
        """Repeated actions of this second, by client, subscription and rule.

        They are merged, because a decision per batch would be a flood.
        """
        self._last: dict[str, DecisionSummary] = {}

    def make_id(self) -> str:
        """Return a new decision id, unique across restarts and ascending.

        Clients and the control plane refer to the decision by it.
        """
        self._started += 1
        return f"{self._prefix}-{self._started}"

    def add(self, decision: Decision, identity: str) -> None:
        """Record a decision. Repeated actions of the same rule within a second are merged into one."""
        if decision.action not in REPEATED_ACTIONS:
            self._record(decision, identity)
            return
        key = (decision.client, decision.subscription, decision.rule)
        first, known = self._repeated.get(key, (None, identity))
        if first is not None:
            decision = replace(
                decision,
                at=first.at,
                times=first.times + 1,
                lost=first.lost + decision.lost,
                observed=max(first.observed, decision.observed),
            )
        self._repeated[key] = (decision, known)

    def close_second(self) -> None:
        """Record the merged decisions of the second that ends."""
        repeated, self._repeated = self._repeated, {}
        for decision, identity in repeated.values():
            self._record(decision, identity)

    def _record(self, decision: Decision, identity: str) -> None:
        entry = decision_entry(decision, identity)
        self.add_entry(entry)
        self._last.pop(decision.client, None)
        self._last[decision.client] = msgspec.convert(entry, DecisionSummary, from_attributes=True)
        if len(self._last) > MAX_DECISIONS:
            del self._last[next(iter(self._last))]
        self._events.add_decision(entry)

    def add_entry(self, entry: DecisionEntry) -> None:
        """Add a decision to the newest ones and to those that wait for the database."""
        self.recent.append(entry)
        self.unstored.append(entry)
        self.total += 1

    def mark_stored(self, total: int) -> None:
        """Forget the decisions that the database has: the first `total` ones since the start."""
        while len(self.unstored) > self.total - total:
            self.unstored.popleft()

    def latest_for(self, client: str) -> DecisionSummary | None:
        """Return the last decision about a client; None if there was none or it is no longer stored."""
        return self._last.get(client)


MAX_SAMPLES_PER_S: Final = 3_000
"""Maximum traffic samples per second.

A sample costs some 15 µs, so they use at most 5 % of the event loop.
"""
_MS: Final = 1_000_000
_SECOND_NS: Final = 1_000 * _MS
"""Messages in flight for less than this are not late: every client has some."""


class TrafficRecorder:
    """Traffic samples that wait to be published."""

    def __init__(self) -> None:
        self._row_keys: list[TrafficRowKey] = []
        self._figures: array[int] = array("q")
        self._backlogged: set[str] = set()
        """Clients with a backlog at the last sample. The sample at which it has ended is recorded, too."""
        self._entries: list[TrafficEntry] = []
        self._sampled = 0
        self._dropped = 0

    def sample_client(self, connection: ConnectionView, use: ClientUsage, now_ns: int) -> None:
        """Record a client if it has a backlog. Call it once a second, right after the client was checked."""
        name, sent = use.name, connection.backlog.in_flight.oldest_at
        if not (use.memory or use.disk or use.is_offlined or (sent and now_ns - sent >= _SECOND_NS)):
            if name not in self._backlogged:
                return
            self._backlogged.discard(name)
        else:
            self._backlogged.add(name)
        if self._sampled >= MAX_SAMPLES_PER_S:
            self._dropped += 1
            return
        self._sampled += 1
        self._append_figures(connection, use, now_ns)
        if len(self._row_keys) >= MAX_ROWS:
            self._pack(now_ns)

    def _append_figures(self, connection: ConnectionView, use: ClientUsage, now_ns: int) -> None:
        """Append the figures of a client."""
        backlog, subscriptions = connection.backlog, connection.subscriptions
        messages = nbytes = acknowledged = unjournaled = 0
        # Summed field by field: adding account objects takes three times as long, for thousands of clients.
        for account in (backlog.ended_account, *[one.account for one in backlog.recipients.values()]):
            for side in (account.journaled, account.unjournaled):
                if side.matched:
                    messages += side.matched
                    nbytes += side.matched_bytes
                    acknowledged += side.acknowledged_bytes
                    if side is account.unjournaled:
                        waiting, sent = side.discarded_waiting.messages, side.discarded_in_flight.messages
                        unjournaled += side.matched - side.acknowledged - waiting - sent
        outstanding = backlog.outstanding
        topic = next(iter(subscriptions.values())).topic if len(subscriptions) == 1 else ""
        self._row_keys.append(
            TrafficRowKey(use.name, use.transport, use.user, connection.connected_at // _MS, topic)
        )
        self._figures.extend(
            TrafficSample(
                now_ns // _MS,
                int(use.is_offlined),
                use.memory,
                use.disk,
                backlog.messages,
                messages,
                nbytes,
                acknowledged,
                backlog.acked_bytes,
                outstanding.messages,
                outstanding.nbytes,
                backlog.oldest_at // _MS,
                backlog.unacked_at // _MS,
                backlog.blocked_since // _MS,
                backlog.window_step_bytes,
                unjournaled,
                len(subscriptions),
            )
        )

    def _pack(self, now_ns: int) -> None:
        """Pack the samples recorded so far into an entry."""
        self._entries.append(pack_samples(now_ns // _MS, self._row_keys, self._figures, self._dropped))
        self._row_keys, self._figures, self._dropped = [], array("q"), 0

    def on_disconnected(self, name: str) -> None:
        """Remove a client that has disconnected."""
        self._backlogged.discard(name)

    def take(self, now_ns: int) -> list[TrafficEntry]:
        """Return the entries of the second that ends, and start a new second."""
        if self._row_keys or self._dropped:
            self._pack(now_ns)
        drained, self._entries, self._sampled = self._entries, [], 0
        return drained
