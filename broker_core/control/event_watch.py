"""Events of a broker for automations: only those requested, in a queue of bounded size.

Client events and decisions are received on the broker's own topics, messages on the requested patterns. Each
listener is a subscription inside the broker, so events that no automation requests cost nothing. Events that
do not fit into the queue are counted as dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec
import numpy as np

from broker_core.batch import Batch, Rows
from broker_core.bookmark import Bookmark
from broker_core.connections.connection_view import ConnectionView
from broker_core.delivery.entries import SharedDelivery
from broker_core.delivery.ports import MatchReceiver
from broker_core.documents.system_records import ClientEvent, DecisionEntry
from broker_core.engine.engine import Engine
from broker_core.errors import ClientError
from broker_core.filters import compile_filter
from broker_core.names import BROKER_NAME, CLIENTS_TOPIC, DECISIONS_TOPIC
from broker_core.replay.client_subscription import ClientSubscription
from broker_core.subscriptions.subscription import TopicSubscription
from broker_core.subscriptions.topics import TopicPattern

CAPACITY = 2_000
"""Default capacity of the queue, events."""
MAX_DATA = 65_536
"""Maximum characters of a message's body in an event; further ones are cut off."""
CLIENT_EVENTS = {"connect": "logon"}
"""AMPS's names of client events where they differ from the broker's: `connect` is AMPS's `logon`."""
DECISION_FIELDS = ("action", "reason", "rule", "sentence", "mode")
"""Fields of a decision that its event includes."""


class BrokerEvent(NamedTuple):
    """Event: its kind, AMPS's variables, and further facts for conditions.

    `once` identifies the event: it is equal on all members of a group that receive the event; "" if no other
    member receives it.
    """

    kind: str
    variables: dict[str, str]
    facts: dict[str, str]
    once: str = ""


class MessageWatch(NamedTuple):
    """Requested messages. `kind` is "publish" or "deliver"."""

    kind: str
    topic: str
    filter: str


class EventWatch:
    """Event queue of one instance. Belongs to the event loop."""

    def __init__(self, engine: Engine, capacity: int = CAPACITY, *, shared: bool = False) -> None:
        """Create an empty queue without interests.

        Args:
            engine: The instance.
            capacity: Maximum queued events. `dropped` counts further ones, since the start.
            shared: Whether the instance is a group, in which every member receives the log's records.
        """
        self._engine = engine
        self.shared = shared
        self.capacity = capacity
        self._queue: deque[BrokerEvent] = deque()
        self._kinds: frozenset[str] = frozenset()
        self._listeners: dict[MessageWatch, TopicSubscription[MatchReceiver]] = {}
        self._users: dict[str, str] = {}
        self.dropped = 0
        engine.roster.on_connected = self._on_connected

    def set_interest(self, kinds: Iterable[str], messages: Iterable[MessageWatch]) -> None:
        """Receive exactly these kinds of events and these messages from now on."""
        self._kinds = frozenset(kinds)
        requested = set(messages)
        if self._kinds - {"connect", "decision"}:
            requested.add(MessageWatch("clients", CLIENTS_TOPIC, ""))
        if "decision" in self._kinds:
            requested.add(MessageWatch("decisions", DECISIONS_TOPIC, ""))
        registry = self._engine.subscriptions.registry
        for removed in self._listeners.keys() - requested:
            registry.remove(self._listeners.pop(removed))
        for added in requested - self._listeners.keys():
            try:
                pattern = TopicPattern.parse(added.topic)
                chosen = compile_filter(added.filter) if added.filter else None
            except ClientError:
                continue  # the control plane has checked it when the action was saved
            self._listeners[added] = TopicSubscription(
                _MessageListener(self, self._engine, added), "", 0, pattern, chosen
            )
            registry.add(self._listeners[added])

    def add_event(
        self, kind: str, variables: dict[str, str], facts: dict[str, str] | None = None, once: str = ""
    ) -> None:
        """Queue an event, or count it as dropped."""
        if len(self._queue) >= self.capacity:
            self.dropped += 1
        else:
            self._queue.append(BrokerEvent(kind, variables, facts or {}, once))

    def find_user(self, name: str) -> str:
        """Return the user of a client, or the owner of its name if it is not connected here; "" if none."""
        client = self._engine.roster.clients.get(name)
        return client.user if client is not None else self._engine.logons.owner_of(name) or ""

    def drain(self) -> list[BrokerEvent]:
        """Return the events since the last call."""
        events = list(self._queue)
        self._queue.clear()
        return events

    @property
    def free_slots(self) -> int:
        """Number of events that the queue can still accept."""
        return self.capacity - len(self._queue)

    def _on_connected(self, connection: ConnectionView) -> None:
        """Queue the event of a new connection."""
        if "connect" in self._kinds:
            # The client has not logged on yet. As in AMPS, the connection's name replaces the client's.
            name = f"{connection.transport}-{connection.sink.remote}"
            self.add_event("connect", {"AMPS_CLIENT_NAME": name, "AMPS_CONNECTION_NAME": name})

    def add_client_events(self, records: Iterable[tuple[bytes, str]]) -> None:
        """Queue events for records of `$SLUICE.clients`. Each record is (body, `once`).

        In a group, only those of this member's clients.
        """
        for body, once in records:
            event = msgspec.json.decode(body, type=ClientEvent)
            kind, name = CLIENT_EVENTS.get(event.event, event.event), event.client
            connection = self._engine.roster.clients.get(name)
            if self.shared and connection is None and name not in self._users:
                continue
            if kind == "logon" and connection is not None:
                self._users[name] = connection.user
            user = self._users.pop(name, "") if kind == "disconnect" else self._users.get(name, "")
            if kind not in self._kinds:
                continue
            variables = {
                "AMPS_CLIENT_NAME": name,
                "AMPS_CONNECTION_NAME": name,
                "AMPS_AUTHENTICATION_ID": user,
            }
            if kind in ("subscribe", "unsubscribe"):
                variables["AMPS_TOPIC"], variables["AMPS_FILTER"] = event.topic or "", event.filter or ""
                variables["AMPS_OPTIONS"] = ""
            if kind == "disconnect":
                variables["SLUICE_REASON"] = event.state
            self.add_event(kind, variables, once=once)

    def add_decisions(self, records: Iterable[tuple[bytes, str]]) -> None:
        """Queue events for records of `$SLUICE.decisions`. Each record is (body, `once`)."""
        for body, once in records:
            decision = msgspec.json.decode(body, type=DecisionEntry)
            fields = {f"SLUICE_{key.upper()}": str(getattr(decision, key)) for key in DECISION_FIELDS}
            facts = {"user": self.find_user(decision.client)}
            self.add_event("decision", {"AMPS_CLIENT_NAME": decision.client, **fields}, facts, once)


class _MessageListener:
    """Receiver inside the broker. Deliveries are processed immediately, not queued."""

    gets_unjournaled: Final = False
    """Whether journaled and unjournaled records of a batch must arrive in order.

    Events are independent, and matching once for each run of a batch costs more than the order is worth.
    """

    def __init__(self, watch: EventWatch, engine: Engine, listening: MessageWatch) -> None:
        self._watch = watch
        self._engine = engine
        self._listening = listening

    def receive(self, shared: SharedDelivery, rows: Rows | None) -> None:
        """Queue events for the rows of a batch that match (None: all rows)."""
        batch = shared.batch
        match self._listening.kind:
            case "clients":
                self._watch.add_client_events(self._read_bodies(batch, rows))
            case "decisions":
                self._watch.add_decisions(self._read_bodies(batch, rows))
            case "publish":
                # Messages published by actions start no action, so that no action can start itself. Custom
                # events serve that purpose.
                if batch.publisher_name != BROKER_NAME or batch.topics[0].startswith("$"):
                    self._add_messages(batch, rows, batch.publisher_name)
            case _:
                self._add_deliveries(batch, rows)

    def _read_bodies(self, batch: Batch, rows: Rows | None) -> list[tuple[bytes, str]]:
        """Return (body, `once`) of each row."""
        chosen = range(batch.count) if rows is None else rows.tolist()
        return [(batch.body(row), self._event_id(batch, row)) for row in chosen]

    def _event_id(self, batch: Batch, row: int) -> str:
        """Return the id of a record in a group's log; "" outside a group or without a log."""
        if not self._watch.shared or not batch.header.first_sequence:
            return ""
        return str(Bookmark(self._engine.instance, int(batch.sequences()[row])))

    def on_gap(self) -> None:
        """Count an event as missed, for example because too many are queued."""
        self._watch.dropped += 1

    def _add_deliveries(self, batch: Batch, rows: Rows | None) -> None:
        """Queue events for the rows that are sent to clients, once for each client."""
        for subscription, sent in self._engine.subscriptions.registry.match(batch):
            target = subscription.client
            if not isinstance(target, ClientSubscription) or (
                target.is_bookmark_subscription and not batch.header.first_sequence
            ):
                continue
            sent_rows = rows if sent is None else sent if rows is None else np.intersect1d(rows, sent)
            self._add_messages(batch, sent_rows, target.peer.name)

    def _add_messages(self, batch: Batch, rows: Rows | None, client: str) -> None:
        """Queue an event for each row while the queue has free slots; count the others as dropped."""
        chosen = range(batch.count) if rows is None else rows.tolist()
        fitting = chosen[: self._watch.free_slots]
        self._watch.dropped += len(chosen) - len(fitting)
        publisher = batch.publisher_name
        facts = {
            "topic": self._listening.topic,
            "filter": self._listening.filter,
            "publisher": publisher,
            "user": self._watch.find_user(publisher),
            "accepted_at_ms": str(batch.header.accepted_at // 1_000_000),
        }
        for row in fitting:
            variables = _message_variables(self._engine.instance, batch, row, client)
            once = self._event_id(batch, row) if self._listening.kind == "publish" else ""
            self._watch.add_event(self._listening.kind, variables, facts, once)


def _message_variables(instance: str, batch: Batch, row: int, client: str) -> dict[str, str]:
    """Return AMPS's variables of a message."""
    body = batch.body(row)
    first = batch.header.first_sequence
    return {
        "AMPS_TOPIC": batch.topics[int(batch.topic_indexes[row]) - 1],
        "AMPS_DATA": body.decode("utf-8", "replace")[:MAX_DATA],
        "AMPS_DATA_LENGTH": str(len(body)),
        "AMPS_BOOKMARK": str(Bookmark(instance, int(batch.sequences()[row]))) if first else "",
        "AMPS_CLIENT_NAME": client,
    }
