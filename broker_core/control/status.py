"""Status of an instance and one entry per client, collected at most once a second for the control plane."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypedDict, TypeVar

import msgspec

from broker_core.clock import thread_cpu_seconds
from broker_core.connections.connection_view import ConnectionView
from broker_core.control.diagnosis import (
    CatchUpEstimate,
    ClientDiagnosis,
    ClientDiagnostics,
    HealthInputs,
    LagHistory,
    LagSample,
    classify_health,
    window_full_ms,
    worst_health,
)
from broker_core.control.subscription_stats import (
    SubscriptionStats,
    SubscriptionStatsReader,
    client_account,
    delivery_state,
)
from broker_core.delivery.account import NOTHING, DeliveryAccount, sum_volumes
from broker_core.delivery.scheduling import ITERATION_BUDGET_NS
from broker_core.documents.clients import ClientEntry, DeliveryState, Health, SubscriptionEntry, VerdictEntry
from broker_core.documents.instance import (
    DatabaseEntry,
    ExitReport,
    InstanceStatus,
    InstanceTotals,
    JournalTotals,
    LatencyEntry,
    PoolEntry,
    RecoveryEntry,
    RefusedRevision,
    Snapshot,
    StagedPolicyStatus,
    ThroughputRates,
    TransportEntry,
)
from broker_core.documents.problems import ProblemEntry
from broker_core.engine.engine import Engine
from broker_core.engine.stalls import StallHistory
from broker_core.engine.system_records import SAMPLE_INTERVAL_MS
from broker_core.replay.client_subscription import ClientSubscription
from broker_core.slow_clients.evaluate.signals import age_ms
from broker_core.slow_clients.evaluate.why_slow import SlowCause

_MS = 1_000_000
MAX_SAMPLES = 2_000
"""Maximum client samples published per second. Further clients are sampled at their next change."""
IDLE_SAMPLE_KEY = (DeliveryState.LIVE, 0, 0, 0)
"""`_sample_key` of a client without backlog or losses."""
MAX_CLIENTS_PER_SLICE = 100
"""Maximum clients processed in one event-loop iteration, if that stays within the iteration's time budget."""
PAUSE_FACTOR = 3
"""Pause after each slice, as a multiple of the slice's duration.

A message passes through several event-loop iterations, and would otherwise wait for as many slices.
"""
MAX_PAUSE_S = 0.5
"""Maximum sum of pauses in one pass over all clients."""
SUBSCRIPTIONS_PER_CLIENT = 5
"""Number of subscriptions that count as one more client of a slice."""
MAX_SUBSCRIPTIONS_PER_SLICE = 100
"""Maximum subscriptions of one client per slice. Each costs some 35 µs if it has changed."""
IDLE_REBUILD_PASSES = 10
"""Seconds after which the entry of an idle client is rebuilt, even without a known change."""
IDLE_SAMPLE_PASSES = 600
"""Seconds after which an idle client is sampled, too. Otherwise no history would have its deliveries."""
MAX_CLIENTS_WITHOUT_CACHE = 500
"""Number of entries that are built in some milliseconds, and therefore on every request."""


T = TypeVar("T")
BuildSteps = Generator[None, None, T]
"""Generator that builds a T and yields now and then, so that other tasks can run.

The data it reads may change between two steps.
"""


class OpenTransport(TypedDict):
    """Transport of the policy, and the port on which it listens."""

    name: str
    kind: str
    host: str
    port: int
    enabled: bool


class StatusCollector:
    """Counts and rates of a broker.

    `sample_second` is called once a second; other methods read its results.
    """

    def __init__(self, engine: Engine, member: str = "") -> None:
        """Create a collector. `member` is the name of this member of a group."""
        self._engine = engine
        self._member = member
        self._clients = engine.roster.clients
        self._stats_reader = SubscriptionStatsReader(
            engine.journal, engine.frontier, engine.subscriptions.registry
        )
        self._delivered_total = NOTHING
        self._diagnostics = ClientDiagnostics(engine)
        self._lag_history = LagHistory()
        self._previous_totals = (engine.clock.monotonic_ms(), 0, 0, 0, 0)
        self._delivered: dict[str, int] = {}
        self._rates: dict[str, float] = {}
        self._sampled_at = 0
        self._sample_keys: dict[str, tuple[DeliveryState, int, int, int]] = {}
        """`_sample_key` of each client at the last sample."""
        self._recent: list[ClientEntry] = []
        self._entries: dict[str, tuple[tuple[object, ...] | None, ClientEntry]] = {}
        """Entries of the newest snapshot, each with its mark (see `_idle_mark`)."""
        self._idle_entries: dict[str, dict[str, tuple[tuple[object, ...], SubscriptionEntry]]] = {}
        """Entries of idle subscriptions with their marks, by client and id.

        Most of a client's thousand subscriptions are idle.
        """
        self._interval_s, self._passes, self._free_samples, self._samples_unchanged = 1.0, 0, 0, False
        self.rates = ThroughputRates()
        self.delay: LatencyEntry | None = None
        self.transports: list[OpenTransport] = []
        """Transports of the policy. Set by the part that opens them."""
        self.refused_revision: RefusedRevision | None = None
        """Last policy received, if it cannot be followed here."""
        self.exit_report: ExitReport | None = None
        """Exit report of the previous process."""
        self.stalls = StallHistory()
        """Stalls of the event loop."""
        self.problems: Callable[[], list[ProblemEntry]] = list
        """Returns the problems of the group and the links. Set by the broker."""
        self.database: DatabaseEntry | None = None
        """State of the control plane's database. Set by the reporter that uses it."""

    async def sample_second(self) -> Snapshot:
        """Update the rates, publish samples of clients with a backlog, and return the snapshot.

        Clients are processed in slices, with pauses for other tasks.
        """
        self._start_pass()
        at, entries, slice_size, slices = self._engine.clock.now_ns(), list[ClientEntry](), 0, _TimeSlices()
        for index, (name, connection) in enumerate(list(self._clients.items())):
            if slice_size >= MAX_CLIENTS_PER_SLICE or slices.is_over_budget:
                slice_size = 0
                await slices.yield_to_loop()
            slice_size += 1 + len(connection.subscriptions) // SUBSCRIPTIONS_PER_CLIENT
            if self._clients.get(name) is connection:
                entries.append(
                    await _run_in_slices(self._update_entry(connection, number=index + self._passes), slices)
                )
        self._drop_disconnected()
        self._recent = [entry for entry in entries if entry.name in self._clients]
        return self._build_snapshot(at)

    def _start_pass(self) -> None:
        """Update the rates, and start a pass over all clients."""
        engine, now = self._engine, self._engine.clock.monotonic_ms()
        self._delivered_total = sum_volumes(
            (
                engine.roster.ended_account.delivered,
                *(one.backlog.delivered for one in self._clients.values()),
            )
        )
        totals = (now, engine.dispatch.messages_in, engine.dispatch.bytes_in, *self._delivered_total)
        self._interval_s = max(now - self._previous_totals[0], 1) / 1_000
        _, *rates = (
            round((new - old) / self._interval_s, 1)
            for new, old in zip(totals, self._previous_totals, strict=True)
        )
        self.rates = ThroughputRates(
            messages_in=rates[0], bytes_in=rates[1], messages_out=rates[2], bytes_out=rates[3]
        )
        self._previous_totals = totals
        found = engine.facilities.delays.sample_second()
        self.delay = LatencyEntry(**found._asdict()) if found is not None else None
        self._free_samples, self._samples_unchanged = (
            MAX_SAMPLES,
            now - self._sampled_at >= SAMPLE_INTERVAL_MS,
        )
        if self._samples_unchanged:
            self._sampled_at = now
        self._passes += 1

    def _update_entry(self, connection: ConnectionView, number: int) -> BuildSteps[ClientEntry]:
        """Update a client's rate and lag, and return its entry. Publish a sample of it if due.

        An idle, unchanged client keeps its entry, except at every tenth pass. A sample is due if delivery
        state, backlog or losses have changed, sometimes if a backlog is unchanged, and rarely if the client
        is idle.
        """
        name, now, count = connection.name, self._engine.clock.now_ns(), connection.backlog.delivered.messages
        # The count decreases when messages return to the log, because they no longer count as handed over.
        # The rate is then 0.
        self._rates[name] = round(max(0, count - self._delivered.get(name, 0)) / self._interval_s, 1)
        self._delivered[name] = count
        key, previous_key = _sample_key(connection), self._sample_keys.get(name, IDLE_SAMPLE_KEY)
        self._sample_keys[name] = key
        if key[0] is DeliveryState.OFFLINED is not previous_key[0] is not DeliveryState.DRAINING:
            self._lag_history.on_offlined(name, now)
        is_idle = key[:3] == IDLE_SAMPLE_KEY[:3]
        mark = self._idle_mark(connection, key) if is_idle else None
        cached = self._entries.get(name)
        if mark is not None and cached is not None and cached[0] == mark and number % IDLE_REBUILD_PASSES:
            return cached[1]
        figures = yield from self._read_stats(connection)
        if is_idle:
            self._lag_history.on_drained(name)
        else:
            self._lag_history.add_sample(
                name,
                now,
                {
                    id: LagSample(one.lag_messages, one.account.matched.messages)
                    for id, one in figures.items()
                },
            )
        entry = yield from self._build_entry(
            connection, figures, now, crowded=len(self._clients) > MAX_CLIENTS_WITHOUT_CACHE
        )
        self._entries[name] = (mark, entry)
        due = self._samples_unchanged if key != IDLE_SAMPLE_KEY else number % IDLE_SAMPLE_PASSES == 0
        if self._free_samples and (key != previous_key or due):
            self._free_samples -= 1
            self._engine.events.sample(now, entry)
        return entry

    def _idle_mark(
        self, connection: ConnectionView, key: tuple[DeliveryState, int, int, int]
    ) -> tuple[object, ...] | None:
        """Return a value that changes when the entry of an idle client does.

        None for a client with messages in flight, because ages in its entry grow.
        """
        account = connection.account
        if connection.backlog.silent_since or account.outstanding.messages:
            return None
        return (
            connection,
            key,
            account.acknowledged.messages,
            self._rates[connection.name],
            connection.publishing.messages,
            account.matched.messages,
            self._engine.policy.revision,
            self._engine.guard.stage,
            self._engine.decisions.latest_for(connection.name),
            [(name, target.cursor.state, target.rate) for name, target in connection.subscriptions.items()],
        )

    def _drop_disconnected(self) -> None:
        """Drop data of clients that have disconnected."""
        clients = self._clients
        for data in (self._rates, self._delivered, self._sample_keys, self._entries, self._idle_entries):
            if len(data) > len(clients):
                for name in data.keys() - clients.keys():
                    del data[name]
        self._diagnostics.drop_disconnected(clients)
        self._lag_history.drop_disconnected(clients)
        self._stats_reader.drop_disconnected(clients)

    def collect_status(self) -> InstanceStatus:
        """Return the status of the instance."""
        engine, stage = self._engine, self._engine.guard.stage
        segments = engine.journal.segments()
        return InstanceStatus(
            instance=engine.instance,
            member=self._member,
            pid=os.getpid(),
            started_at=engine.started_at // _MS,
            uptime_s=(engine.clock.now_ns() - engine.started_at) // 1_000_000_000,
            revision=stage.document.revision if stage is not None else engine.policy.revision,
            staged=StagedPolicyStatus(base=engine.policy.revision, client=stage.client, share=stage.share)
            if stage is not None
            else None,
            next_sequence=engine.journal.next_sequence,
            durable_sequence=min(engine.frontier.durable, engine.journal.stored_sequence),
            transports=self._list_transports(),
            pools=self._list_pools(),
            rates=self.rates,
            totals=InstanceTotals(
                messages_in=engine.dispatch.messages_in,
                bytes_in=engine.dispatch.bytes_in,
                messages_out=self._delivered_total.messages,
                bytes_out=self._delivered_total.nbytes,
                decisions=engine.decisions.total,
                standstills=engine.policy_loop.watchdog.standstills,
            ),
            delay=self.delay,
            clients_by_state=self._count_by_delivery(),
            connections=len(engine.roster.connections),
            recovery=msgspec.convert(engine.journal.recovery.as_dict(), RecoveryEntry),
            journal=JournalTotals(segments=len(segments), bytes=sum(segment.nbytes for segment in segments)),
            log=str(engine.journal.identity),
            refused=self.refused_revision,
            ended=self.exit_report,
            problems=self.problems(),
            stalls=self.stalls.totals,
            database=self.database,
        )

    def collect_snapshot(self) -> Snapshot:
        """Return status and clients at one moment."""
        self._recent = self.list_clients()
        return self._build_snapshot(self._engine.clock.now_ns())

    def _build_snapshot(self, now: int) -> Snapshot:
        """Return a snapshot of the newest entries with the present status."""
        return Snapshot(
            at=now // _MS,
            status=self.collect_status(),
            clients=self._recent,
            replays=self._engine.managed.list_entries(),
        )

    def list_recent_clients(self) -> list[ClientEntry]:
        """Return the entries of the newest snapshot, at most a second old.

        If there are few clients, the entries are rebuilt.
        """
        if len(self._clients) <= MAX_CLIENTS_WITHOUT_CACHE or not self._recent:
            self._recent = self.list_clients()
        return self._recent

    def list_clients(self) -> list[ClientEntry]:
        """Return an entry for each client that is logged on."""
        return [self.build_client_entry(connection) for connection in self._clients.values()]

    def build_client_entry(self, connection: ConnectionView) -> ClientEntry:
        """Return the entry of a client."""
        return _run_to_end(self._build_client_steps(connection))

    def _build_client_steps(self, connection: ConnectionView) -> BuildSteps[ClientEntry]:
        """Build the entry of a client in steps."""
        figures = yield from self._read_stats(connection)
        return (yield from self._build_entry(connection, figures, self._engine.clock.now_ns()))

    def _read_stats(self, connection: ConnectionView) -> BuildSteps[dict[str, SubscriptionStats]]:
        """Read the statistics of a client's subscriptions, in steps."""
        stats = dict[str, SubscriptionStats]()
        for number, (id, figures) in enumerate(self._stats_reader.read_client(connection), 1):
            stats[id] = figures
            if number % MAX_SUBSCRIPTIONS_PER_SLICE == 0:
                yield
        return {id: one for id, one in stats.items() if _is_current(connection, id, one)}

    def _build_entry(
        self,
        connection: ConnectionView,
        figures: dict[str, SubscriptionStats],
        now: int,
        crowded: bool = False,
    ) -> BuildSteps[ClientEntry]:
        """Build the entry of a client in steps.

        With `crowded`, its diagnosis may be some seconds old; see `ClientDiagnostics.diagnose`.
        """
        backlog, spool, guard = connection.backlog, connection.backlog.spool, self._engine.guard
        pool = guard.pool_for(connection.transport)
        diagnosis = self._diagnostics.diagnose(connection, figures, now, crowded)
        built = yield from self._build_subscriptions(connection, figures, diagnosis, now)
        current = {id: one for id, one in figures.items() if _is_current(connection, id, one)}
        subscriptions = [one for one in built if one.id in current]
        account, delivery = client_account(connection, current.values()), delivery_state(connection)
        lag, caught_up = (
            max((one.lag_messages for one in subscriptions), default=0),
            _latest_catch_up(subscriptions),
        )
        return ClientEntry(
            **_volume_fields(account),
            name=connection.name,
            delivery=delivery,
            health=worst_health(one.health for one in subscriptions),
            lag_messages=lag,
            lag_at_most=lag > 0 and all(one.lag_at_most for one in subscriptions if one.lag_messages == lag),
            lag_bytes=max((one.lag_bytes for one in subscriptions), default=0),
            lag_ms=max((one.lag_ms for one in subscriptions), default=0),
            seconds_behind=max((one.seconds_behind for one in subscriptions), default=0.0),
            caught_up_in_s=caught_up.in_s,
            caught_up_why_none=caught_up.why_none,
            member=self._member,
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
            delivered_bytes=account.delivered.nbytes,
            published_messages=connection.publishing.messages,
            published_topics=dict(connection.publishing.topics),
            rate_out_messages=self._rates.get(connection.name, 0.0),
            write_blocked_ms=age_ms(backlog.silent_since, now),
            pool=pool.name,
            memory_percent=_to_percent(backlog.nbytes, pool.limits.memory),
            disk_percent=_to_percent(backlog.spool_bytes, pool.limits.disk),
            revision=guard.revision_for(connection.name),
            unacked_messages=sum(one.unacked_messages for one in subscriptions),
            window_full_ms=window_full_ms(figures, now),
            held_bytes=backlog.queues.nbytes,
            forecast=diagnosis.forecast,
            why_slow=_unrecorded_verdict(subscriptions) or diagnosis.why_slow,
            last_decision=self._engine.decisions.latest_for(connection.name),
            subscriptions=subscriptions,
        )

    def _build_subscriptions(
        self,
        connection: ConnectionView,
        figures: dict[str, SubscriptionStats],
        diagnosis: ClientDiagnosis,
        now: int,
    ) -> BuildSteps[list[SubscriptionEntry]]:
        """Build the entries of a client's subscriptions in steps.

        Entries of unchanged idle ones are reused.
        """
        is_flapping, entries = self._lag_history.is_flapping(connection.name, now), list[SubscriptionEntry]()
        cached, idle = self._idle_entries.get(connection.name, {}), {}
        for number, id in enumerate(figures, 1):
            if number % MAX_SUBSCRIPTIONS_PER_SLICE == 0:
                yield
            if not _is_current(connection, id, figures[id]):
                continue
            target = connection.subscriptions[id]
            mark = _idle_subscription_mark(target, figures[id], is_flapping)
            cached_entry = cached.get(id)
            if mark is None or cached_entry is None or cached_entry[0] != mark:
                entry = self._build_subscription(target, figures[id], diagnosis, now)
            else:
                entry = cached_entry[1]
            if mark is not None:
                idle[id] = mark, entry
            entries.append(entry)
        self._idle_entries[connection.name] = idle
        return entries

    def _build_subscription(
        self, target: ClientSubscription, figures: SubscriptionStats, diagnosis: ClientDiagnosis, now: int
    ) -> SubscriptionEntry:
        """Build the entry of a subscription."""
        peer, id = target.peer, target.id
        queue = peer.backlog.queues.get(target.stream)
        window = queue.window if queue is not None else None
        oldest, caught_up = self._lag_history.oldest_sample(peer.name, id), CatchUpEstimate()
        if figures.lag_messages:
            caught_up = self._lag_history.estimate_catch_up(peer.name, id, figures.delivery)
        inputs = HealthInputs(
            figures.lag_messages,
            oldest.lag if oldest is not None else None,
            matched_since=figures.account.matched.messages - oldest.matched if oldest is not None else 0,
            in_flight=figures.account.in_flight.messages,
            unacked=figures.unacked,
            cause=diagnosis.why_slow.cause if diagnosis.why_slow is not None else SlowCause.KEEPS_UP,
            blocked_ms=age_ms(figures.spent_since or peer.backlog.silent_since, now),
            spent_ms=age_ms(figures.spent_since, now),
            window_full_ms=age_ms(figures.window_full_since, now),
            paused=figures.paused,
            paced=target.rate is not None,
            draining=figures.delivery is DeliveryState.DRAINING,
            flapping=self._lag_history.is_flapping(peer.name, now),
        )
        return SubscriptionEntry(
            **_volume_fields(figures.account),
            id=id,
            delivery=figures.delivery,
            health=_subscription_health(target, inputs),
            lag_messages=figures.lag_messages,
            lag_at_most=figures.lag_at_most,
            lag_bytes=figures.lag_bytes,
            lag_ms=age_ms(figures.oldest_at, now),
            seconds_behind=round(max(0, now - figures.behind_at) / 1e9, 3) if figures.behind_at else 0.0,
            caught_up_in_s=caught_up.in_s,
            caught_up_why_none=caught_up.why_none,
            unacked_messages=figures.unacked,
            topic=target.topic,
            filter=target.filter_text,
            bookmark=target.bookmark,
            rate=target.rate.text if target.rate is not None else None,
            ack=window.mode.value if window is not None else None,
            prefetch=window.prefetch if window is not None else None,
            durable=target.shared.record.name if target.shared is not None else target.durable or None,
            lease_ms=target.lease_ms or None,
            paused=figures.paused,
            unrecorded=target.unrecorded,
        )

    def _count_by_delivery(self) -> dict[str, int]:
        """Return the number of clients by delivery state."""
        clients = self._clients
        if len(clients) <= MAX_CLIENTS_WITHOUT_CACHE:
            return dict(Counter(delivery_state(connection).value for connection in clients.values()))
        return dict(Counter(key[0].value for key in self._sample_keys.values()))

    def _list_transports(self) -> list[TransportEntry]:
        """Return the transports with their numbers of clients."""
        numbers = Counter(connection.transport for connection in self._clients.values())
        return [
            TransportEntry(
                **one, clients=numbers[one["name"]], pool=self._engine.guard.pool_for(one["name"]).name
            )
            for one in self.transports
        ]

    def _list_pools(self) -> list[PoolEntry]:
        """Return the pools with their use."""
        return [
            PoolEntry(
                name=name,
                transports=transports,
                memory_used=pool.memory_used,
                memory_limit=pool.limits.memory,
                disk_used=pool.disk_used,
                disk_limit=pool.limits.disk,
                disk_path=pool.limits.disk_path,
            )
            for name, (pool, transports) in self._engine.guard.pools().items()
        ]


def _run_to_end(steps: BuildSteps[T]) -> T:
    """Run a stepwise build to its end, in this event-loop iteration."""
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            result: T = finished.value
            return result


class _TimeSlices:
    """Time slices of one pass over all clients."""

    def __init__(self) -> None:
        self._free_pause_s = MAX_PAUSE_S
        self._started_at_s = thread_cpu_seconds()

    @property
    def is_over_budget(self) -> bool:
        """Whether this slice has used its CPU time."""
        return (thread_cpu_seconds() - self._started_at_s) * 1e9 >= ITERATION_BUDGET_NS

    async def yield_to_loop(self) -> None:
        """Pause, so that other tasks can run, and start the next slice."""
        pause_s = min(PAUSE_FACTOR * (thread_cpu_seconds() - self._started_at_s), self._free_pause_s)
        self._free_pause_s -= pause_s
        await asyncio.sleep(pause_s)
        self._started_at_s = thread_cpu_seconds()


async def _run_in_slices(steps: BuildSteps[T], slices: _TimeSlices) -> T:
    """Run a stepwise build to its end, one step per slice."""
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            result: T = finished.value
            return result
        await slices.yield_to_loop()


def _is_current(connection: ConnectionView, id: str, figures: SubscriptionStats) -> bool:
    """Return whether statistics still belong to the client's present subscription of that id.

    The figures of one that has ended meanwhile are part of the client's ended account.
    """
    target = connection.subscriptions.get(id)
    return target is not None and target.account is figures.account


def _sample_key(connection: ConnectionView) -> tuple[DeliveryState, int, int, int]:
    """Return the figures of a client whose change causes a sample."""
    account = connection.account
    return (
        delivery_state(connection),
        account.waiting.messages,
        connection.backlog.spool_bytes,
        account.lost_volume.messages,
    )


def _unrecorded_verdict(subscriptions: Sequence[SubscriptionEntry]) -> VerdictEntry | None:
    """Return the verdict on a client whose only problem is that topics are no longer journaled."""
    unrecorded = [one for one in subscriptions if one.health is Health.NOT_RECORDED]
    if not unrecorded or worst_health(one.health for one in subscriptions) is not Health.NOT_RECORDED:
        return None
    return VerdictEntry(
        cause=str(Health.NOT_RECORDED),
        sentence=f"The policy no longer journals {unrecorded[0].topic}: no more records reach the "
        f"subscription {unrecorded[0].id}.",
        evidence={"subscriptions": len(unrecorded)},
    )


def _subscription_health(target: ClientSubscription, inputs: HealthInputs) -> Health:
    """Return the health of a subscription: NOT_RECORDED if it gets no more records of the log."""
    health = classify_health(inputs)
    is_unrecorded = target.unrecorded == "all" and health is Health.KEEPS_UP
    return Health.NOT_RECORDED if is_unrecorded else health


def _idle_subscription_mark(
    target: ClientSubscription, figures: SubscriptionStats, is_flapping: bool
) -> tuple[object, ...] | None:
    """Return a value that changes when the entry of an idle subscription does.

    Idle means that no message waits or is in flight. None for others, because ages in their entries grow.
    """
    account, journaled, unjournaled = figures.account, figures.account.journaled, figures.account.unjournaled
    if figures.lag_messages or figures.window_full_since or figures.unacked or account.in_flight.messages:
        return None
    queue = target.peer.backlog.queues.get(target.stream)
    window = queue.window if queue is not None else None
    return (
        target,
        is_flapping,
        figures.delivery,
        figures.paused,
        journaled.matched,
        unjournaled.matched,
        journaled.handed,
        unjournaled.handed,
        journaled.acknowledged + unjournaled.acknowledged,
        *account.discarded.items(),
        target.rate,
        target.durable,
        target.lease_ms,
        target.unrecorded,
        (window.mode, window.prefetch) if window is not None else None,
    )


def _volume_fields(account: DeliveryAccount) -> dict[str, Any]:
    """Return the message and byte fields of an entry from an account."""
    matched, acknowledged, in_flight = account.matched, account.acknowledged, account.in_flight
    waiting = account.waiting
    return {
        "matched_messages": matched.messages,
        "matched_bytes": matched.nbytes,
        "acknowledged_messages": acknowledged.messages,
        "acknowledged_bytes": acknowledged.nbytes,
        "in_flight_messages": in_flight.messages,
        "in_flight_bytes": in_flight.nbytes,
        "waiting_messages": waiting.messages,
        "waiting_bytes": waiting.nbytes,
        "gone": {cause.value: volume.messages for cause, volume in account.discarded.items()},
        "gone_bytes": account.discarded_volume.nbytes,
        "delivered_messages": account.delivered.messages,
        "lost_messages": account.lost_volume.messages,
    }


def _latest_catch_up(subscriptions: list[SubscriptionEntry]) -> CatchUpEstimate:
    """Return when the last of a client's subscriptions catches up; without a time if one of them has none."""
    lagging = [one for one in subscriptions if one.lag_messages]
    for one in lagging:
        if one.caught_up_in_s is None:
            return CatchUpEstimate(why_none=one.caught_up_why_none)
    return CatchUpEstimate(max((one.caught_up_in_s or 0.0 for one in lagging), default=None))


def _to_percent(used: int, limit: int) -> float:
    """Return a use as a percentage of its limit; 0 without a limit."""
    return round(100 * used / limit, 1) if limit else 0.0
