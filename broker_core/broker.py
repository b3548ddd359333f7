"""A whole broker: the engine, its listeners, the control socket and the one-second tick, started and stopped in order.

Start: lock and recover the journal, remove what dead spools left, listen, serve control.
Stop: listen no more, tell the clients, finish the journal, close control last, so that the control plane can see it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from broker_core import logs
from broker_core.access import AccessPolicy
from broker_core.access.tls import server_context
from broker_core.clock import SystemClock
from broker_core.config import PolicyDocument
from broker_core.config.reading import bad_policy
from broker_core.config.roots import refuse_outside
from broker_core.confirming.confirmations import Confirmations, event_of
from broker_core.confirming.confirming import Change
from broker_core.control import last_words
from broker_core.control.link import LinkSettings
from broker_core.control.requests.clients import ClientRequests
from broker_core.control.requests.group import GroupRequests
from broker_core.control.requests.instance import InstanceRequests
from broker_core.control.requests.journals import JournalRequests
from broker_core.control.requests.links import LinkRequests
from broker_core.control.requests.policy import PolicyRequests
from broker_core.control.requests.replays import ReplayRequests
from broker_core.control.requests.table import Handler, table_of
from broker_core.control.server import ControlServer
from broker_core.control.status import Statistics
from broker_core.delivery.spool.parts import clean_up
from broker_core.delivery.spool.places import refuse_unusable
from broker_core.documents.instance import RefusedRevision, Snapshot
from broker_core.documents.requests import Request, Welcome
from broker_core.engine.engine import TICK_MS, Engine
from broker_core.errors import OperatorError, SluiceError
from broker_core.group.member import Member
from broker_core.journal.appender import JournalOptions
from broker_core.journal.commit_log import LocalLog, LogMaker
from broker_core.journal.files import Files
from broker_core.journal.frontier import Known
from broker_core.journal.journal import Journal
from broker_core.names import BROKER_NAME
from broker_core.sites.links import Links
from broker_core.slow_clients.rules.staging import Stage
from broker_core.subscriptions.destinations import destination_problems
from broker_core.transports.listeners import ListenerFactory, Listeners

log = structlog.get_logger("sluice.broker")
TICK_S = TICK_MS / 1_000
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
    def under(cls, home: Path, instance: str) -> BrokerPaths:
        """The usual places below the data directory."""
        return cls(home / "journal", home / "archive", home / "spool", home / "run" / f"{instance}.sock")


class Broker:
    """One running instance. `on_tick(snapshot)` is awaited once a second, for whoever reports to the control plane."""

    def __init__(
        self,
        policy: PolicyDocument,
        paths: BrokerPaths,
        websocket: ListenerFactory,
        known: Known | None = None,
        files: Files | None = None,
        roots: Sequence[Path] = (Path("/"),),
        member: Member | None = None,
        link: LinkSettings | None = None,
        ports_apart: int = 0,
        link_secrets: Path | None = None,
    ) -> None:
        """`roots`: the policy names directories below these alone. `member`: of a group, whose log it shares. `link`: where control planes on
        other machines come in. `ports_apart`: transports listen so far above the ports that the policy says. `link_secrets`: the file that has what links to other sites prove
        themselves with. Raises OperatorError outside_roots, and as `Journal.open`."""
        refuse_outside(policy, roots)
        self.paths = paths
        self._roots = roots
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
        clean_up(paths.spool, policy.instance.name)
        confirmations = Confirmations(member.settings.member if member is not None else "", journal, clock)
        make_log: LogMaker = LocalLog
        if member is not None:
            member.confirms_with(confirmations)
            make_log = member.log
        self.engine = Engine(
            journal, policy, paths.spool, host_memory(), memory_ulimit(), clock, make_log, confirmations
        )
        confirmations.on_change = self._change
        self.engine.anteroom.bound(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._member = member
        if member is not None:
            self.engine.keep_in_common(member)
            member.on_key(self.engine.services.tokens.use)
        self.engine.on_broken = self._broken
        self.on_broken: Callable[[SluiceError], None] = end_process
        """What is done when the log takes nothing more; those who run a broker in a process of theirs may do otherwise."""
        self.member = member.settings.member if member is not None else ""
        """Its name in a group."""
        self.statistics = Statistics(self.engine, self.member)
        self.statistics.ended = last_words.read(paths.control)
        self._listeners = Listeners(self.engine, websocket, ports_apart)
        self.links = Links(self.engine, link_secrets)
        own = Welcome(instance=self.engine.instance, member=self.member)
        self.control = ControlServer(paths.control, self._handlers(), own, link)
        self._ticking: asyncio.Task[None] | None = None
        self.on_shut_down: Callable[[], None] | None = None
        """How an action ends the process; set by whoever runs it."""

    async def start(self, on_tick: Callable[[Snapshot], Awaitable[None]] | None = None) -> None:
        """Listen and tick. Raises OperatorError port_taken, and nothing stays open."""
        try:
            await self.engine.recover_kept()
            await self._listen(self.engine.policy)
            await self.control.listen()
        except SluiceError:
            await self.stop()
            raise
        try:
            await self.check_spools(self.engine.policy)
        except OperatorError as problem:
            # Nothing may ever have to be written there, and who is offlined is told if it has.
            log.error("spool_path_unusable", why=problem.sentence, fix=problem.fix)
        last_words.forget(self.paths.control)
        self.engine.spawn(self.engine.settle.run())
        if self._member is not None:
            self._member.start()
        self.engine.confirmations.start()
        self.engine.spawn(self.engine.confirmations.run())
        await self.links.apply(self.engine.policy)
        self._ticking = asyncio.create_task(self._tick(on_tick), name="tick")
        log.info(
            "broker_started", instance=self.engine.instance, recovery=self.engine.journal.recovery.as_dict()
        )

    def _broken(self, error: SluiceError) -> None:
        last_words.note(self.paths.control, error, self.engine.clock.now_ns())
        self.on_broken(error)

    def _change(self, change: Change) -> None:
        self.engine.events.add(self.engine.clock.now_ns(), BROKER_NAME, event_of(change), change.sentence)

    def _handlers(self) -> dict[type[Request[Any]], Handler]:
        """Who answers which request of the control plane."""
        return table_of(
            InstanceRequests(self.engine, self.statistics, lambda: self.on_shut_down),
            ClientRequests(self.engine, self.statistics),
            ReplayRequests(self.engine),
            JournalRequests(self.engine, self.paths.archive),
            GroupRequests(self._member, self.engine.confirmations),
            LinkRequests(self.links, self.engine.confirmations),
            PolicyRequests(self.engine, self.apply, self.check_spools, self.member),
        )

    async def apply(self, policy: PolicyDocument, stage: Stage | None = None) -> None:
        """Put a revision in force without a restart: limits at once, transports started and stopped as it says. One that can't be is
        refused whole, and told of in the status."""
        try:
            await self._put_in_force(policy, stage)
        except SluiceError as problem:
            self.statistics.refused = RefusedRevision(
                revision=policy.revision, code=problem.code, message=problem.sentence, fix=problem.fix
            )
            raise
        self.statistics.refused = None

    async def _put_in_force(self, policy: PolicyDocument, stage: Stage | None) -> None:
        if policy.instance.name != self.engine.instance:
            raise OperatorError(
                "bad_policy", f"The policy is for {policy.instance.name}, not {self.engine.instance}."
            )
        await self.check_spools(policy)
        await self._listen(policy)
        self.engine.apply(policy, stage)
        await self.links.apply(policy)
        self.engine.journal.use(journal_options(policy))
        log.info(
            "policy_applied", revision=policy.revision, staged=stage.document.revision if stage else None
        )

    async def check_spools(self, policy: PolicyDocument) -> None:
        """Try to write where the policy wants spools. OperatorError bad_spool_path, outside_roots."""
        refuse_outside(policy, self._roots)
        pools = (policy.pool, *(transport.pool for transport in policy.transports))
        named = {pool.message_disk_path or str(self.paths.spool) for pool in pools}
        await asyncio.to_thread(refuse_unusable, named)

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
        while True:
            await asyncio.sleep(TICK_S)
            try:
                # Before what may fail: leases, resume points and kept positions don't depend on anybody's statistics.
                self.engine.tick()
                snapshot = await self.statistics.second()
                if on_tick is not None:
                    await on_tick(snapshot)
            except Exception:
                # The tick judges slow clients; one failure, such as a Redis that is away, must not end it.
                log.exception("tick_failed")

    async def stop(self) -> None:
        """Stop in order. Nothing that was acknowledged is lost."""
        if self._ticking is not None:
            self._ticking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticking
        await self._listeners.close()
        await self.links.close()
        await self.engine.close()
        await self.control.close()
        log.info("broker_stopped", instance=self.engine.instance)


def end_process(error: SluiceError) -> None:
    """At once and without a last act: nothing that this process still believes may be answered or written."""
    logging.shutdown()
    logs.settle()
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
        raise bad_policy(problems)
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
