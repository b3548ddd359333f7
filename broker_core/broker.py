"""Broker: starts and stops the engine, listeners, the control socket and the one-second tick in order.

Start: lock and recover the journal, remove the files of earlier spools, listen, serve control requests. Stop:
close the listeners, notify clients, finish the journal, and close control last, so that the control plane can
observe the stop.
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
from broker_core.access.tls import make_server_context
from broker_core.activity import LAST
from broker_core.clock import SystemClock
from broker_core.config import PolicyDocument
from broker_core.config.document import DirectoryDefaults, check_directories
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
TICK_INTERVAL_S = TICK_MS / 1_000
FRONTIER_INTERVAL_TICKS = 60
"""Number of ticks between two checks of whether the frontier in the stored policy is outdated."""
EXIT_LOG_FAILED = os.EX_IOERR
"""Exit code of a broker whose log accepts no more records."""


@dataclass(frozen=True, slots=True)
class BrokerPaths:
    """Paths of an instance's files."""

    journal: Path
    archive: Path
    spool: Path
    control: Path

    @classmethod
    def in_home(cls, home: Path, instance: str) -> BrokerPaths:
        """Return the default paths below the data directory."""
        return cls(home / "journal", home / "archive", home / "spool", home / "run" / f"{instance}.sock")


class Broker:
    """Running broker of one instance, or of one member of a group."""

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
        port_offset: int = 0,
        link_secrets: Path | None = None,
        policy_file: PolicyFile | None = None,
        set_back: SetBack | None = None,
    ) -> None:
        """Open the journal of an instance and prepare to serve it. `start` opens the listeners.

        Args:
            policy: Policy to start with.
            paths: Paths of the instance's files.
            websocket: Creates listeners for WebSocket transports.
            known: What the control plane knows of the log, to detect a lost or replaced one.
            files: File system of the journal. Tests replace it.
            roots: Directories below which the policy may name directories.
            reserved: Paths that directories of the policy must not overlap.
            member: Member of a group, whose log the broker shares. None: a standalone broker.
            link: Address and certificate of the control link for control planes on other machines.
            port_offset: Number that is added to the ports of the policy's transports.
            link_secrets: File with the credentials of links to other sites.
            policy_file: Stores each policy that is in force.
            set_back: Says that the database lacks `policy`, which stays in force until an operator decides.

        Raises:
            OperatorError: `outside_roots`, or an error of `Journal.open`.
        """
        self.paths = paths
        self._roots, self._reserved = roots, reserved
        self._check_directories(policy)
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
        # The lock of the journal must be held before files of this instance's name are touched.
        remove_leftover_spools(paths.spool, policy.instance.name)
        confirmations = SyncReplication(member.settings.member if member is not None else "", journal, clock)
        make_log: CommitLogFactory = LocalCommitLog
        if member is not None:
            member.set_sync_replication(confirmations)
            make_log = member.create_log
        self.engine = Engine(
            journal, policy, paths.spool, host_memory(), memory_ulimit(), clock, make_log, confirmations
        )
        confirmations.on_change = self._change
        self.engine.pending_connections.set_descriptor_limit(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._member = member
        if member is not None:
            self.engine.start_position_sync(member)
            member.on_shared_secret(self.engine.services.tokens.set_key)
            member.set_address_source(self.addresses)
            names = NameNotices(self.engine.roster, self.engine.logons, member.now_ns, member.run_id)
            member.set_notices(
                NoticeExchange(names.send_requested, names.send_all, names.next_message, names.receive)
            )
        self.engine.report_log_failure = self._on_log_failed
        self.report_log_failure: Callable[[SluiceError], None] = abort_process
        """Called when the log accepts no more records. A program that embeds a broker may replace it."""
        self.member = member.settings.member if member is not None else ""
        """Name of the member in its group; "" for a standalone broker."""
        self.statistics = StatusCollector(self.engine, self.member)
        self.statistics.exit_report = exit_report.read_exit_report(paths.control)
        self.statistics.problems = self.list_problems
        self.stalls = self.statistics.stalls = StallHistory()
        """Stalls of the event loop. A `LoopMonitor` writes them, if the process has one."""
        self._stall_published = 0
        self._listeners = ListenerManager(self.engine, websocket, port_offset)
        self.links = SiteLinkManager(self.engine, link_secrets)
        welcome = Welcome(instance=self.engine.instance, member=self.member)
        self.control = ControlServer(paths.control, self._handlers(), welcome, link)
        self._ticking: asyncio.Task[None] | None = None
        self._policy_file = policy_file
        self._storing_policy = asyncio.Lock()
        self._stored_frontier = 0
        self._set_back = set_back
        self.policy_stored_at = 0
        """Time in ms UTC at which the policy in force was last stored on this disk; 0: not stored."""
        self.on_shut_down: Callable[[], None] | None = None
        """Ends the process when an action requests it. Set by the code that runs the broker."""

    async def start(
        self,
        on_tick: Callable[[Snapshot], Awaitable[None]] | None = None,
        stage: StagedRevision | None = None,
    ) -> None:
        """Open the listeners and start the tick.

        Args:
            on_tick: Awaited with the snapshot of each second, for reports to the control plane.
            stage: Staged revision that is in force from the start.

        Raises:
            OperatorError: `port_taken`; everything is closed again.
        """
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
            # Not fatal: perhaps no spool is ever needed there. If one is, the affected clients are notified.
            log.error("spool_path_unusable", why=problem.sentence, fix=problem.fix)
        exit_report.delete_exit_report(self.paths.control)
        self.engine.spawn(self.engine.policy_loop.run())
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
        """Return the address of each enabled transport, by name.

        The host's name replaces the address of a transport that listens on all addresses.
        """
        return {
            one.name: one.address(socket.gethostname(), self._listeners.port_of(one))
            for one in self.engine.policy.transports
            if one.enabled
        }

    def _on_log_failed(self, error: SluiceError) -> None:
        """Write the exit report, then call `report_log_failure`, because the log accepts no more records."""
        exit_report.write_exit_report(self.paths.control, error, self.engine.clock.now_ns())
        self.report_log_failure(error)

    def _change(self, change: SyncModeChange) -> None:
        """Publish the downgrade or upgrade of a member or link as an event of the broker."""
        self.engine.events.add(self.engine.clock.now_ns(), BROKER_NAME, event_name(change), change.sentence)

    def list_problems(self) -> list[ProblemEntry]:
        """Return the current problems of the policy, the group and the links.

        All pages, alerts, metrics and health checks use this list.
        """
        now_ms = self.engine.clock.now_ns() // 1_000_000
        of_group = group_problems(self._member.status(), now_ms) if self._member is not None else []
        of_policy = []
        if self._set_back is not None:
            of_policy = [set_back_problem(self._set_back, self.revision, self.member)]
        return [*of_policy, *of_group, *link_problems(self.links.list_entries(), now_ms)]

    @property
    def revision(self) -> int:
        """Revision in force; the staged revision if there is one."""
        stage = self.engine.guard.stage
        return stage.document.revision if stage is not None else self.engine.policy.revision

    @property
    def is_set_back(self) -> bool:
        """Whether the broker runs a policy that the database lacks."""
        return self._set_back is not None

    async def retain_policy(self, database_revision: int) -> None:
        """Keep the policy in force, although the database lacks it, until an operator decides.

        Reports that.
        """
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
        """Record that the database has the policy in force."""
        if self._set_back is not None:
            self._set_back = None
            await self._store_policy()

    def _handlers(self) -> dict[type[Request[Any]], Handler]:
        """Return the handler of each request of the control plane."""
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
        """Apply a policy that the console sent.

        Raises:
            OperatorError: `policy_set_back`, if an operator must decide first; otherwise as `apply`.
        """
        offered = stage.document.revision if stage is not None else policy.revision
        if not decided and self._set_back is not None:
            raise set_back_error(self.revision, offered)
        if not decided and offered < self.revision:
            raise older_revision_error(self.revision, offered)
        await self.apply(policy, stage)
        await self.follow_database()

    async def apply(self, policy: PolicyDocument, stage: StagedRevision | None = None) -> None:
        """Apply a revision without a restart.

        Limits take effect immediately, and transports are started and stopped. A revision that cannot be
        applied is rejected as a whole, and reported in the status.
        """
        try:
            # Store the brake first: a broker killed after a decision must not count from zero again.
            if stage is not None:
                await self._store_policy(RolloutBrake(stage))
                self._refuse_unstored(stage)
            await self._activate_policy(policy, stage)
        except SluiceError as problem:
            self.statistics.refused_revision = RefusedRevision(
                revision=policy.revision, code=problem.code, message=problem.sentence, fix=problem.fix
            )
            raise
        self.statistics.refused_revision = None
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
                "Free disk space for the broker's policy file. The console repeats the request within "
                "a minute.",
            )

    @property
    def lacks_stored_policy(self) -> bool:
        """Whether the policy in force could not be stored on the disk."""
        return self._policy_file is not None and not self.policy_stored_at

    async def _store_policy(self, brake: RolloutBrake | None = None, *, stopped: bool = False) -> None:
        """Store the policy in force and the durable frontier, for a start without the database.

        A failing disk is logged and reported; the policy is in force nevertheless.

        Args:
            brake: Brake of a staged revision that is about to be in force.
            stopped: Whether no more decisions are carried out.
        """
        if self._policy_file is None:
            return
        async with self._storing_policy:  # two concurrent writes could leave the older policy
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
        """Store the policy again if the log has grown, or if the disk rejected the last attempt."""
        if not self.policy_stored_at or self.engine.frontier.durable != self._stored_frontier:
            await self._store_policy()

    async def _activate_policy(self, policy: PolicyDocument, stage: StagedRevision | None) -> None:
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
        """Check that spools can be written to the directories of a policy.

        Raises:
            OperatorError: `bad_spool_path` or `outside_roots`.
        """
        self._check_directories(policy)
        pools = (policy.pool, *(transport.pool for transport in policy.transports))
        named = {pool.message_disk_path or str(self.paths.spool) for pool in pools}
        await asyncio.to_thread(check_spool_directories, named)

    def _check_directories(self, policy: PolicyDocument) -> None:
        paths = self.paths
        defaults = DirectoryDefaults(paths.journal, paths.archive, paths.spool)
        check_directories(policy, self._roots, (*self._reserved, paths.control), defaults)

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
        """Run the periodic tasks once a second."""
        for number in itertools.count(1):
            await asyncio.sleep(TICK_INTERVAL_S)
            try:
                # Leases, resume points and positions come first: they must not depend on statistics and
                # reports, which can fail.
                LAST.latest, LAST.periodic_task = "periodic_task", "tick"
                self.engine.tick()
                self._publish_stalls()
                LAST.latest, LAST.periodic_task = "periodic_task", "statistics"
                snapshot = await self.statistics.sample_second()
                LAST.latest, LAST.periodic_task = "periodic_task", "report"
                if on_tick is not None:
                    await on_tick(snapshot)
                if number % FRONTIER_INTERVAL_TICKS == 0:
                    await self._store_frontier()
            except Exception:
                # The tick judges slow clients. A single failure, such as Redis being unreachable, must not
                # end it.
                log.exception("tick_failed")

    def _publish_stalls(self) -> None:
        """Publish stalls that ended since the last tick as events of the broker."""
        for one in self.stalls.entries:
            if one.over and one.pid == os.getpid() and one.at > self._stall_published:
                self._stall_published = one.at
                state = f"{one.lasted_ms / 1_000:.1f} s: {one.cause}"
                self.engine.events.add(self.engine.clock.now_ns(), BROKER_NAME, "event_loop_stalled", state)

    async def stop(self) -> None:
        """Stop in order. No acknowledged record is lost."""
        if self._ticking is not None:
            self._ticking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticking
        ticked = self._ticking is not None
        await self._listeners.close()
        await self.links.close()
        await self.engine.close()
        if ticked:  # only a broker that started completely stores its policy
            await self._store_policy(stopped=True)
        await self.control.close()
        log.info("broker_stopped", instance=self.engine.instance)


def _allowance_use(brake: RolloutBrake | None, *, stopped: bool) -> AllowanceUse | None:
    """Return the use of a rollout's allowance for storage; all of it while decisions are possible."""
    if brake is None:
        return None
    return AllowanceUse(revision=brake.revision, decisions=brake.made if stopped else brake.reserved)


def abort_process(error: SluiceError) -> None:
    """End the process immediately, without cleanup.

    The state of the process is no longer reliable, so it must not answer or write. Only logs are flushed.
    """
    logging.shutdown()
    logs.flush_logs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_LOG_FAILED)


def journal_options(policy: PolicyDocument) -> JournalOptions:
    """Return the journal options of a policy: JournalSize and PreallocatedJournalFiles."""
    return JournalOptions(policy.instance.journal_size, policy.instance.preallocated_files)


def check_access(policy: PolicyDocument) -> None:
    """Check users, entitlements, destinations and certificates before any part of a revision is in force.

    Raises:
        OperatorError: `bad_policy` or `bad_certificate`.
    """
    AccessPolicy(policy)
    if problems := destination_problems(policy):
        raise bad_policy_error(problems)
    for transport in policy.transports:
        if transport.enabled and transport.tls is not None:
            make_server_context(transport.tls)


def host_memory() -> int:
    """Return the memory of this machine in bytes.

    Raises:
        OperatorError: `no_memory_figure`.
    """
    with open("/proc/meminfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1_024
    raise OperatorError("no_memory_figure", "/proc/meminfo has no MemTotal.", "Set MessageMemoryLimit.")


def memory_ulimit() -> int | None:
    """Return the limit on this process's resident memory in bytes (`ulimit -m`), or None."""
    soft, _ = resource.getrlimit(resource.RLIMIT_RSS)
    return None if soft == resource.RLIM_INFINITY else soft
