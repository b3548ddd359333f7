"""Running instance without its listeners. `Broker` creates and drives it.

The engine wires its parts together: no part holds an `Engine`; each is passed what it needs. Everything runs
on one event loop. The unit of work is the batch; nothing here is done per record.
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
from broker_core.engine.log_subscribers import find_losses, log_subscribers, notify_losses
from broker_core.engine.maintenance import JournalMaintenance
from broker_core.engine.policy_loop import PolicyLoop
from broker_core.engine.subscriptions import SubscriptionManager
from broker_core.engine.system_records import RecentDecisions, SystemRecordBuffer
from broker_core.errors import JournalError
from broker_core.journal.commit_log import CommitLogFactory, LocalCommitLog
from broker_core.journal.journal import Journal
from broker_core.journal.log_reader import ReaderThread
from broker_core.names import BROKER_NAME, POSITIONS_TOPIC
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
from broker_core.subscriptions.subscription import TopicSubscription
from broker_core.subscriptions.topics import TopicPattern
from broker_core.sync_replication.sync_replication import SyncReplication

log = structlog.get_logger("sluice.engine")
TICK_MS: Final = 1_000
"""Interval at which `tick` is called."""
CLOCK_JUMP_NS: Final = 2_000_000_000
"""A change of the wall clock by more than this is reported. Smaller ones are normal clock corrections."""
LOGON_TIMEOUT_MS: Final = 10_000
"""A connection that has not logged on within this time is closed."""


class Engine:
    """Parts of an instance, by attribute, and their joint actions: start, tick, policy change, close."""

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
        """Wire an instance.

        Args:
            journal: Open journal of the instance.
            policy: Policy in force.
            spool_directory: Default directory of spools; state files go to its sibling `state`.
            host_memory: Memory of the host, bytes.
            ulimit: Memory limit of the process, bytes; None for unlimited.
            clock: Source of time.
            make_log: Creates the commit log.
            confirmations: Sync replication of a group's member; by default one without group members.
        """
        self.instance = journal.instance
        self.journal = journal
        self.clock = clock
        self.policy = policy
        self.started_at = clock.now_ns()
        self._clock_ahead = clock.now_ns() - clock.monotonic_ns()
        self._tasks: set[asyncio.Task[None]] = set()
        self._position_task: asyncio.Task[None] | None = None
        self.position_sync: GroupPositionSync | None = None
        """Synchronisation of positions among the members of a group; None outside a group."""
        state = spool_directory.parent / "state"

        self.ledger = LossLedger()
        self.events = SystemRecordBuffer()
        self.pending_connections = PendingConnections()
        self.pre_logon_reads = PreLogonReadQueue(clock)
        self.roster = ConnectionTable(self.pending_connections)
        self.leases = SubscriptionLeases()
        self.reader = ReaderThread(clock)
        self.share = ReplayFairShare(clock)
        self.frontier = DurableFrontier(journal.next_sequence - 1)
        self.replicated_frontier = DurableFrontier(0)
        """Frontier of records that sync members and sync destinations have stored, too.

        No subscription follows it alone.
        """
        self.replicated_frontier.stamped = self.frontier.stamped
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
        # A lambda, because the dispatcher is created later: it needs the subscriptions and the policy loop.
        self.subscriptions = SubscriptionManager(lambda: self.dispatch.topics)
        path = journal.directory / f"{journal.instance}.kept.json"
        self.position_store = PositionStore(path, journal.pin, journal.files)
        self.control = ReplayControl(
            self.facilities, self.frontier, self.replicated_frontier, self.subscriptions, self.position_store
        )
        self.durables = DurableSubscriptions(
            self.facilities,
            self.frontier,
            self.position_store,
            self._make_shared_subscription,
            lambda topic: self.dispatch.topics.decoder_of(topic),
            self.roster.ended_account,
        )
        self.managed = ManagedReplays(self.facilities, self.frontier, self.control, self.position_store)
        self.position_store.on_dropped = self._release
        self.owners = ClientNameOwners(journal.directory / f"{self.instance}.owners", journal.files)
        self.owners.on_owner_changed = journal.set_user_lookup(self.owners.user_of)
        self.maintenance = JournalMaintenance(journal, self.owners, self.spawn, self.on_log_failed)
        self.guard = SlowClientGuard(
            policy,
            host_memory,
            ulimit,
            str(spool_directory),
            lambda name: journal.bytes_pinned_by(self.owners.user_of(name)),
        )
        self.policy_loop = PolicyLoop(
            self.facilities, self.frontier, self.roster, self.control, self.guard, self.events
        )
        self.confirmations = confirmations or SyncReplication("", journal, clock)
        self.confirmations.apply_policy(policy)
        topics = JournaledTopics(policy.instance)
        self.dispatch = Dispatcher(
            self.facilities,
            self.frontier,
            self.replicated_frontier,
            self.roster,
            self.subscriptions,
            self.policy_loop.process_changed_clients,
            topics,
            SyncDestinationFilter(policy.destinations, topics.decoder_of),
            self.confirmations,
            make_log,
        )
        self.dispatch.report_log_failure = self.on_log_failed
        self.durables.is_journaled = self.managed.is_journaled = self._is_journaled
        self.report_log_failure: Callable[[JournalError], None] | None = None
        """Called with the reason when the process must end. Set by the caller that runs the engine."""
        self.logons = LogonAuthenticator(self.facilities, self.roster, policy, self.owners)
        self.quotas = Quotas(policy, self.position_store, self.owners, journal, clock.monotonic_ns)
        self.services = self.subscriptions.services = self._make_services(state)
        self.decisions = RecentDecisions(self.instance, self.started_at, self.events)
        self.enforcer = self.policy_loop.enforcer = PolicyEnforcer(
            self.services, self.guard, self.decisions, self.events
        )

    def start_position_sync(self, following: ReplicatedLogStatus) -> None:
        """Share positions of durable subscriptions and managed replays with the other members of a group.

        Call it once, on a member of a group, before clients connect.
        """
        self.dispatch.following = following
        end = LogEnd(following.wait_caught_up, self.clock.monotonic_ns, self._on_end_confirmed)
        self.frontier.end = self.replicated_frontier.end = end
        following.on_current(self._close_outdated_logons)

        def on_merged(replay: ManagedReplayRecord) -> None:
            # In the next event-loop iteration: a delivery may be in progress.
            asyncio.get_running_loop().call_soon(self.managed.follow, replay)

        sync = self.position_sync = GroupPositionSync(
            self.position_store,
            self.dispatch.publish_system_record,
            on_merged,
            lambda: following.is_current,
            self.clock.seconds,
            following.run_id,
        )
        pattern = TopicPattern.parse(POSITIONS_TOPIC)
        subscription: TopicSubscription[MatchReceiver] = TopicSubscription(sync, "", 0, pattern, None)
        self.subscriptions.registry.add(subscription)
        self.position_store.on_secured = lambda: sync.publish_and_wait(self.dispatch.barrier)
        self.position_store.on_disconnect = sync.schedule_publish
        self.position_store.newest_applied = lambda: self.frontier.durable

    def _release(self, entry: DurableSubscriptionRecord | ManagedReplayRecord) -> None:
        """Stop serving a durable subscription or managed replay whose stored position was deleted."""
        if isinstance(entry, DurableSubscriptionRecord):
            self.durables.release(entry)
        else:
            self.managed.release(entry)

    def _on_end_confirmed(self) -> None:
        """Wake subscriptions that wait for a confirmed end of the log."""
        self.frontier.notify_waiters()
        self.replicated_frontier.notify_waiters()

    def _close_outdated_logons(self) -> None:
        """Close clients that got no `sequence` at logon because this member was cut off, and now have one.

        They log on again and then receive it.
        """
        for connection in self.roster:
            if not connection.knows_sequence and self.dispatch.publisher_sequence(connection.name):
                connection.close(
                    "behind", "This broker was cut off from its group when you logged on.", "Log on again."
                )

    async def recover_positions(self) -> None:
        """Apply positions that other members published while this member could not store them."""
        if self.position_sync is not None:
            await self.position_sync.recover(self.reader, self.journal, self.frontier.durable)

    def _make_services(self, state: Path) -> ConnectionServices:
        """Return the services that every connection gets."""
        return ConnectionServices(
            self.facilities,
            self.frontier,
            self.roster,
            self.leases,
            NameBanList(),
            ResumeTokens(self.instance, load_or_create_key(state / f"{self.instance}.resume.key")),
            ResumePoints(),
            self.events.add,
            self.policy_loop,
            self.dispatch,
            self.subscriptions,
            self.control,
            self.confirmations,
            self.durables,
            self.managed,
            self.logons,
            self.quotas,
        )

    def _make_shared_subscription(self, record: DurableSubscriptionRecord) -> SharedSubscription:
        """Return the shared subscription of a stored position."""
        return SharedSubscription(
            record,
            self.facilities,
            self.frontier,
            self.control,
            lambda topic: self.dispatch.topics.decoder_of(topic),
            self.dispatch.publish_dead_letters,
        )

    def add_connection(self, transport: str, sink: ConnectionSink) -> Connection:
        """Create and register the connection for a new sink of a transport."""
        connection = Connection(self.services, transport, sink)
        self.roster.add(connection)
        return connection

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that is cancelled when the instance closes."""
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            # No caller awaits these tasks, so their failures are logged here.
            log.error("task_failed", task=getattr(task.get_coro(), "__qualname__", ""), exc_info=problem)

    # Periodic work.

    def tick(self) -> None:
        """Do the work of one second.

        This covers leases, logon timeouts, heartbeats, positions, the broker's own records and journal
        maintenance.
        """
        now = self.clock.monotonic_ms()
        self._check_clock()
        self.subscriptions.acknowledge()
        self.leases.expire(now)
        if self._position_task is None or self._position_task.done():
            self._position_task = self.spawn(self._record_positions())
        for connection in self.roster:
            if not connection.logged_on:
                connection.liveness.note_check(now, TICK_MS)
                if not connection.is_reading:
                    connection.liveness.restart(now)
                if now - connection.liveness.last_alive_at > LOGON_TIMEOUT_MS:
                    connection.close("logon_timeout", f"No logon came within {LOGON_TIMEOUT_MS // 1_000} s.")
            elif not heartbeats.needs_own_timer(connection):
                heartbeats.check_heartbeat(connection, now, TICK_MS)
        self._publish_events()
        self.maintenance.start_tasks()

    async def _record_positions(self) -> None:
        """Record the positions of durable subscriptions and managed replays, publish and store them."""
        self.managed.record_positions()
        await self.durables.record_positions()
        self._publish_positions()
        self.position_store.save_soon()

    def _publish_positions(self) -> None:
        """Publish changed positions to the other members of the group."""
        if self.position_sync is not None:
            self.position_sync.publish_changes()

    def _check_clock(self) -> None:
        """Report a wall clock that was set. Times of records and ages of segments depend on it."""
        ahead = self.clock.now_ns() - self.clock.monotonic_ns()
        jumped, self._clock_ahead = ahead - self._clock_ahead, ahead
        if abs(jumped) > CLOCK_JUMP_NS:
            seconds = jumped / 1_000_000_000
            log.warning("clock_jumped", by_s=round(seconds, 3))
            self.events.add(self.clock.now_ns(), BROKER_NAME, "clock_jumped", f"{seconds:+.3f} s")

    def _publish_events(self) -> None:
        """Publish the broker's own records of the last second."""
        self.decisions.close_second()
        self.events.add_losses(self.ledger.close_intervals(), self.instance)
        self.events.add_traffic(self.policy_loop.traffic.take(self.clock.now_ns()))
        for topic, bodies in self.events.take().items():
            self.dispatch.publish_system_record(topic, bodies)

    def on_log_failed(self, error: JournalError) -> None:
        """Report that the log accepts no more records, and that the process must end.

        The content of the disk, or the owner of the log, cannot be known before the log is opened again.
        """
        log.critical("journal_broken", code=error.code, why=error.sentence, fix=error.fix)
        if self.report_log_failure is not None:
            self.report_log_failure(error)

    def apply(self, policy: PolicyDocument, stage: StagedRevision | None = None) -> None:
        """Put a revision into force, except for its access rules.

        Clients over its limits are acted on immediately.
        """
        previous, topics = self.dispatch.topics, JournaledTopics(policy.instance)
        self.dispatch.topics = topics
        self.dispatch.carried = SyncDestinationFilter(policy.destinations, topics.decoder_of)
        self.confirmations.apply_policy(policy)
        self.policy = policy
        self.quotas.apply(policy)
        notify_losses(self.roster.clients, previous, topics)
        self.policy_loop.apply(policy, stage)

    def _is_journaled(self, topic: str) -> bool:
        """Return whether any topic that a pattern matches is journaled."""
        return self.dispatch.topics.may_journal_any(topic)

    def find_losses(self, policy: PolicyDocument) -> list[LogSubscriberEntry]:
        """Return the subscribers that read topics from the log which a policy would no longer journal."""
        subscribers = log_subscribers(self.roster.clients, self.durables, self.managed)
        return find_losses(subscribers, self.dispatch.topics, JournaledTopics(policy.instance))

    async def close(self) -> None:
        """Notify the clients, finish the batches that they have published, and close the journal.

        The order matters: connections close first, then tasks end, then the log, positions and journal. A
        failing step is logged and does not prevent the others.
        """
        for connection in self.roster:
            with _logging_errors():
                # Executed decisions must be in the last records, also while their notices are unanswered.
                connection.notices.on_connection_lost()
                connection.close("shutting_down", "The broker is being stopped.", retry_after_ms=2_000)
        for connection in list(self.roster.closing):
            with _logging_errors():
                connection.notices.on_connection_lost()
        with _logging_errors():
            self.durables.close()
        with _logging_errors():
            self._publish_positions()
        with _logging_errors():
            self._publish_events()
        for task in list(self._tasks):
            task.cancel()
        self.logons.close()
        if self.frontier.end is not None:
            self.frontier.end.close()
        await self.dispatch.close()
        await self.position_store.close()
        await self.maintenance.save_owners()
        self.reader.close()
        self.journal.close()


@contextmanager
def _logging_errors() -> Iterator[None]:
    """Log any exception of one step of `Engine.close`, so that journal and positions are still closed."""
    try:
        yield
    except Exception:
        log.exception("closing_failed")
