"""The broker's own records: what happens to clients, on `$SLUICE.clients`, decisions, on `$SLUICE.decisions`, and
what subscriptions have lost, on `$SLUICE.ledger`.

They are gathered and published once a second as batches, so that ten thousand clients that come at once make one
batch and not ten thousand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from broker_core.delivery.ledger import Loss
from broker_core.documents.base import Document
from broker_core.documents.records import ClientEvent, DecisionEntry, LossEntry
from broker_core.names import CLIENTS_TOPIC, DECISIONS_TOPIC, LEDGER_TOPIC

SAMPLE_EVERY_MS = 10_000


class Sample(NamedTuple):
    """How far a client is behind at a moment."""

    client: str
    delivery: str
    lag_messages: int
    lag_bytes: int
    lag_ms: int
    outbox_bytes: int
    spool_bytes: int
    delivered_messages: int
    seconds_behind: float
    health: str


def decision_entry(made: Mapping[str, Any]) -> DecisionEntry:
    """A decision as `decision_json` gives it, with its `id`."""
    return msgspec.convert(made, DecisionEntry)


def loss_entry(loss: Loss, instance: str) -> LossEntry:
    """An interval of the ledger."""
    return msgspec.convert(loss.as_dict(instance), LossEntry)


def encoded(document: Document) -> bytes:
    """JSON that is to be kept for a while, in its own size: encoders return buffers that aren't made smaller, and two
    thousand clients that are offlined in one second would hold 30 MiB of them."""
    return bytes(memoryview(msgspec.json.encode(document)))


class ClientEvents:
    """Events that wait for the next tick."""

    def __init__(self) -> None:
        self._clients: list[bytes] = []
        self._decisions: list[bytes] = []
        self._losses: list[bytes] = []

    def add(
        self,
        now_ns: int,
        client: str,
        event: str,
        state: str,
        topic: str | None = None,
        filter: str | None = None,
    ) -> None:
        """A client connected, disconnected, subscribed (with topic and filter), was offlined, or went live again."""
        made = ClientEvent(
            at=now_ns // 1_000_000, client=client, event=event, state=state, topic=topic, filter=filter
        )
        self._clients.append(encoded(made))

    def sample(self, now_ns: int, sample: Sample) -> None:
        """A client's lag at a moment."""
        made = ClientEvent(
            at=now_ns // 1_000_000, client=sample.client, event="sample", state=sample.delivery,
            lag_messages=sample.lag_messages, lag_bytes=sample.lag_bytes, lag_ms=sample.lag_ms,
            outbox_bytes=sample.outbox_bytes, spool_bytes=sample.spool_bytes,
            delivered_messages=sample.delivered_messages, seconds_behind=sample.seconds_behind, health=sample.health,
        )  # fmt: skip
        self._clients.append(encoded(made))

    def decided(self, decision: Mapping[str, Any]) -> None:
        """A decision was carried out."""
        self._decisions.append(encoded(decision_entry(decision)))

    def lost(self, losses: list[Loss], instance: str) -> None:
        """Intervals of messages that subscriptions will not get."""
        self._losses += [encoded(loss_entry(loss, instance)) for loss in losses]

    def take(self) -> dict[str, list[bytes]]:
        """What is to be published, by topic."""
        taken = {CLIENTS_TOPIC: self._clients, DECISIONS_TOPIC: self._decisions, LEDGER_TOPIC: self._losses}
        self._clients, self._decisions, self._losses = [], [], []
        return {topic: bodies for topic, bodies in taken.items() if bodies}
