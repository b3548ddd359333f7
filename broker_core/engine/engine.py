"""One running instance without its listeners: the rooms of the engine, put together. `Broker` makes and drives it.

Nobody below holds an Engine: each part is given what it needs. All of it runs on one event loop; nothing here is done per
record, the unit is the batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import structlog

from broker_core.clock import Clock
from broker_core.config import PolicyDocument
from broker_core.connections import heartbeats
from broker_core.connections.admission import PendingConnections, PreLogonReadQueue
from broker_core.connections.connection import Connection
from broker_core.connections.logons import LogonAuthenticator, NameBanList
from broker_core.connections.name_owners import ClientNameOwners
from broker_core.connections.ports import ConnectionServices, ReplicatedLogStatus
from broker_core.connections.quotas import Quotas
from broker_core.connections.resume import ResumePoints, ResumeTokens, load_or_create_key
from broker_core.connections.roster import ConnectionTable
from broker_core.connections.subscription_leases import SubscriptionLeases
from broker_core.delivery.loss_ledger import LossLedger
from broker_core.delivery.ports import InstanceResources, MatchReceiver
from broker_core.delivery.scheduling import ReplayFairShare, WorkScheduler
from broker_core.delivery.sink import ConnectionSink
from broker_core.documents.instance import LogSubscriberEntry
from broker_core.engine.dispatch import Dispatcher
from broker_core.engine.enforcement import PolicyEnforcer
from broker_core.engine.log_subscribers import log_subscribers, losses, tell_losses
from broker_core.engine.maintenance import JournalMaintenance
from broker_core.engine.policy_loop import PolicyLoop
from broker_core.engine.subscriptions import SubscriptionManager
from broker_core.engine.system_records import RecentDecisions, SystemRecordBuffer
from broker_core.errors import JournalError
from broker_core.journal.commit_log import CommitLogFactory, LocalCommitLog
from broker_core.journal.journal import Journal
from broker_core.journal.log_reader import ReaderThread
from broker_core.names import BROKER_NAME, KEPT_TOPIC
from broker_core.replay.control import ReplayControl
from broker_core.replay.cursor import DurableFrontier, LogEnd
from broker_core.replay.durable_subscriptions import DurableSubscriptions
from broker_core.replay.managed_replays import ManagedReplays
from broker_core.replay.positions.file import DurableSubscriptionRecord, ManagedReplayRecord
from broker_core.replay.positions.group_sync import GroupPositionSync
from broker_core.replay.positions.store import PositionStore
from broker_core.replay.sharing.shared_subscription import SharedSubscription
from broker_core.slow_clients.accounts.guard import SlowClientGuard
from broker_core.slow_clients.rules.rulebook import StagedRevision
from broker_core.subscriptions.destinations import SyncDestinationFilter
from broker_core.subscriptions.journaled_topics import JournaledTopics
from broker_core.subscriptions.subscription import Subscription
from broker_core.subscriptions.topics import TopicPattern
from broker_core.sync_replication.sync_replication import SyncReplication

log = structlog.get_logger("sluice.engine")
TICK_MS: Final = 1_000
"""How often `tick` is called."""
CLOCK_JUMP_NS: Final = 2_000_000_000
"""The wall clock was set by more than this: it is told. Less is how clocks are kept right."""
LOGON_TIMEOUT_MS: Final = 10_000
"""A connection that hasn't logged on by then is closed."""


class Engine:
    """The parts by name; what they do together in time is below."""

    def __init__(
        self,
        journal: Journal,
        policy: PolicyDocument,
        spool_directory: Path,
        host_memory: int,
        ulimit: int | None,
        clock: Clock,
        make_log: CommitLogFactory = LocalCommitLog,
        confirmations: SyncReplication | None = None,
    ) -> None:
        """`confirmations`: those that a group's member waits for as well; without, its own."""
        self.instance = journal.instance
        self.journal = journal
        self.clock = clock
        self.policy = policy
        self.started_at = clock.now_ns()
        self._clock_ahead = clock.now_ns() - clock.monotonic_ns()
        self._tasks: set[asyncio.Task[None]] = set()
        self._positions: asyncio.Task[None] | None = None
        self.in_common: GroupPositionSync | None = None
        """Of a group's member."""
        state = spool_directory.parent / "state"

        self.ledger = LossLedger()
        self.events = SystemRecordBuffer()
        self.anteroom = PendingConnections()
        self.door = PreLogonReadQueue(clock)
        self.roster = ConnectionTable(self.anteroom)
        self.leases = SubscriptionLeases()
        self.reader = ReaderThread(clock)
        self.share = ReplayFairShare(clock)
        self.frontier = DurableFrontier(journal.next_sequence - 1)
        self.everywhere = DurableFrontier(0)
        """What sync members and sync destinations have too; nobody follows it by itself."""
        self.everywhere.stamped = self.frontier.stamped
        self.facilities = InstanceResources(
            journal.instance,
            clock,
            journal,
            self.reader,
            self.share,
            WorkScheduler(clock),
            self.ledger,
            self.spawn,
        )
        self.subscriptions = SubscriptionManager(lambda: self.dispatch.topics)
        kept = journal.directory / f"{journal.instance}.kept.json"
        self.kept = PositionStore(kept, journal.pin, journal.files)
        self.control = ReplayControl(
            self.facilities, self.frontier, self.everywhere, self.subscriptions, self.kept
        )
        self.durables = DurableSubscriptions(self.facilities, self.frontier, self.kept, self._share)
        self.managed = ManagedReplays(self.facilities, self.frontier, self.control, self.kept)
        self.kept.on_dropped = self._release
        self.owners = ClientNameOwners(journal.directory / f"{self.instance}.owners", journal.files)
        self.owners.on_moved = journal.set_user_lookup(self.owners.user_of)
        self.chores = JournalMaintenance(journal, self.owners, self.spawn, self.on_log_broken)
        self.guard = SlowClientGuard(
            policy,
            host_memory,
            ulimit,
            str(spool_directory),
            lambda name: journal.bytes_pinned_by(self.owners.user_of(name)),
        )
        self.settle = PolicyLoop(
            self.facilities, self.frontier, self.roster, self.control, self.guard, self.events
        )
        self.confirmations = confirmations or SyncReplication("", journal, clock)
        self.confirmations.apply_policy(policy)
        topics = JournaledTopics(policy.instance)
        self.dispatch = Dispatcher(
            self.facilities,
            self.frontier,
            self.everywhere,
            self.roster,
            self.subscriptions,
            self.settle.run_turn_end,
            topics,
            SyncDestinationFilter(policy.destinations, topics.decoder_of),
            self.confirmations,
            make_log,
        )
        self.dispatch.on_broken = self.on_log_broken
        self.durables.is_journaled = self.managed.is_journaled = self._is_journaled
        self.on_broken: Callable[[JournalError], None] | None = None
        """The process has to end, and this is why; set by whoever runs it."""
        self.logons = LogonAuthenticator(self.facilities, self.roster, policy, self.owners)
        self.quotas = Quotas(policy, self.kept, self.owners, journal, clock.monotonic_ns)
        self.services = self.subscriptions.services = self._services(state)
        self.decisions = RecentDecisions(self.instance, self.started_at, self.events)
        self.enforcement = self.settle.enforces = PolicyEnforcer(
            self.services, self.guard, self.decisions, self.events
        )

    def start_position_sync(self, following: ReplicatedLogStatus) -> None:
        """Of a group's member: what is kept for clients that are away, all members know."""
        self.dispatch.following = following
        end = LogEnd(following.wait_caught_up, self.clock.monotonic_ns, self._end_is_read)
        self.frontier.end = self.everywhere.end = end
        following.on_current(self._close_those_told_less)

        def on_merged(replay: ManagedReplayRecord) -> None:
            # Not in the middle of what is delivered.
            asyncio.get_running_loop().call_soon(self.managed.follow, replay)

        made = self.in_common = GroupPositionSync(
            self.kept,
            self.dispatch.publish_system_record,
            on_merged,
            lambda: following.is_current,
            self.clock.seconds,
            following.run_id,
        )
        pattern = TopicPattern.parse(KEPT_TOPIC)
        hears: Subscription[MatchReceiver] = Subscription(made, "", 0, pattern, None)
        self.subscriptions.registry.add(hears)
        self.kept.on_secured = lambda: made.publish_and_wait(self.dispatch.barrier)
        self.kept.on_disconnect = made.schedule_publish
        self.kept.newest_applied = lambda: self.frontier.durable

    def _release(self, entry: DurableSubscriptionRecord | ManagedReplayRecord) -> None:
        if isinstance(entry, DurableSubscriptionRecord):
            self.durables.release(entry)
        else:
            self.managed.release(entry)

    def _end_is_read(self) -> None:
        self.frontier.notify_waiters()
        self.everywhere.notify_waiters()

    def _close_those_told_less(self) -> None:
        """Close clients that were told no `sequence` while this member was cut off, and have one: they log on
        again."""
        for connection in self.roster:
            if not connection.knows_sequence and self.dispatch.publisher_sequence(connection.name):
                connection.close(
                    "behind", "This broker was cut off from its group when you logged on.", "Log on again."
                )

    async def recover_positions(self) -> None:
        """Take what other members told while this one couldn't write it down."""
        if self.in_common is not None:
            await self.in_common.recover(self.reader, self.journal, self.frontier.durable)

    def _services(self, state: Path) -> ConnectionServices:
        """What every connection is given of all this."""
        return ConnectionServices(
            self.facilities,
            self.frontier,
            self.roster,
            self.leases,
            NameBanList(),
            ResumeTokens(self.instance, load_or_create_key(state / f"{self.instance}.resume.key")),
            ResumePoints(),
            self.events.add,
            self.settle,
            self.dispatch,
            self.subscriptions,
            self.control,
            self.confirmations,
            self.durables,
            self.managed,
            self.logons,
            self.quotas,
        )

    def _share(self, kept: DurableSubscriptionRecord) -> SharedSubscription:
        return SharedSubscription(
            kept,
            self.facilities,
            self.frontier,
            self.control,
            lambda topic: self.dispatch.topics.decoder_of(topic),
            self.dispatch.publish_dead_letters,
        )

    def add_connection(self, transport: str, sink: ConnectionSink) -> Connection:
        """A transport has a new connection."""
        connection = Connection(self.services, transport, sink)
        self.roster.add(connection)
        return connection

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that ends with the instance."""
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            # Nobody awaits these tasks: without this their failures would be known to nobody.
            log.error("task_failed", task=getattr(task.get_coro(), "__qualname__", ""), exc_info=problem)

    # In time.

    def tick(self) -> None:
        """Once a second: leases, logons that never came, heartbeats, what is to be stored."""
        now = self.clock.monotonic_ms()
        self._look_at_the_clock()
        self.subscriptions.acknowledge()
        self.leases.expire(now)
        if self._positions is None or self._positions.done():
            self._positions = self.spawn(self._note_positions())
        for connection in self.roster:
            if not connection.logged_on:
                if not connection.is_reading:
                    connection.liveness.restart(now)
                if now - connection.liveness.heard_at > LOGON_TIMEOUT_MS:
                    connection.close("logon_timeout", f"No logon came within {LOGON_TIMEOUT_MS // 1_000} s.")
            elif not heartbeats.needs_own_timer(connection):
                heartbeats.check_heartbeat(connection, now, TICK_MS)
        self._publish_events()
        self.chores.start_round()

    async def _note_positions(self) -> None:
        """How far everybody has come for whom it is kept, and that to disk."""
        self.managed.record_positions()
        await self.durables.record_positions()
        self._tell_members()
        self.kept.save_soon()

    def _tell_members(self) -> None:
        if self.in_common is not None:
            self.in_common.publish_changes()

    def _look_at_the_clock(self) -> None:
        """A wall clock that was set is told: moments of records and ages of segments are by it."""
        ahead = self.clock.now_ns() - self.clock.monotonic_ns()
        jumped, self._clock_ahead = ahead - self._clock_ahead, ahead
        if abs(jumped) > CLOCK_JUMP_NS:
            seconds = jumped / 1_000_000_000
            log.warning("clock_jumped", by_s=round(seconds, 3))
            self.events.add(self.clock.now_ns(), BROKER_NAME, "clock_jumped", f"{seconds:+.3f} s")

    def _publish_events(self) -> None:
        self.decisions.close_second()
        self.events.add_losses(self.ledger.close_intervals(), self.instance)
        self.events.add_traffic(self.settle.traffic.take(self.clock.now_ns()))
        for topic, bodies in self.events.take().items():
            self.dispatch.publish_system_record(topic, bodies)

    def on_log_broken(self, error: JournalError) -> None:
        """The log takes nothing more: what is on the disk, or whose it is, can't be known before it is opened again."""
        log.critical("journal_broken", code=error.code, why=error.sentence, fix=error.fix)
        if self.on_broken is not None:
            self.on_broken(error)

    def apply(self, policy: PolicyDocument, stage: StagedRevision | None = None) -> None:
        """Put a revision in force, but for access. Whoever is over its limits is acted on at once."""
        before, topics = self.dispatch.topics, JournaledTopics(policy.instance)
        self.dispatch.topics = topics
        self.dispatch.carried = SyncDestinationFilter(policy.destinations, topics.decoder_of)
        self.confirmations.apply_policy(policy)
        self.policy = policy
        self.quotas.apply(policy)
        tell_losses(self.roster.clients, before, topics)
        self.settle.apply(policy, stage)

    def _is_journaled(self, topic: str) -> bool:
        return self.dispatch.topics.keeps_any_of(topic)

    def losses(self, policy: PolicyDocument) -> list[LogSubscriberEntry]:
        """Return who reads topics from the log that a policy would no longer journal."""
        subscribers = log_subscribers(self.roster.clients, self.durables, self.managed)
        return losses(subscribers, self.dispatch.topics, JournaledTopics(policy.instance))

    async def close(self) -> None:
        """Tell the clients, finish what they have published, close the journal."""
        for connection in self.roster:
            with _going_on():
                connection.close("shutting_down", "The broker is being stopped.", retry_after_ms=2_000)
        for connection in list(self.roster.parting):
            with _going_on():
                connection.notices.on_connection_lost()
        with _going_on():
            self.durables.close()
        with _going_on():
            self._tell_members()
        with _going_on():
            self._publish_events()
        for task in list(self._tasks):
            task.cancel()
        self.logons.close()
        if self.frontier.end is not None:
            self.frontier.end.close()
        await self.dispatch.close()
        await self.kept.close()
        await self.chores.save_owners()
        self.reader.close()
        self.journal.close()


@contextmanager
def _going_on() -> Iterator[None]:
    """Whatever one step of the end meets, the journal and the positions are finished and closed."""
    try:
        yield
    except Exception:
        log.exception("closing_failed")
