"""The broker's own records: what happens to clients, on `$SLUICE.clients`, decisions, on `$SLUICE.decisions`, and
what subscriptions have lost, on `$SLUICE.ledger`; what each slow client's backlog was each second, on `$SLUICE.traffic`.

They are gathered and published once a second as batches, so that ten thousand clients that come at once make one
batch and not ten thousand.

The decisions that were made lately, for everybody who asks, and on their way to the broker's own topic.

What is recorded of the clients for whom something waits, a look each a second: `documents/system_records.py` says what for.

A client that keeps up costs a comparison. Recording is bounded: what is too much in a second is counted and left out.
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


def encode_compact(document: Document) -> bytes:
    """JSON that is to be kept for a while, in its own size: encoders return buffers that aren't made smaller, and two
    thousand clients that are offlined in one second would hold 30 MiB of them."""
    return bytes(memoryview(msgspec.json.encode(document)))


def _sums(account: DeliveryAccount) -> dict[str, Any]:
    """An account as events tell it."""
    return {
        "delivered_messages": account.delivered.messages,
        "delivered_bytes": account.delivered.nbytes,
        "matched_messages": account.matched.messages,
        "acknowledged_messages": account.acknowledged.messages,
        "in_flight_messages": account.in_flight.messages,
        "waiting_messages": account.waiting.messages,
        "gone_messages": sum(what.messages for what in account.gone.values()),
    }


class SystemRecordBuffer:
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
            at=now_ns // 1_000_000,
            client=client,
            event=event,
            state=state,
            topic=topic,
            filter=filter,
            transport=transport,
            **(_sums(account) if account is not None else {}),
        )
        self._clients.append(encode_compact(made))

    def sample(self, now_ns: int, client: ClientEntry) -> None:
        """How far a client is behind at a moment."""
        made = ClientEvent(
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
        self._clients.append(encode_compact(made))

    def add_decision(self, decision: DecisionEntry) -> None:
        """A decision was carried out."""
        self._decisions.append(encode_compact(decision))

    def add_losses(self, losses: list[LossInterval], instance: str) -> None:
        """Intervals of messages that subscriptions will not get."""
        self._losses += [encode_compact(loss.entry(instance)) for loss in losses]

    def add_traffic(self, entries: list[TrafficEntry]) -> None:
        """A second's looks at clients for whom something waits."""
        self._traffic += [encode_compact(entry) for entry in entries]

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


KEPT: Final = 1_000


class RecentDecisions:
    """One instance's, as documents (`made` counts all of them)."""

    def __init__(self, instance: str, started_at: int, events: SystemRecordBuffer) -> None:
        self._prefix = f"{instance}-{started_at // 1_000_000}"
        self._events = events
        self.recent: deque[DecisionEntry] = deque(maxlen=KEPT)
        self.made = 0
        self._begun = 0
        self._repeated: dict[tuple[str, str, str], tuple[Decision, str]] = {}
        """What was discarded in this second, by client, subscription and rule: a decision a batch would be a flood."""
        self._last: dict[str, DecisionSummary] = {}

    def identity(self) -> str:
        """A name for the next decision. Unique over restarts, and in order: clients and the control plane know it by it."""
        self._begun += 1
        return f"{self._prefix}-{self._begun}"

    def add(self, decision: Decision, identity: str) -> None:
        """A decision was carried out, or would have been; what is done over and over comes together."""
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
        """Record what was done more than once in the second that ends."""
        repeated, self._repeated = self._repeated, {}
        for decision, identity in repeated.values():
            self._record(decision, identity)

    def _record(self, decision: Decision, identity: str) -> None:
        made = decision_entry(decision, identity)
        self.recent.append(made)
        self._last.pop(decision.client, None)
        self._last[decision.client] = msgspec.convert(made, DecisionSummary, from_attributes=True)
        if len(self._last) > KEPT:
            del self._last[next(iter(self._last))]
        self.made += 1
        self._events.add_decision(made)

    def latest_for(self, client: str) -> DecisionSummary | None:
        """The last decision about a client, in short; None when it was too long ago, or there was none."""
        return self._last.get(client)


MAX_IN_A_SECOND: Final = 3_000
"""A look costs some 15 µs: a twentieth of the loop at most."""
_MS: Final = 1_000_000
_SECOND: Final = 1_000 * _MS
"""What is on its way and unacknowledged for less isn't late: everybody has some of that."""


class TrafficRecorder:
    """Looks that wait to be published."""

    def __init__(self) -> None:
        self._whose: list[TrafficRowKey] = []
        self._figures: array[int] = array("q")
        self._waited: set[str] = set()
        """For whom something waited at the last look: the look at which that has ended is recorded too."""
        self._entries: list[TrafficEntry] = []
        self._taken = 0
        self._left_out = 0

    def sample_client(self, connection: ConnectionView, use: ClientUsage, now_ns: int) -> None:
        """Once a second, for every client, right after its backlog was looked at."""
        name, sent = use.name, connection.backlog.in_flight.oldest_at
        if not (use.memory or use.disk or use.is_offlined or (sent and now_ns - sent >= _SECOND)):
            if name not in self._waited:
                return
            self._waited.discard(name)
        else:
            self._waited.add(name)
        if self._taken >= MAX_IN_A_SECOND:
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
        for account in (backlog.ended_account, *[one.account for one in backlog.recipients.values()]):
            for side in (account.journaled, account.unjournaled):
                if side.matched:
                    messages += side.matched
                    nbytes += side.matched_bytes
                    acknowledged += side.acknowledged_bytes
                    if side is account.unjournaled:
                        waiting, sent = side.lost_waiting.messages, side.lost_in_flight.messages
                        unjournaled += side.matched - side.acknowledged - waiting - sent
        owed = backlog.outstanding
        topic = next(iter(subscriptions.values())).topic if len(subscriptions) == 1 else ""
        self._whose.append(
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
                owed.messages,
                owed.nbytes,
                backlog.oldest_at // _MS,
                backlog.unacked_at // _MS,
                backlog.blocked_since // _MS,
                backlog.window_step_bytes,
                unjournaled,
                len(subscriptions),
            )
        )

    def _pack(self, now_ns: int) -> None:
        self._entries.append(pack_samples(now_ns // _MS, self._whose, self._figures, self._left_out))
        self._whose, self._figures, self._left_out = [], array("q"), 0

    def on_left(self, name: str) -> None:
        """A client is gone."""
        self._waited.discard(name)

    def take(self, now_ns: int) -> list[TrafficEntry]:
        """The second is over: its records."""
        if self._whose or self._left_out:
            self._pack(now_ns)
        taken, self._entries, self._taken = self._entries, [], 0
        return taken
