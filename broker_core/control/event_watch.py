"""What happens in a broker, for whoever automates it: only what is wanted, in a queue of bounded size.

Clients' events and decisions are heard on the broker's own topics, messages on the patterns that are asked for: each
ear is a subscription inside the broker, so what nobody wants costs nothing. What doesn't fit the queue is counted.
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
from broker_core.subscriptions.subscription import Subscription
from broker_core.subscriptions.topics import TopicPattern

CAPACITY = 2_000
MAX_DATA = 65_536
"""Characters of a message's body in an event; the rest is cut."""
CLIENT_EVENTS = {"connect": "logon"}
"""Where the broker's word for an event isn't AMPS's: its clients connect when they log on."""
_TOLD = ("action", "reason", "rule", "sentence", "mode")


class BrokerEvent(NamedTuple):
    """One event: its kind, AMPS's variables, and what it is recognised by. `once` is the same wherever in a group it is heard; "" where
    nobody else hears it."""

    kind: str
    variables: dict[str, str]
    facts: dict[str, str]
    once: str = ""


class MessageWatch(NamedTuple):
    """Messages that are wanted: `kind` is publish or deliver."""

    kind: str
    topic: str
    filter: str


class EventWatch:
    """The events of one instance. Belongs to the loop. `dropped` counts what the queue had no room for, since the start.

    `shared`: in a group, where every member hears what is in the log.
    """

    def __init__(self, engine: Engine, capacity: int = CAPACITY, *, shared: bool = False) -> None:
        self._engine = engine
        self.shared = shared
        self.capacity = capacity
        self._queue: deque[BrokerEvent] = deque()
        self._kinds: frozenset[str] = frozenset()
        self._ears: dict[MessageWatch, Subscription[MatchReceiver]] = {}
        self._users: dict[str, str] = {}
        self.dropped = 0
        engine.roster.on_connected = self._connected

    def set_interest(self, kinds: Iterable[str], messages: Iterable[MessageWatch]) -> None:
        """From now on hear these kinds of events and these messages, and nothing else."""
        self._kinds = frozenset(kinds)
        wanted = set(messages)
        if self._kinds - {"connect", "decision"}:
            wanted.add(MessageWatch("clients", CLIENTS_TOPIC, ""))
        if "decision" in self._kinds:
            wanted.add(MessageWatch("decisions", DECISIONS_TOPIC, ""))
        registry = self._engine.subscriptions.registry
        for gone in self._ears.keys() - wanted:
            registry.remove(self._ears.pop(gone))
        for new in wanted - self._ears.keys():
            try:
                pattern = TopicPattern.parse(new.topic)
                chosen = compile_filter(new.filter) if new.filter else None
            except ClientError:
                continue  # the control plane has checked it when the action was saved
            self._ears[new] = Subscription(_MessageListener(self, self._engine, new), "", 0, pattern, chosen)
            registry.add(self._ears[new])

    def add_event(
        self, kind: str, variables: dict[str, str], facts: dict[str, str] | None = None, once: str = ""
    ) -> None:
        """Queue an event."""
        if len(self._queue) >= self.capacity:
            self.dropped += 1
        else:
            self._queue.append(BrokerEvent(kind, variables, facts or {}, once))

    def user_of(self, name: str) -> str:
        """Return the user of a client, or the owner of its name when it isn't connected here; "" if unknown."""
        client = self._engine.roster.clients.get(name)
        return client.user if client is not None else self._engine.logons.owner_of(name) or ""

    def drain(self) -> list[BrokerEvent]:
        """What happened since the last time."""
        taken = list(self._queue)
        self._queue.clear()
        return taken

    @property
    def free_slots(self) -> int:
        """Events that the queue can still take."""
        return self.capacity - len(self._queue)

    def _connected(self, connection: ConnectionView) -> None:
        if "connect" in self._kinds:
            # Nobody has logged on yet: as in AMPS, the connection's own name stands for the client's.
            name = f"{connection.transport}-{connection.sink.remote}"
            self.add_event("connect", {"AMPS_CLIENT_NAME": name, "AMPS_CONNECTION_NAME": name})

    def client_events(self, told: Iterable[tuple[bytes, str]]) -> None:
        """Records of `$SLUICE.clients`, with what they are recognised by. In a group those of this member's clients."""
        for body, once in told:
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
                "AMPS_CLIENT_NAME": name, "AMPS_CONNECTION_NAME": name, "AMPS_AUTHENTICATION_ID": user
            }  # fmt: skip
            if kind in ("subscribe", "unsubscribe"):
                variables["AMPS_TOPIC"], variables["AMPS_FILTER"] = event.topic or "", event.filter or ""
                variables["AMPS_OPTIONS"] = ""
            if kind == "disconnect":
                variables["SLUICE_REASON"] = event.state
            self.add_event(kind, variables, once=once)

    def decisions(self, told: Iterable[tuple[bytes, str]]) -> None:
        """Records of `$SLUICE.decisions`, with what they are recognised by."""
        for body, once in told:
            decision = msgspec.json.decode(body, type=DecisionEntry)
            fields = {f"SLUICE_{key.upper()}": str(getattr(decision, key)) for key in _TOLD}
            facts = {"user": self.user_of(decision.client)}
            self.add_event("decision", {"AMPS_CLIENT_NAME": decision.client, **fields}, facts, once)


class _MessageListener:
    """A receiver inside the broker: nothing is queued for it."""

    gets_unjournaled: Final = False
    """Each event is by itself, and matching once for each run of a batch costs more than its order is
    worth."""

    def __init__(self, watch: EventWatch, engine: Engine, listening: MessageWatch) -> None:
        self._watch = watch
        self._engine = engine
        self._listening = listening

    def receive(self, shared: SharedDelivery, rows: Rows | None) -> None:
        """A batch of which these rows (None: all) fit the pattern and the filter."""
        batch = shared.batch
        match self._listening.kind:
            case "clients":
                self._watch.client_events(self._told(batch, rows))
            case "decisions":
                self._watch.decisions(self._told(batch, rows))
            case "publish":
                # What actions publish starts no action, so that none can call itself: custom events are for that.
                if batch.publisher_name != BROKER_NAME or batch.topics[0].startswith("$"):
                    self._heard(batch, rows, batch.publisher_name)
            case _:
                self._delivered(batch, rows)

    def _told(self, batch: Batch, rows: Rows | None) -> list[tuple[bytes, str]]:
        chosen = range(batch.count) if rows is None else rows.tolist()
        return [(batch.body(row), self._once(batch, row)) for row in chosen]

    def _once(self, batch: Batch, row: int) -> str:
        """What a record of a group's log is recognised by."""
        if not self._watch.shared or not batch.header.first_sequence:
            return ""
        return str(Bookmark(self._engine.instance, int(batch.sequences()[row])))

    def on_gap(self) -> None:
        """Whoever listens has missed an event, as when too many wait."""
        self._watch.dropped += 1

    def _delivered(self, batch: Batch, rows: Rows | None) -> None:
        """The same rows once for each client that is sent them."""
        for subscription, sent in self._engine.subscriptions.registry.match(batch):
            target = subscription.client
            if not isinstance(target, ClientSubscription) or (
                target.is_bookmark_subscription and not batch.header.first_sequence
            ):
                continue
            both = rows if sent is None else sent if rows is None else np.intersect1d(rows, sent)
            self._heard(batch, both, target.peer.name)

    def _heard(self, batch: Batch, rows: Rows | None, client: str) -> None:
        chosen = range(batch.count) if rows is None else rows.tolist()
        fitting = chosen[: self._watch.free_slots]
        self._watch.dropped += len(chosen) - len(fitting)
        publisher = batch.publisher_name
        facts = {
            "topic": self._listening.topic,
            "filter": self._listening.filter,
            "publisher": publisher,
            "user": self._watch.user_of(publisher),
            "accepted_at_ms": str(batch.header.accepted_at // 1_000_000),
        }
        for row in fitting:
            told = _message(self._engine.instance, batch, row, client)
            once = self._once(batch, row) if self._listening.kind == "publish" else ""
            self._watch.add_event(self._listening.kind, told, facts, once)


def _message(instance: str, batch: Batch, row: int, client: str) -> dict[str, str]:
    body = batch.body(row)
    first = batch.header.first_sequence
    return {
        "AMPS_TOPIC": batch.topics[int(batch.topic_indexes[row]) - 1],
        "AMPS_DATA": body.decode("utf-8", "replace")[:MAX_DATA],
        "AMPS_DATA_LENGTH": str(len(body)),
        "AMPS_BOOKMARK": str(Bookmark(instance, int(batch.sequences()[row]))) if first else "",
        "AMPS_CLIENT_NAME": client,
    }
