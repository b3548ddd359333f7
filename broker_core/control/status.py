"""What the control plane sees: the status of the instance and one entry per client, made once a second at most."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol, TypedDict

import msgspec

from broker_core.clock import Clock
from broker_core.config import PolicyDocument
from broker_core.connections.member import Member
from broker_core.connections.roster import Roster
from broker_core.control.explaining import Explaining, Judged, window_full_ms
from broker_core.control.figures import (
    AmountFields,
    Figures,
    Reading,
    amount_fields,
    delivery_of,
    is_paused,
)
from broker_core.control.health import Lags, Seen, health_of, worst
from broker_core.delivery.account import NOTHING, total
from broker_core.documents.clients import ClientEntry, Delivery, Health, LastDecision, SubscriptionEntry
from broker_core.documents.instance import (
    InstanceStatus,
    JournalTotals,
    LastWords,
    PoolEntry,
    Rates,
    RecoveryEntry,
    Snapshot,
    StageEntry,
    Totals,
    TransportEntry,
)
from broker_core.documents.replays import ReplayEntry
from broker_core.engine.decisions import Decisions
from broker_core.engine.dispatch import Dispatch
from broker_core.engine.events import SAMPLE_EVERY_MS, ClientEvents, Sample
from broker_core.journal.journal import Journal
from broker_core.replay.client_subscription import ClientSubscription
from broker_core.replay.frontier import Frontier
from broker_core.replay.managed_replays import ManagedReplays

_MS = 1_000_000
MAX_SAMPLES = 2_000
"""Samples of clients published in one second; with more at once the others' turn comes with their next change."""
RESTING = (Delivery.LIVE, 0, 0, 0)
SLICE = 100
"""Clients looked at in one turn of the loop."""
SUBSCRIPTIONS_A_CLIENT = 5
"""Of a client with many, so many take as long as another client."""
MADE_ANEW_EVERY = 10
"""Seconds in which the entry of a client at rest is made anew whether or not anything is known to have changed."""
FEW_CLIENTS = 500
"""So many entries are made in some milliseconds, whenever somebody asks."""


class Instance(Judged, Protocol):
    """What the status is made of."""

    @property
    def instance(self) -> str: ...
    @property
    def policy(self) -> PolicyDocument: ...
    @property
    def started_at(self) -> int: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def journal(self) -> Journal: ...
    @property
    def frontier(self) -> Frontier: ...
    @property
    def roster(self) -> Roster: ...
    @property
    def dispatch(self) -> Dispatch: ...
    @property
    def decisions(self) -> Decisions: ...
    @property
    def events(self) -> ClientEvents: ...
    @property
    def managed(self) -> ManagedReplays: ...


class OpenTransport(TypedDict):
    """A transport of the policy, and the port it listens on."""

    name: str
    kind: str
    host: str
    port: int
    enabled: bool


class LagFields(TypedDict):
    """The fields of an entry that say how far it is behind, and how it fares."""

    lag_messages: int
    lag_bytes: int
    lag_ms: int
    seconds_behind: float
    caught_up_in_s: float | None
    health: Health


class Statistics:
    """Counts and rates of a broker. `second` is called once a second; the rest reads what it found."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._clients = instance.roster.clients
        self._guard = instance.settle.guard
        self._reading = Reading(instance.journal, instance.frontier)
        self._out = NOTHING
        self._explaining = Explaining(instance)
        self._lags = Lags()
        self._before = (instance.clock.monotonic_ms(), 0, 0, 0, 0)
        self._delivered: dict[str, int] = {}
        self._rates: dict[str, float] = {}
        self._sampled_at = 0
        self._looks: dict[str, tuple[Delivery, int, int, int]] = {}
        self._recent: list[ClientEntry] = []
        self._kept: dict[str, tuple[tuple[object, ...] | None, ClientEntry]] = {}
        """Entries of the newest snapshot, each with what it is recognised by."""
        self._span_s, self._looked, self._room, self._also_unchanged = 1.0, 0, 0, False
        self.rates = Rates()
        self.transports: list[OpenTransport] = []
        self.ended: LastWords | None = None
        """Why the process before this one ended."""
        """Those of the policy, by whoever opens them."""

    def look(self) -> None:
        """Renew the rates, and publish samples of clients that wait for something."""
        self._begin()
        for name, connection in list(self._clients.items()):
            self._look_at(name, connection)
        self._end()

    async def second(self) -> Snapshot:
        """Look, and make the snapshot, a slice of the clients in each turn of the loop."""
        self._begin()
        now, made = self._instance.clock.now_ns(), list[ClientEntry]()
        looked_at = 0
        for place, (name, connection) in enumerate(list(self._clients.items())):
            if looked_at >= SLICE:
                looked_at = 0
                await asyncio.sleep(0)
            looked_at += 1 + len(connection.subscriptions) // SUBSCRIPTIONS_A_CLIENT
            if self._clients.get(name) is connection:
                self._look_at(name, connection)
                made.append(self._entry(connection, now, place))
        self._end()
        self._recent = [entry for entry in made if entry.name in self._clients]
        return self._with_status(now)

    def _begin(self) -> None:
        instance, now = self._instance, self._instance.clock.monotonic_ms()
        self._out = total(
            (instance.roster.gone.delivered, *(one.backlog.delivered for one in self._clients.values()))
        )
        after = (now, instance.dispatch.messages_in, instance.dispatch.bytes_in, *self._out)
        self._span_s = max(now - self._before[0], 1) / 1_000
        _, *grown = (
            round((new - old) / self._span_s, 1) for new, old in zip(after, self._before, strict=True)
        )
        self.rates = Rates(messages_in=grown[0], bytes_in=grown[1], messages_out=grown[2], bytes_out=grown[3])
        self._before = after
        self._room, self._also_unchanged = MAX_SAMPLES, now - self._sampled_at >= SAMPLE_EVERY_MS
        if self._also_unchanged:
            self._sampled_at = now
        self._looked += 1

    def _look_at(self, name: str, connection: Member) -> None:
        """Renew a client's rate and lag. Publish a sample of it if its delivery, lag or losses changed; sometimes if it waits
        as before."""
        now, count = self._instance.clock.now_ns(), connection.backlog.delivered.messages
        self._rates[name] = round((count - self._delivered.get(name, 0)) / self._span_s, 1)
        self._delivered[name] = count
        look, before = _look(connection), self._looks.get(name, RESTING)
        self._looks[name] = look
        if look[0] is Delivery.OFFLINED is not before[0] is not Delivery.DRAINING:
            self._lags.offlined(name, now)
        if look[:3] == RESTING[:3]:
            self._lags.rests(name)
            if look == before:
                return
        figures = self._reading.client(connection)
        self._lags.note(name, now, {id: one.lag_messages for id, one in figures.items()})
        if self._room and (look != before or (self._also_unchanged and look != RESTING)):
            self._room -= 1
            self._instance.events.sample(now, self._sample(connection, figures, now))

    def _sample(self, connection: Member, figures: Mapping[str, Figures], now: int) -> Sample:
        lag = _greatest([self._lag(connection, id, one, now) for id, one in figures.items()])
        return Sample(
            connection.name, delivery_of(connection).value, lag["lag_messages"], lag["lag_bytes"], lag["lag_ms"],
            connection.backlog.nbytes, connection.backlog.spool_bytes, connection.backlog.delivered.messages,
            lag["seconds_behind"], lag["health"].value,
        )  # fmt: skip

    def _end(self) -> None:
        """Forget those that have left."""
        clients = self._clients
        for kept in (self._rates, self._delivered, self._looks, self._kept):
            for name in [name for name in kept if name not in clients] if len(kept) > len(clients) else ():
                del kept[name]
        self._explaining.forget(clients)
        self._lags.forget(clients)
        self._reading.forget(clients)

    def _entry(self, connection: Member, now: int, place: int) -> ClientEntry:
        """A client's entry: as it was before, if it rests and nothing of it changed, but made anew every tenth second."""
        mark = self._mark(connection)
        known = self._kept.get(connection.name)
        its_turn = (place + self._looked) % MADE_ANEW_EVERY == 0
        if mark is not None and known is not None and known[0] == mark and not its_turn:
            return known[1]
        entry = self.client(connection, now, crowded=len(self._clients) > FEW_CLIENTS)
        self._kept[connection.name] = (mark, entry)
        return entry

    def _mark(self, connection: Member) -> tuple[object, ...] | None:
        """What an entry at rest is recognised by; None for one whose ages go on."""
        backlog, account = connection.backlog, connection.account
        look = self._looks[connection.name]
        if look[:3] != RESTING[:3] or backlog.blocked_since or account.owed.messages:
            return None
        return (
            connection,
            look,
            account.acknowledged.messages,
            self._rates[connection.name],
            connection.publishing.messages,
            account.matched.messages,
            self._instance.policy.revision,
            self._guard.stage,
            self._instance.decisions.last_of(connection.name),
            [(name, target.cursor.state, target.rate) for name, target in connection.subscriptions.items()],
        )

    def status(self) -> InstanceStatus:
        """The instance: sequences, transports, pools, rates, clients by delivery, recovery, journal."""
        instance, stage = self._instance, self._guard.stage
        segments = instance.journal.segments()
        return InstanceStatus(
            instance=instance.instance,
            pid=os.getpid(),
            started_at=instance.started_at // _MS,
            uptime_s=(instance.clock.now_ns() - instance.started_at) // 1_000_000_000,
            revision=stage.document.revision if stage is not None else instance.policy.revision,
            staged=StageEntry(base=instance.policy.revision, client=stage.client, share=stage.share) if stage is not None else None,
            next_sequence=instance.journal.next_sequence,
            durable_sequence=instance.frontier.durable,
            transports=self._transports(),
            pools=self._pools(),
            rates=self.rates,
            totals=Totals(
                messages_in=instance.dispatch.messages_in, bytes_in=instance.dispatch.bytes_in,
                messages_out=self._out.messages, bytes_out=self._out.nbytes, decisions=instance.decisions.made,
                standstills=instance.settle.watchdog.found,
            ),
            clients_by_state=self._by_delivery(),
            connections=len(instance.roster.connections),
            recovery=msgspec.convert(instance.journal.recovery.as_dict(), RecoveryEntry),
            journal=JournalTotals(segments=len(segments), bytes=sum(segment.nbytes for segment in segments)),
            log=str(instance.journal.identity),
            ended=self.ended,
        )  # fmt: skip

    def snapshot(self) -> Snapshot:
        """Status and clients at one moment."""
        self._recent = self.clients()
        return self._with_status(self._instance.clock.now_ns())

    def _with_status(self, now: int) -> Snapshot:
        replays = msgspec.convert(self._instance.managed.listed(), list[ReplayEntry])
        return Snapshot(at=now // _MS, status=self.status(), clients=self._recent, replays=replays)

    def recent_clients(self) -> list[ClientEntry]:
        """The entries of the newest snapshot, a second old at most; few clients' are made anew."""
        if len(self._clients) <= FEW_CLIENTS or not self._recent:
            self._recent = self.clients()
        return self._recent

    def clients(self) -> list[ClientEntry]:
        """One entry per client that is logged on."""
        now = self._instance.clock.now_ns()
        return [self.client(connection, now) for connection in self._clients.values()]

    def client(self, connection: Member, now: int, crowded: bool = False) -> ClientEntry:
        """One client's entry. `crowded`: its explanation may be some seconds old, see Explaining."""
        backlog, spool = connection.backlog, connection.backlog.spool
        pool = self._guard.pool_of(connection.transport)
        figures = self._reading.client(connection)
        lags = {id: self._lag(connection, id, one, now) for id, one in figures.items()}
        amounts = {id: amount_fields(one.account) for id, one in figures.items()}
        own = self._reading.account(connection, list(figures.values()))
        same = next((amounts[id] for id, one in figures.items() if one.account is own), None)
        explained = self._explaining.client(connection, figures, now, crowded)
        last = self._instance.decisions.last_of(connection.name)
        delivery = delivery_of(connection)
        return ClientEntry(
            name=connection.name,
            delivery=delivery,
            state=delivery,
            **_greatest(list(lags.values())),
            **(same or amount_fields(own)),
            transport=connection.transport,
            protocol=connection.sink.protocol,
            remote=connection.sink.remote,
            user=connection.user,
            connected_at=connection.connected_at // _MS,
            outbox_bytes=backlog.nbytes,
            outbox_messages=backlog.messages,
            spool_bytes=backlog.spool_bytes,
            spool_messages=spool.messages if spool is not None else 0,
            offlined_since=backlog.offlined_at // _MS if backlog.offlined_at else None,
            delivered_bytes=own.delivered.nbytes,
            published_messages=connection.publishing.messages,
            rate_out_messages=self._rates.get(connection.name, 0.0),
            write_blocked_ms=_blocked_ms(connection, now),
            pool=pool.name,
            memory_percent=_percent(backlog.nbytes, pool.memory_limit),
            disk_percent=_percent(backlog.spool_bytes, pool.disk_limit),
            revision=self._guard.revision_of(connection.name),
            unacked_messages=sum(one.unacked for one in figures.values()),
            window_full_ms=window_full_ms(figures, now),
            held_bytes=backlog.lanes.nbytes,
            forecast=explained.forecast,
            why_slow=explained.why_slow,
            last_decision=msgspec.convert(last, LastDecision) if last is not None else None,
            subscriptions=[
                _subscription(target, figures[id], lags[id], amounts[id]) for id, target in connection.subscriptions.items()
            ],
        )  # fmt: skip

    def _lag(self, connection: Member, id: str, figures: Figures, now: int) -> LagFields:
        """How far one subscription is behind."""
        name = connection.name
        target = connection.subscriptions[id]
        seen = Seen(
            figures.lag_messages, self._lags.before(name, id), is_paused(target),
            target.rate is not None, _blocked_ms(connection, now),
            _age_ms(figures.window_full_since, now), self._lags.flaps(name, now),
        )  # fmt: skip
        return {
            "lag_messages": figures.lag_messages,
            "lag_bytes": figures.lag_bytes,
            "lag_ms": _age_ms(figures.oldest_at, now),
            "seconds_behind": round(max(0, now - figures.behind_at) / 1e9, 3) if figures.behind_at else 0.0,
            "caught_up_in_s": self._lags.caught_up_in_s(name, id) if figures.lag_messages else None,
            "health": health_of(seen),
        }

    def _by_delivery(self) -> dict[str, int]:
        clients = self._clients
        if len(clients) <= FEW_CLIENTS:
            return dict(Counter(delivery_of(connection).value for connection in clients.values()))
        return dict(Counter(look[0].value for look in self._looks.values()))

    def _transports(self) -> list[TransportEntry]:
        numbers = Counter(connection.transport for connection in self._clients.values())
        return [
            TransportEntry(**one, clients=numbers[one["name"]], pool=self._guard.pool_of(one["name"]).name)
            for one in self.transports
        ]

    def _pools(self) -> list[PoolEntry]:
        return [
            PoolEntry(
                name=name, transports=transports, memory_used=pool.memory_used, memory_limit=pool.memory_limit,
                disk_used=pool.disk_used, disk_limit=pool.disk_limit, disk_path=pool.disk_path,
            )
            for name, (pool, transports) in self._guard.pools().items()
        ]  # fmt: skip


def _look(connection: Member) -> tuple[Delivery, int, int, int]:
    """What a client's sample is published for when it changes."""
    backlog = connection.backlog
    account = connection.account
    return delivery_of(connection), account.waiting.messages, backlog.spool_bytes, account.lost.messages


def _subscription(
    target: ClientSubscription, figures: Figures, lag: LagFields, amounts: AmountFields
) -> SubscriptionEntry:
    lane = target.peer.backlog.lanes.get(target.stream)
    window = lane.window if lane is not None else None
    return SubscriptionEntry(
        id=target.id,
        topic=target.topic,
        filter=target.filter_text,
        bookmark=target.bookmark,
        delivery=figures.delivery,
        state=figures.delivery,
        **lag,
        **amounts,
        rate=target.rate.text if target.rate is not None else None,
        ack=window.mode.value if window is not None else None,
        prefetch=window.prefetch if window is not None else None,
        unacked_messages=figures.unacked,
        durable=target.durable or None,
        lease_ms=target.lease_ms or None,
        paused=is_paused(target),
    )


def _greatest(known: Sequence[LagFields]) -> LagFields:
    """What a client lags by: the greatest of its subscriptions'. It has caught up when the last of them has, if all do."""
    if len(known) == 1:
        return known[0]
    times = [one["caught_up_in_s"] for one in known if one["lag_messages"]]
    timed = [time for time in times if time is not None]
    return {
        "lag_messages": max((one["lag_messages"] for one in known), default=0),
        "lag_bytes": max((one["lag_bytes"] for one in known), default=0),
        "lag_ms": max((one["lag_ms"] for one in known), default=0),
        "seconds_behind": max((one["seconds_behind"] for one in known), default=0.0),
        "caught_up_in_s": max(timed) if timed and len(timed) == len(times) else None,
        "health": worst(one["health"] for one in known),
    }


def _age_ms(since: int, now: int) -> int:
    return max(0, now - since) // _MS if since else 0


def _blocked_ms(connection: Member, now: int) -> int:
    return _age_ms(connection.backlog.blocked_since, now)


def _percent(used: int, limit: int) -> float:
    return round(100 * used / limit, 1) if limit else 0.0
