"""The broker's own records: what happens to clients, on `$SLUICE.clients`, decisions, on `$SLUICE.decisions`, and
what subscriptions have lost, on `$SLUICE.ledger`; what each slow client's backlog was each second, on `$SLUICE.traffic`.

They are gathered and published once a second as batches, so that ten thousand clients that come at once make one
batch and not ten thousand.
"""

from __future__ import annotations

from typing import Any

import msgspec

from broker_core.delivery.account import DeliveryAccount
from broker_core.delivery.loss_ledger import LossInterval
from broker_core.documents.base import Document
from broker_core.documents.clients import ClientEntry
from broker_core.documents.system_records import ClientEvent, DecisionEntry, TrafficEntry
from broker_core.names import CLIENTS_TOPIC, DECISIONS_TOPIC, LEDGER_TOPIC, TRAFFIC_TOPIC

SAMPLE_EVERY_MS = 10_000


def encoded(document: Document) -> bytes:
    """JSON that is to be kept for a while, in its own size: encoders return buffers that aren't made smaller, and two
    thousand clients that are offlined in one second would hold 30 MiB of them."""
    return bytes(memoryview(msgspec.json.encode(document)))


def _sums(account: DeliveryAccount) -> dict[str, Any]:
    """An account as events tell it."""
    return {
        "delivered_messages": account.delivered.messages, "delivered_bytes": account.delivered.nbytes,
        "matched_messages": account.matched.messages, "acknowledged_messages": account.acknowledged.messages,
        "in_flight_messages": account.in_flight.messages, "waiting_messages": account.waiting.messages,
        "gone_messages": sum(what.messages for what in account.gone.values()),
    }  # fmt: skip


class ClientEvents:
    """Events that wait for the next tick."""

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
        """A client connected, disconnected (with all that was for it, and what became of that), subscribed (with topic and filter), was offlined, or
        went live again."""
        made = ClientEvent(
            at=now_ns // 1_000_000, client=client, event=event, state=state, topic=topic, filter=filter,
            transport=transport, **(_sums(account) if account is not None else {}),
        )  # fmt: skip
        self._clients.append(encoded(made))

    def sample(self, now_ns: int, client: ClientEntry) -> None:
        """How far a client is behind at a moment."""
        made = ClientEvent(
            at=now_ns // 1_000_000, client=client.name, event="sample", state=client.delivery,
            lag_messages=client.lag_messages, lag_bytes=client.lag_bytes, lag_ms=client.lag_ms,
            outbox_bytes=client.outbox_bytes, spool_bytes=client.spool_bytes,
            delivered_messages=client.delivered_messages, delivered_bytes=client.delivered_bytes,
            seconds_behind=client.seconds_behind, health=client.health, transport=client.transport,
            matched_messages=client.matched_messages, acknowledged_messages=client.acknowledged_messages,
            in_flight_messages=client.in_flight_messages, waiting_messages=client.waiting_messages,
            gone_messages=sum(client.gone.values()),
        )  # fmt: skip
        self._clients.append(encoded(made))

    def decided(self, decision: DecisionEntry) -> None:
        """A decision was carried out."""
        self._decisions.append(encoded(decision))

    def lost(self, losses: list[LossInterval], instance: str) -> None:
        """Intervals of messages that subscriptions will not get."""
        self._losses += [encoded(loss.entry(instance)) for loss in losses]

    def looked(self, entries: list[TrafficEntry]) -> None:
        """A second's looks at clients for whom something waits."""
        self._traffic += [encoded(entry) for entry in entries]

    def take(self) -> dict[str, list[bytes]]:
        """What is to be published, by topic."""
        taken = {
            CLIENTS_TOPIC: self._clients,
            DECISIONS_TOPIC: self._decisions,
            LEDGER_TOPIC: self._losses,
            TRAFFIC_TOPIC: self._traffic,
        }
        self._clients, self._decisions, self._losses, self._traffic = [], [], [], []
        return {topic: bodies for topic, bodies in taken.items() if bodies}
