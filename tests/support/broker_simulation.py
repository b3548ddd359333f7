"""Small simulation of a broker: real outboxes, a real guard, a list as spool, and a manual clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from broker_core.batch import Batch, build_single_topic_batch
from broker_core.config import PolicyDocument
from broker_core.config.rule_terms import PolicyAction
from broker_core.delivery.entries import OutboxEntry
from broker_core.delivery.lifecycle import ClientState, ClientStateEvent, next_state
from broker_core.delivery.outbox import Outbox
from broker_core.slow_clients.accounts.client_usage import ClientUsage
from broker_core.slow_clients.accounts.guard import SlowClientGuard
from broker_core.slow_clients.evaluate.decision import Decision
from broker_core.slow_clients.evaluate.signals import BacklogCounts
from broker_core.slow_clients.evaluate.wording import notice_fields
from broker_core.slow_clients.rules.presets import resolve_pools
from broker_core.slow_clients.rules.rulebook import RuleBook

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND
HOST_MEMORY = 16 << 30
REFERENCE = 40
"""Bytes of a reference in a spool."""


def policy(
    pool: dict[str, Any] | None = None,
    capacity: int = 50,
    age_ms: int | None = None,
    transports: dict[str, dict[str, Any]] | None = None,
    revision: int = 1,
    **more: Any,
) -> PolicyDocument:
    """Return a policy document for tests of slow clients.

    `transports` maps names to their pool and client_policy. `more` holds rules, xap, activemq and qpid.
    """
    listed = [
        {"name": name, "kind": "tcp", "port": 9_000 + place, **settings}
        for place, (name, settings) in enumerate((transports or {"tcp": {}}).items())
    ]
    return PolicyDocument.from_dict(
        {
            "revision": revision,
            "instance": {"name": "sluice-1"},
            "pool": pool or {},
            "client_policy": {"client_max_capacity": capacity, "client_message_age_limit_ms": age_ms},
            "transports": listed,
            **more,
        }
    )


def rule_book(document: PolicyDocument, host_memory: int = HOST_MEMORY) -> RuleBook:
    """Return the rules of a policy."""
    return RuleBook(document, resolve_pools(document, host_memory, None, "/spools"))


def make_guard(document: PolicyDocument) -> SlowClientGuard:
    """Return a guard with this policy in force."""
    return SlowClientGuard(document, HOST_MEMORY, None, "/spools")


ONE_WAITING = BacklogCounts(1, 0, 0, "")


class FixedBacklog:
    """A backlog whose figures the test sets."""

    def __init__(self, oldest_at: int = 0, waiting: BacklogCounts = ONE_WAITING) -> None:
        self.oldest_at = oldest_at
        self.acked_bytes = 0
        self.window_step_bytes = 0
        self.messages = waiting.outbox_messages
        self.owed_messages = waiting.outbox_messages + waiting.spool_messages
        self.owed_bytes = self.owed_messages
        self.blocked_since = self.unacked_at = 0
        self._waiting = waiting

    def update_progress(self) -> None:
        pass

    def count_messages(self) -> BacklogCounts:
        return self._waiting


def outbox_entry(
    nbytes: int,
    at: int = START,
    sequence: int = 1,
    *,
    stream: int = 1,
    count: int = 1,
    journaled: bool = True,
) -> OutboxEntry:
    """Return a delivery of a real batch that counts as `nbytes`."""
    batch = Batch.parse(build_single_topic_batch("p", "t", [b"x"] * count), verify=False)
    batch.header = batch.header._replace(first_sequence=sequence if journaled else 0)
    return OutboxEntry(stream, batch, None, (1, sequence) if journaled else None, nbytes, count, nbytes, at)


@dataclass(eq=False)
class SimulatedClient:
    """A client session with the figures that the guard reads."""

    name: str
    transport: str
    state: ClientState = ClientState.CONNECTED
    outbox: Outbox = field(default_factory=Outbox)
    spool: list[OutboxEntry] = field(default_factory=list)
    written_sequences: list[int] = field(default_factory=list)
    """Sequences written to its socket, in order."""
    notice: dict[str, Any] | None = None
    acked_bytes: int = 0
    window_step_bytes: int = 0
    blocked_since: int = 0
    unacked_at: int = 0
    account: ClientUsage | None = None

    def update_progress(self) -> None:
        pass

    @property
    def oldest_at(self) -> int:
        return self.spool[0].accepted_at if self.spool else self.outbox.oldest_at

    def count_messages(self) -> BacklogCounts:
        first = (self.spool[0].batch.first_sequence if self.spool else 0) or self.outbox.get_first_sequence(1)
        lost = sum(e.count for e in self.outbox if e.source is None) + sum(
            e.count for e in self.spool if e.source is None
        )
        bookmark = f"sluice-1|{first - 1}|" if first else ""
        return BacklogCounts(self.outbox.messages, sum(e.count for e in self.spool), lost, bookmark)

    @property
    def messages(self) -> int:
        return self.outbox.messages

    @property
    def owed_messages(self) -> int:
        return self.outbox.messages + sum(e.count for e in self.spool)

    @property
    def owed_bytes(self) -> int:
        return self.outbox.nbytes + sum(e.nbytes for e in self.spool)

    @property
    def usage(self) -> ClientUsage:
        assert self.account is not None
        return self.account


def disk_bytes(delivery: OutboxEntry) -> int:
    """Return the bytes that a delivery takes in the spool: a reference if journaled, else a copy."""
    return REFERENCE if delivery.source is not None else delivery.nbytes


class BrokerSimulation:
    """Simulated clients of one instance under one guard.

    Every record goes to all clients. A client reads nothing until the test calls `read`.
    """

    def __init__(self, document: PolicyDocument) -> None:
        self.now = START
        self.guard = make_guard(document)
        self.clients: dict[str, SimulatedClient] = {}
        self.decisions: list[Decision] = []
        self._sequence = 0

    def connect(self, *names: str, transport: str = "tcp") -> None:
        for name in names:
            client = self.clients[name] = SimulatedClient(name, transport)
            client.account = self.guard.register(name, transport, client)
            client.state = next_state(client.state, ClientStateEvent.LOGGED_ON)

    def publish(self, nbytes: int, *only: str, journaled: bool = True) -> int:
        """Publish one record to the named clients, or to all; return its sequence."""
        self._sequence += 1
        for name in only or tuple(self.clients):
            if (client := self.clients.get(name)) is not None:
                self._deliver(client, outbox_entry(nbytes, self.now, self._sequence, journaled=journaled))
        return self._sequence

    def _deliver(self, client: SimulatedClient, delivery: OutboxEntry) -> None:
        if client.state is ClientState.LIVE:
            client.outbox.offer(delivery)
            decision = self.guard.on_queued(client.usage, delivery.nbytes, self.now)
        else:
            client.spool.append(delivery)
            decision = self.guard.on_spooled(client.usage, disk_bytes(delivery), self.now)
        self._carry_out(decision)

    def _carry_out(self, decision: Decision | None) -> None:
        if decision is None:
            return
        self.decisions.append(decision)
        client = self.clients[decision.client]
        if decision.action is PolicyAction.DISCONNECT:
            client.notice = notice_fields(decision)
            self.close(client.name)
            return
        client.state = next_state(client.state, ClientStateEvent.OFFLINE)
        client.spool = client.outbox.take_all()
        self.guard.on_released(client.usage, client.usage.memory)
        if client.spool:
            self._carry_out(self.guard.on_spooled(client.usage, sum(map(disk_bytes, client.spool)), self.now))

    def close(self, name: str) -> None:
        client = self.clients.pop(name)
        client.state = next_state(client.state, ClientStateEvent.CLOSE)
        self.guard.unregister(client.usage)

    def read(self, name: str, records: int = 1_000_000) -> None:
        """Let the client read up to `records` records; it is live again when its spool is empty."""
        client = self.clients[name]
        if client.state is ClientState.LIVE:
            while client.outbox and records:
                for taken in client.outbox.pull(1):
                    client.written_sequences.append(taken.batch.first_sequence)
                    self.guard.on_released(client.usage, taken.nbytes)
                    records -= 1
            return
        if client.state is ClientState.OFFLINED:
            client.state = next_state(client.state, ClientStateEvent.READING)
        while client.spool and records:
            taken = client.spool.pop(0)
            client.written_sequences.append(taken.batch.first_sequence)
            self.guard.on_unspooled(client.usage, disk_bytes(taken))
            records -= 1
        if not client.spool:
            client.state = next_state(client.state, ClientStateEvent.DRAINED)
            self.guard.on_spool_empty(client.usage)

    def wait(self, seconds: float) -> None:
        """Advance the clock, with a tick of the guard each second."""
        end = self.now + int(seconds * SECOND)
        while self.now < end:
            self.now = min(self.now + SECOND, end)
            for decision in self.guard.tick(self.now):
                self._carry_out(decision)

    def apply(self, document: PolicyDocument) -> None:
        self.guard.apply_policy(document)
        for decision in self.guard.tick(self.now):
            self._carry_out(decision)
