"""What the control plane sees: the status of the instance and one entry per client, made once a second at most."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterable
from typing import Any

from broker_core.delivery import ClientState
from broker_core.runtime import clock
from broker_core.runtime.client_subscription import ClientSubscription
from broker_core.runtime.connection import Connection
from broker_core.runtime.events import SAMPLE_EVERY_MS
from broker_core.runtime.explaining import Explaining, subscription_facts
from broker_core.runtime.host import Host

_MS = 1_000_000
MAX_SAMPLES = 2_000
"""Samples of clients published in one second; with more at once the others' turn comes with their next change."""
RESTING = ("live", 0, 0, 0)
SLICE = 100
"""Clients looked at in one turn of the loop."""
MADE_ANEW_EVERY = 10
"""Seconds in which the entry of a client at rest is made anew whether or not anything is known to have changed."""
FEW_CLIENTS = 500
"""So many entries are made in some milliseconds, whenever somebody asks."""


class Statistics:
    """Counts and rates of a host. `second` is called once a second; the rest reads what it found."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._explaining = Explaining()
        self._before = (clock.monotonic_ms(), 0, 0, 0, 0)
        self._delivered: dict[str, int] = {}
        self._rates: dict[str, float] = {}
        self._sampled_at = 0
        self._looks: dict[str, tuple[object, ...]] = {}
        self._recent: list[dict[str, Any]] = []
        self._kept: dict[str, tuple[tuple[object, ...] | None, dict[str, Any]]] = {}
        """Entries of the newest snapshot, each with what it is recognised by."""
        self._span_s, self._looked, self._room, self._also_unchanged = 1.0, 0, 0, False
        self.rates = {"messages_in": 0.0, "bytes_in": 0.0, "messages_out": 0.0, "bytes_out": 0.0}
        self.transports: list[dict[str, Any]] = []

    def look(self) -> None:
        """Renew the rates, and publish samples of clients that wait for something."""
        self._begin()
        self._look_at(list(self._host.clients.items()))
        self._end()

    async def second(self) -> dict[str, Any]:
        """Look, and make the snapshot, a slice of the clients in each turn of the loop."""
        self._begin()
        host, now, made = self._host, self._host.now_ns(), list[dict[str, Any]]()
        everyone = list(host.clients.items())
        for first in range(0, len(everyone), SLICE):
            if first:
                await asyncio.sleep(0)
            part = [one for one in everyone[first : first + SLICE] if host.clients.get(one[0]) is one[1]]
            self._look_at(part)
            made += [self._entry(connection, now, first + place) for place, (_, connection) in enumerate(part)]
        self._end()
        self._recent = [entry for entry in made if entry["name"] in host.clients]
        return self._with_status(now)

    def _begin(self) -> None:
        host, now = self._host, clock.monotonic_ms()
        sent = sum(connection.backlog.sent_messages for connection in host.clients.values())
        sent_bytes = sum(connection.backlog.sent_bytes for connection in host.clients.values())
        host.messages_out, host.bytes_out = host.gone_messages + sent, host.gone_bytes + sent_bytes
        after = (now, host.publishing.messages_in, host.publishing.bytes_in, host.messages_out, host.bytes_out)
        self._span_s = max(now - self._before[0], 1) / 1_000
        for index, key in enumerate(self.rates, 1):
            self.rates[key] = round((after[index] - self._before[index]) / self._span_s, 1)
        self._before = after
        self._room, self._also_unchanged = MAX_SAMPLES, now - self._sampled_at >= SAMPLE_EVERY_MS
        if self._also_unchanged:
            self._sampled_at = now
        self._looked += 1

    def _look_at(self, clients: Iterable[tuple[str, Connection]]) -> None:
        """Renew these clients' rates. Publish a sample of each whose state, lag or losses changed; sometimes of those that
        wait as before."""
        host, now = self._host, self._host.now_ns()
        for name, connection in clients:
            count = connection.backlog.sent_messages
            self._rates[name] = round((count - self._delivered.get(name, 0)) / self._span_s, 1)
            self._delivered[name] = count
            look, before = _look(connection), self._looks.get(name, RESTING)
            self._looks[name] = look
            if self._room and (look != before or (self._also_unchanged and look != RESTING)):
                self._room -= 1
                host.events.sample(now, _lag(connection, now))

    def _end(self) -> None:
        """Forget those that have left."""
        clients = self._host.clients
        for kept in (self._rates, self._delivered, self._looks, self._kept):
            for name in [name for name in kept if name not in clients] if len(kept) > len(clients) else ():
                del kept[name]
        self._explaining.forget(set(clients))

    def _entry(self, connection: Connection, now: int, place: int) -> dict[str, Any]:
        """A client's entry: as it was before, if it rests and nothing of it changed, but made anew every tenth second."""
        mark = self._mark(connection)
        known = self._kept.get(connection.name)
        its_turn = (place + self._looked) % MADE_ANEW_EVERY == 0
        if mark is not None and known is not None and known[0] == mark and not its_turn:
            return known[1]
        entry = self.client(connection, now, crowded=len(self._host.clients) > FEW_CLIENTS)
        self._kept[connection.name] = (mark, entry)
        return entry

    def _mark(self, connection: Connection) -> tuple[object, ...] | None:
        """What an entry at rest is recognised by; None for one whose ages go on."""
        backlog, judging = connection.backlog, self._host.judging
        look = self._looks[connection.name]
        if look[:3] != RESTING[:3] or backlog.blocked_since or (backlog.lanes and backlog.lanes.unacked):
            return None
        return (
            connection, look, backlog.sent_messages, self._rates[connection.name], connection.publishing.messages,
            connection.matched_messages, self._host.policy.revision, judging.guard.stage, judging.last_of(connection.name),
            [(name, target.paused, target.rate) for name, target in connection.subscriptions.items()],
        )

    def status(self) -> dict[str, Any]:
        """The instance: sequences, transports, pools, rates, clients by state, recovery, journal."""
        host, stage = self._host, self._host.judging.guard.stage
        segments = host.journal.segments()
        return {
            "instance": host.instance,
            "pid": os.getpid(),
            "started_at": host.started_at // _MS,
            "uptime_s": (host.now_ns() - host.started_at) // 1_000_000_000,
            "revision": stage.document.revision if stage is not None else host.policy.revision,
            "staged": {"base": host.policy.revision, "client": stage.client, "share": stage.share} if stage is not None else None,
            "next_sequence": host.journal.next_sequence,
            "durable_sequence": host.dispatched_sequence,
            "transports": self._transports(),
            "pools": self._pools(),
            "rates": dict(self.rates),
            "totals": {
                "messages_in": host.publishing.messages_in, "bytes_in": host.publishing.bytes_in,
                "messages_out": host.messages_out, "bytes_out": host.bytes_out, "decisions": host.judging.made,
            },
            "clients_by_state": self._by_state(),
            "connections": len(host.connections),
            "recovery": host.journal.recovery.as_dict(),
            "journal": {"segments": len(segments), "bytes": sum(segment.nbytes for segment in segments)},
        }

    def snapshot(self) -> dict[str, Any]:
        """Status and clients at one moment."""
        self._recent = self.clients()
        return self._with_status(self._host.now_ns())

    def _with_status(self, now: int) -> dict[str, Any]:
        return {"at": now // _MS, "status": self.status(), "clients": self._recent, "replays": self._host.managed.listed()}

    def recent_clients(self) -> list[dict[str, Any]]:
        """The entries of the newest snapshot, a second old at most; few clients' are made anew."""
        if len(self._host.clients) <= FEW_CLIENTS or not self._recent:
            self._recent = self.clients()
        return self._recent

    def clients(self) -> list[dict[str, Any]]:
        """One entry per client that is logged on."""
        now = self._host.now_ns()
        return [self.client(connection, now) for connection in self._host.clients.values()]

    def client(self, connection: Connection, now: int, crowded: bool = False) -> dict[str, Any]:
        """One client's entry: who it is, how far it lags, what it uses, its subscriptions, and why (see Explaining)."""
        backlog, spool = connection.backlog, connection.backlog.spool
        pool = self._host.judging.guard.pool_of(connection.transport)
        return {
            **_lag(connection, now),
            "transport": connection.transport,
            "protocol": connection.sink.protocol,
            "remote": connection.sink.remote,
            "user": connection.user,
            "connected_at": connection.connected_at // _MS,
            "outbox_messages": backlog.messages,
            "spool_messages": spool.messages if spool is not None else 0,
            "offlined_since": backlog.offlined_at // _MS if backlog.offlined_at else None,
            "delivered_bytes": backlog.sent_bytes,
            "published_messages": connection.publishing.messages,
            "rate_out_messages": self._rates.get(connection.name, 0.0),
            "write_blocked_ms": (now - backlog.blocked_since) // _MS if backlog.blocked_since else 0,
            "pool": pool.name,
            "memory_percent": _percent(backlog.nbytes, pool.memory_limit),
            "disk_percent": _percent(backlog.spool_bytes, pool.disk_limit),
            "revision": self._host.judging.guard.revision_of(connection.name),
            **self._explaining.client(connection, now, crowded),
            "subscriptions": [self._subscription(target) for target in connection.subscriptions.values()],
        }

    def _subscription(self, target: ClientSubscription) -> dict[str, Any]:
        behind = self._host.dispatched_sequence - target.next_sequence + 1 if target.replaying else 0
        return {
            "id": target.subscription.id,
            "topic": target.topic,
            "filter": target.filter_text,
            "bookmark": target.bookmark,
            "state": "paused" if target.paused else "replaying" if target.replaying else "live",
            "rate": target.rate.text if target.rate is not None else None,
            "delivered_messages": target.delivered_messages,
            "lag_messages": max(behind, 0),
            **subscription_facts(target),
        }

    def _by_state(self) -> dict[str, int]:
        clients = self._host.clients
        if len(clients) <= FEW_CLIENTS:
            return dict(Counter(_state(connection) for connection in clients.values()))
        return dict(Counter(str(look[0]) for look in self._looks.values()))

    def _transports(self) -> list[dict[str, Any]]:
        numbers = Counter(connection.transport for connection in self._host.clients.values())
        return [
            transport | {"clients": numbers[transport["name"]], "pool": self._host.judging.guard.pool_of(transport["name"]).name}
            for transport in self.transports
        ]

    def _pools(self) -> list[dict[str, Any]]:
        return [
            {
                "name": name, "transports": transports, "memory_used": pool.memory_used,
                "memory_limit": pool.memory_limit, "disk_used": pool.disk_used, "disk_limit": pool.disk_limit,
                "disk_path": pool.disk_path,
            }
            for name, (pool, transports) in self._host.judging.guard.pools().items()
        ]


def _look(connection: Connection) -> tuple[object, ...]:
    """What a client's sample is published for when it changes."""
    backlog = connection.backlog
    return _state(connection), backlog.messages, backlog.spool_bytes, backlog.lost_messages


def _lag(connection: Connection, now: int) -> dict[str, Any]:
    """The figures of a sample."""
    backlog, spool = connection.backlog, connection.backlog.spool
    nbytes, messages, oldest = backlog.nbytes, backlog.messages, backlog.oldest_at
    return {
        "name": connection.name,
        "state": _state(connection),
        "lag_messages": messages + (spool.messages if spool is not None else 0),
        "lag_bytes": nbytes + (spool.backlog_bytes if spool is not None else 0),
        "lag_ms": max(0, now - oldest) // _MS if oldest else 0,
        "outbox_bytes": nbytes,
        "spool_bytes": backlog.spool_bytes,
        "delivered_messages": backlog.sent_messages,
    }


def _state(connection: Connection) -> str:
    state = connection.backlog.state
    if state is ClientState.LIVE and any(target.replaying for target in connection.subscriptions.values()):
        return "replaying"
    return state.value


def _percent(used: int, limit: int) -> float:
    return round(100 * used / limit, 1) if limit else 0.0
