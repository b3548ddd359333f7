"""A whole broker: the engine, its listeners, the control socket and the one-second tick, started and stopped in order.

Start: lock and recover the journal, remove what dead spools left, listen, serve control.
Stop: listen no more, tell the clients, finish the journal, close control last, so that the control plane can see it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import resource
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from broker_core import logs
from broker_core.access import AccessPolicy
from broker_core.access.tls import server_context
from broker_core.activity import LAST
from broker_core.clock import SystemClock
from broker_core.config import PolicyDocument
from broker_core.config.document import DirectoryDefaults, refuse_misplaced
from broker_core.config.document_reader import bad_policy_error
from broker_core.connections.name_notices import NameNotices
from broker_core.control import exit_report
from broker_core.control.policy_file import AllowanceUse, PolicyFile, StoredPolicy, to_staged
from broker_core.control.requests.clients import ClientRequests
from broker_core.control.requests.dispatch_table import Handler, build_request_table
from broker_core.control.requests.instance import (
    GroupRequests,
    InstanceRequests,
    LinkRequests,
    PolicyRequests,
)
from broker_core.control.requests.journals import JournalRequests
from broker_core.control.requests.replays import ReplayRequests
from broker_core.control.server import ControlServer
from broker_core.control.set_back import SetBack, older_revision_error, set_back_error, set_back_problem
from broker_core.control.status import StatusCollector
from broker_core.control.tls_listener import ControlLinkSettings
from broker_core.delivery.spool.file_queue import remove_leftover_spools
from broker_core.delivery.spool.spool import check_spool_directories
from broker_core.documents.instance import RefusedRevision, Snapshot
from broker_core.documents.problems import ProblemEntry
from broker_core.documents.requests import Request, Welcome
from broker_core.engine.engine import TICK_MS, Engine
from broker_core.engine.stalls import StallHistory
from broker_core.errors import OperatorError, SluiceError
from broker_core.group.engine_log import NoticeExchange
from broker_core.group.member import GroupMember
from broker_core.group.problems import group_problems
from broker_core.journal.appender import JournalOptions
from broker_core.journal.commit_log import CommitLogFactory, LocalCommitLog
from broker_core.journal.files import FileSystem
from broker_core.journal.frontier_file import KnownLog
from broker_core.journal.journal import Journal
from broker_core.names import BROKER_NAME
from broker_core.sites.link_manager import SiteLinkManager
from broker_core.sites.problems import link_problems
from broker_core.slow_clients.accounts.brake import RolloutBrake
from broker_core.slow_clients.rules.rulebook import StagedRevision
from broker_core.subscriptions.destinations import destination_problems
from broker_core.sync_replication.sync_replication import SyncReplication, event_name
from broker_core.sync_replication.sync_state import SyncModeChange
from broker_core.transports.listeners import ListenerFactory, ListenerManager

log = structlog.get_logger("sluice.broker")
TICK_S = TICK_MS / 1_000
FRONTIER_INTERVAL_TICKS = 60
"""Ticks between two looks at whether the stored policy's frontier is old."""
BROKEN = os.EX_IOERR
"""The exit code of a broker whose log takes nothing more."""


@dataclass(frozen=True, slots=True)
class BrokerPaths:
    """Where an instance keeps its files."""

    journal: Path
    archive: Path
    spool: Path
    control: Path

    @classmethod
    def in_home(cls, home: Path, instance: str) -> BrokerPaths:
        """The usual places below the data directory."""
        return cls(home / "journal", home / "archive", home / "spool", home / "run" / f"{instance}.sock")


class Broker:
    """One running instance. `on_tick(snapshot)` is awaited once a second, for whoever reports to the control plane."""

    def __init__(
        self,
        policy: PolicyDocument,
        paths: BrokerPaths,
        websocket: ListenerFactory,
        known: KnownLog | None = None,
        files: FileSystem | None = None,
        roots: Sequence[Path] = (Path("/"),),
        reserved: Sequence[Path] = (),
        member: GroupMember | None = None,
        link: ControlLinkSettings | None = None,
        ports_apart: int = 0,
        link_secrets: Path | None = None,
        policy_file: PolicyFile | None = None,
        set_back: SetBack | None = None,
    ) -> None:
        """Open the journal of an instance and make ready to serve it.

        `roots`: the policy names directories below these alone, and none that overlaps one of `reserved`.
        `member`: of a group, whose log it shares. `link`: where control planes on other machines come in.
        `ports_apart`: transports listen so far above the ports that the policy says. `link_secrets`: the file
        that has what links to other sites prove themselves with. `policy_file`: where each policy is stored
        when it is in force. `set_back`: the database lacks `policy`, which stays in force until an operator
        has decided. Raises OperatorError outside_roots, and as `Journal.open`.
        """
        self.paths = paths
        self._roots, self._reserved = roots, reserved
        self._refuse_misplaced(policy)
        paths.spool.mkdir(parents=True, exist_ok=True)
        clock = SystemClock()
        journal = Journal.open(
            paths.journal,
            policy.instance.name,
            paths.archive,
            journal_options(policy),
            known=known,
            files=files,
            stopwatch=clock.seconds,
        )
        # Only the holder of the journal's lock may touch files of this instance's name.
        remove_leftover_spools(paths.spool, policy.instance.name)
        confirmations = SyncReplication(member.settings.member if member is not None else "", journal, clock)
        make_log: CommitLogFactory = LocalCommitLog
        if member is not None:
            member.set_sync_replication(confirmations)
            make_log = member.log
        self.engine = Engine(
            journal, policy, paths.spool, host_memory(), memory_ulimit(), clock, make_log, confirmations
        )
        confirmations.on_change = self._change
        self.engine.anteroom.set_descriptor_limit(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._member = member
        if member is not None:
            self.engine.start_position_sync(member)
            member.on_shared_secret(self.engine.services.tokens.set_key)
            member.reached_at(self.addresses)
            names = NameNotices(self.engine.roster, self.engine.logons, member.now_ns, member.run_id)
            member.exchange(NoticeExchange(names.wanted, names.send_all, names.next_message, names.receive))
        self.engine.on_broken = self._broken
        self.on_broken: Callable[[SluiceError], None] = abort_process
        """What is done when the log takes nothing more; those who run a broker in a process of theirs may do otherwise."""
        self.member = member.settings.member if member is not None else ""
        """Its name in a group."""
        self.statistics = StatusCollector(self.engine, self.member)
        self.statistics.ended = exit_report.read_exit_report(paths.control)
        self.statistics.problems = self.list_problems
        self.stalls = self.statistics.stalls = StallHistory()
        """Of the event loop; written by a `LoopMonitor`, where the process has one."""
        self._stall_published = 0
        self._listeners = ListenerManager(self.engine, websocket, ports_apart)
        self.links = SiteLinkManager(self.engine, link_secrets)
        own = Welcome(instance=self.engine.instance, member=self.member)
        self.control = ControlServer(paths.control, self._handlers(), own, link)
        self._ticking: asyncio.Task[None] | None = None
        self._policy_file = policy_file
        self._storing_policy = asyncio.Lock()
        self._stored_frontier = 0
        self._set_back = set_back
        self.policy_stored_at = 0
        """When the policy in force was last stored on this disk, ms UTC; 0 while it isn't."""
        self.on_shut_down: Callable[[], None] | None = None
        """How an action ends the process; set by whoever runs it."""

    async def start(
        self,
        on_tick: Callable[[Snapshot], Awaitable[None]] | None = None,
        stage: StagedRevision | None = None,
    ) -> None:
        """Listen and tick, with `stage` in force. Raises OperatorError port_taken, and nothing stays open."""
        try:
            await self.engine.recover_positions()
            await self._listen(self.engine.policy)
            await self.control.listen()
        except SluiceError:
            await self.stop()
            raise
        try:
            await self.check_spool_directories(self.engine.policy)
        except OperatorError as problem:
            # Nothing may ever have to be written there, and who is offlined is told if it has.
            log.error("spool_path_unusable", why=problem.sentence, fix=problem.fix)
        exit_report.delete_exit_report(self.paths.control)
        self.engine.spawn(self.engine.settle.run())
        if self._member is not None:
            self._member.start()
        self.engine.confirmations.start()
        self.engine.spawn(self.engine.confirmations.run())
        await self.links.apply(self.engine.policy)
        await self._store_policy(RolloutBrake(stage) if stage is not None else None)
        self._ticking = asyncio.create_task(self._tick(on_tick), name="tick")
        log.info(
            "broker_started", instance=self.engine.instance, recovery=self.engine.journal.recovery.as_dict()
        )
        if stage is not None:
            try:
                await self.apply(self.engine.policy, stage)
            except OperatorError as problem:
                if problem.code != "policy_not_stored":
                    raise
                log.error("stage_not_in_force", revision=stage.document.revision, why=problem.sentence)

    def addresses(self) -> dict[str, str]:
        """Return where clients find this broker, by transport. The host's name stands for all addresses."""
        return {
            one.name: one.address(socket.gethostname(), self._listeners.port_of(one))
            for one in self.engine.policy.transports
            if one.enabled
        }

    def _broken(self, error: SluiceError) -> None:
        exit_report.write_exit_report(self.paths.control, error, self.engine.clock.now_ns())
        self.on_broken(error)

    def _change(self, change: SyncModeChange) -> None:
        self.engine.events.add(self.engine.clock.now_ns(), BROKER_NAME, event_name(change), change.sentence)

    def list_problems(self) -> list[ProblemEntry]:
        """Return the problems of the group and of the links. Every page, alert, metric and health check reads
        these."""
        now_ms = self.engine.clock.now_ns() // 1_000_000
        of_group = group_problems(self._member.status(), now_ms) if self._member is not None else []
        of_policy = []
        if self._set_back is not None:
            of_policy = [set_back_problem(self._set_back, self.revision, self.member)]
        return [*of_policy, *of_group, *link_problems(self.links.list_entries(), now_ms)]

    @property
    def revision(self) -> int:
        """Revision in force: the staged one while there is one."""
        stage = self.engine.guard.stage
        return stage.document.revision if stage is not None else self.engine.policy.revision

    @property
    def is_set_back(self) -> bool:
        """Whether the broker keeps a policy that the database lacks."""
        return self._set_back is not None

    async def keep_policy(self, database_revision: int) -> None:
        """Keep the policy in force, which the database lacks, until an operator has decided; report that."""
        known = self._set_back
        if known is not None and known.database_revision == database_revision:
            return
        now_ms = self.engine.clock.now_ns() // 1_000_000
        self._set_back = SetBack(
            since=now_ms if known is None else known.since, database_revision=database_revision
        )
        log.error("policy_set_back", running=self.revision, database=database_revision)
        await self._store_policy()

    async def follow_database(self) -> None:
        """Report that the database has the policy in force."""
        if self._set_back is not None:
            self._set_back = None
            await self._store_policy()

    def _handlers(self) -> dict[type[Request[Any]], Handler]:
        """Who answers which request of the control plane."""
        return build_request_table(
            InstanceRequests(self.engine, self.statistics, lambda: self.on_shut_down),
            ClientRequests(self.engine, self.statistics),
            ReplayRequests(self.engine),
            JournalRequests(self.engine, self.paths.archive),
            GroupRequests(self._member, self.engine.confirmations),
            LinkRequests(self.links, self.engine.confirmations),
            PolicyRequests(
                self.engine,
                self._apply_ordered,
                self.check_spool_directories,
                self.member,
                lambda: self.is_set_back,
            ),
        )

    async def _apply_ordered(
        self, policy: PolicyDocument, stage: StagedRevision | None, *, decided: bool
    ) -> None:
        """Apply a policy of the console. Raises OperatorError policy_set_back for one that an operator has to
        decide about first, and as `apply`.
        """
        offered = stage.document.revision if stage is not None else policy.revision
        if not decided and self._set_back is not None:
            raise set_back_error(self.revision, offered)
        if not decided and offered < self.revision:
            raise older_revision_error(self.revision, offered)
        await self.apply(policy, stage)
        await self.follow_database()

    async def apply(self, policy: PolicyDocument, stage: StagedRevision | None = None) -> None:
        """Put a revision in force without a restart: limits at once, transports started and stopped as it says. One that can't be is
        refused whole, and told of in the status."""
        try:
            if stage is not None:  # before its first decision: a broker that is killed may not count anew
                await self._store_policy(RolloutBrake(stage))
                self._refuse_unstored(stage)
            await self._put_in_force(policy, stage)
        except SluiceError as problem:
            self.statistics.refused = RefusedRevision(
                revision=policy.revision, code=problem.code, message=problem.sentence, fix=problem.fix
            )
            raise
        self.statistics.refused = None
        await self._store_policy()

    def _refuse_unstored(self, stage: StagedRevision) -> None:
        """Refuse a stage whose allowance isn't stored: a broker that is killed would count anew.

        Raises OperatorError policy_not_stored.
        """
        running = self.engine.guard.stage
        begins = running is None or running.document.revision != stage.document.revision
        if stage.allowed is not None and begins and self.lacks_stored_policy:
            raise OperatorError(
                "policy_not_stored",
                f"Staged revision {stage.document.revision} isn't in force: its allowance can't be stored on"
                " this broker's disk.",
                "Make room for the broker's policy file. The broker is asked again within a minute.",
            )

    @property
    def lacks_stored_policy(self) -> bool:
        """Whether the disk refused the policy in force."""
        return self._policy_file is not None and not self.policy_stored_at

    async def _store_policy(self, brake: RolloutBrake | None = None, *, stopped: bool = False) -> None:
        """Store the policy in force, and how far the log is durable, for a start without the database.

        `brake` is that of a stage which is about to be in force. `stopped`: nothing is carried out any more.
        A disk that refuses is logged and reported; the policy is in force all the same.
        """
        if self._policy_file is None:
            return
        async with self._storing_policy:  # two at once could leave the older one
            engine, now = self.engine, self.engine.clock.now_ns() // 1_000_000
            frontier = engine.frontier.durable
            stored = StoredPolicy(
                instance=engine.instance,
                stored_at=now,
                policy=engine.policy.to_dict(),
                staged=to_staged(engine.guard.stage),
                allowance_use=_allowance_use(brake or engine.guard.brake, stopped=stopped),
                log=str(engine.journal.identity),
                frontier=frontier,
                journal=str(self.paths.journal),
                archive=str(self.paths.archive),
                set_back=self._set_back,
            )
            try:
                await asyncio.to_thread(self._policy_file.save, stored)
            except OSError as problem:
                if self.policy_stored_at or not self._stored_frontier:
                    log.error("policy_not_stored", path=str(self._policy_file.path), why=str(problem))
                self.policy_stored_at = 0
                return
            self.policy_stored_at, self._stored_frontier = now, frontier

    async def _store_frontier(self) -> None:
        """Store the policy again when the log has grown, or when the disk refused it before."""
        if not self.policy_stored_at or self.engine.frontier.durable != self._stored_frontier:
            await self._store_policy()

    async def _put_in_force(self, policy: PolicyDocument, stage: StagedRevision | None) -> None:
        if policy.instance.name != self.engine.instance:
            raise OperatorError(
                "bad_policy", f"The policy is for {policy.instance.name}, not {self.engine.instance}."
            )
        await self.check_spool_directories(policy)
        await self._listen(policy)
        self.engine.apply(policy, stage)
        await self.links.apply(policy)
        self.engine.journal.set_options(journal_options(policy))
        log.info(
            "policy_applied", revision=policy.revision, staged=stage.document.revision if stage else None
        )

    async def check_spool_directories(self, policy: PolicyDocument) -> None:
        """Try to write where the policy wants spools. OperatorError bad_spool_path, outside_roots."""
        self._refuse_misplaced(policy)
        pools = (policy.pool, *(transport.pool for transport in policy.transports))
        named = {pool.message_disk_path or str(self.paths.spool) for pool in pools}
        await asyncio.to_thread(check_spool_directories, named)

    def _refuse_misplaced(self, policy: PolicyDocument) -> None:
        paths = self.paths
        defaults = DirectoryDefaults(paths.journal, paths.archive, paths.spool)
        refuse_misplaced(policy, self._roots, (*self._reserved, paths.control), defaults)

    async def _listen(self, policy: PolicyDocument) -> None:
        check_access(policy)
        await self._listeners.apply(policy)
        self.statistics.transports = [
            {
                "name": one.name,
                "kind": one.kind,
                "host": one.host,
                "port": self._listeners.port_of(one),
                "enabled": one.enabled,
            }
            for one in policy.transports
        ]

    async def _tick(self, on_tick: Callable[[Snapshot], Awaitable[None]] | None) -> None:
        for number in itertools.count(1):
            await asyncio.sleep(TICK_S)
            try:
                # Before what may fail: leases, resume points and kept positions don't depend on anybody's statistics.
                LAST.latest, LAST.chore = "chore", "tick"
                self.engine.tick()
                self._publish_stalls()
                LAST.latest, LAST.chore = "chore", "statistics"
                snapshot = await self.statistics.sample_second()
                LAST.latest, LAST.chore = "chore", "report"
                if on_tick is not None:
                    await on_tick(snapshot)
                if number % FRONTIER_INTERVAL_TICKS == 0:
                    await self._store_frontier()
            except Exception:
                # The tick judges slow clients; one failure, such as a Redis that is away, must not end it.
                log.exception("tick_failed")

    def _publish_stalls(self) -> None:
        """Publish stalls that have ended since the last tick as events of the broker."""
        for one in self.stalls.entries:
            if one.over and one.pid == os.getpid() and one.at > self._stall_published:
                self._stall_published = one.at
                state = f"{one.lasted_ms / 1_000:.1f} s: {one.cause}"
                self.engine.events.add(self.engine.clock.now_ns(), BROKER_NAME, "event_loop_stalled", state)

    async def stop(self) -> None:
        """Stop in order. Nothing that was acknowledged is lost."""
        if self._ticking is not None:
            self._ticking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticking
        ticked = self._ticking is not None
        await self._listeners.close()
        await self.links.close()
        await self.engine.close()
        if ticked:  # a policy that no start has come to an end with isn't stored
            await self._store_policy(stopped=True)
        await self.control.close()
        log.info("broker_stopped", instance=self.engine.instance)


def _allowance_use(brake: RolloutBrake | None, *, stopped: bool) -> AllowanceUse | None:
    """Return the use of a rollout's allowance as it is stored: all of it while a decision may still be made."""
    if brake is None:
        return None
    return AllowanceUse(revision=brake.revision, decisions=brake.made if stopped else brake.reserved)


def abort_process(error: SluiceError) -> None:
    """At once and without a last act: nothing that this process still believes may be answered or written."""
    logging.shutdown()
    logs.flush_logs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(BROKEN)


def journal_options(policy: PolicyDocument) -> JournalOptions:
    """JournalSize and PreallocatedJournalFiles."""
    return JournalOptions(policy.instance.journal_size, policy.instance.preallocated_files)


def check_access(policy: PolicyDocument) -> None:
    """Raise what is wrong with users, entitlements, destinations and certificates before anything of a revision is in force."""
    AccessPolicy(policy)
    if problems := destination_problems(policy):
        raise bad_policy_error(problems)
    for transport in policy.transports:
        if transport.enabled and transport.tls is not None:
            server_context(transport.tls)


def host_memory() -> int:
    """Memory of this machine, in bytes."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1_024
    raise OperatorError("no_memory_figure", "/proc/meminfo has no MemTotal.", "Set MessageMemoryLimit.")


def memory_ulimit() -> int | None:
    """The resident memory this process may use, in bytes (`ulimit -m`); None when there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_RSS)
    return None if soft == resource.RLIM_INFINITY else soft
