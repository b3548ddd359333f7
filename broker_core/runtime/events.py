"""The broker's own records: what happens to clients, on `$SLUICE.clients`, and decisions, on `$SLUICE.decisions`.

They are gathered and published once a second as batches, so that ten thousand clients that come at once make one
batch and not ten thousand.
"""

from __future__ import annotations

from typing import Any

import orjson

from broker_core.slow_clients.decision import Decision

CLIENTS_TOPIC = "$SLUICE.clients"
DECISIONS_TOPIC = "$SLUICE.decisions"
SAMPLE_EVERY_MS = 10_000


class ClientEvents:
    """Events that wait for the next tick."""

    def __init__(self) -> None:
        self._clients: list[bytes] = []
        self._decisions: list[bytes] = []

    def add(self, now_ns: int, client: str, event: str, state: str) -> None:
        """A client connected, disconnected, was offlined, or went live again."""
        self._clients.append(orjson.dumps({"at": now_ns // 1_000_000, "client": client, "event": event, "state": state}))

    def sample(self, now_ns: int, client: dict[str, Any]) -> None:
        """A client's lag at a moment; `client` is its entry of a snapshot."""
        keys = ("state", "lag_messages", "lag_bytes", "lag_ms", "outbox_bytes", "spool_bytes", "delivered_messages")
        made = {"at": now_ns // 1_000_000, "client": client["name"], "event": "sample"}
        self._clients.append(orjson.dumps(made | {key: client[key] for key in keys}))

    def decided(self, decision: Decision) -> None:
        """A decision was carried out."""
        self._decisions.append(orjson.dumps(decision.as_dict()))

    def take(self) -> dict[str, list[bytes]]:
        """What is to be published, by topic."""
        taken = {CLIENTS_TOPIC: self._clients, DECISIONS_TOPIC: self._decisions}
        self._clients, self._decisions = [], []
        return {topic: bodies for topic, bodies in taken.items() if bodies}
