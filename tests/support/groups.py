"""Members of a group inside a test: real brokers with real journals and real NATS servers."""

from __future__ import annotations

import asyncio
import mmap
import multiprocessing
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import uvloop

from broker_core import broker as composition
from broker_core.broker import Broker, BrokerPaths
from broker_core.clock import SystemClock
from broker_core.config import PolicyDocument
from broker_core.config.destinations import DestinationSettings
from broker_core.group.jetstream import JetStreamLog
from broker_core.group.member import GroupMember, KnownGroup
from broker_core.group.settings import GroupSettings
from broker_core.journal.files import FileSystem
from broker_core.journal.journal import Journal
from tests.support.acknowledgement_checker import AcknowledgementChecker
from tests.support.brokers import address_of, no_websocket, tcp_policy

GROUP = "group"
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload([__name__])


def group_policy(port: int = 0, **instance: Any) -> PolicyDocument:
    """Return a policy with TCP alone; `instance` are settings of the instance.

    Port 0 is a free port.
    """
    policy = tcp_policy()
    transports = tuple(replace(one, port=port) for one in policy.transports)
    return replace(policy, instance=replace(policy.instance, name=GROUP, **instance), transports=transports)


class RunningMember:
    """A member that runs in this process."""

    def __init__(self, broker: Broker, member: GroupMember) -> None:
        self.broker, self.member = broker, member
        self.acknowledgements = AcknowledgementChecker(broker)
        self.errors: list[str] = []
        broker.report_log_failure = lambda error: self.errors.append(error.code)

    @property
    def address(self) -> str:
        return address_of(self.broker)

    @property
    def journal(self) -> Journal:
        return self.broker.engine.journal

    @property
    def state(self) -> str:
        return self.member.status().state

    def is_taking_part(self) -> bool:
        return self.state == "taking part"

    async def stop(self) -> None:
        await self.broker.stop()
        shutil.rmtree(self.broker.paths.control.parent)


async def start_member(
    home: Path,
    name: str,
    engines: Sequence[str],
    files: FileSystem | None = None,
    hold_ms: int = 5_000,
    copies: int = 0,
    port: int = 0,
    link_secrets: Path | None = None,
    ca: str = "",
    known_group: KnownGroup | None = None,
    destinations: tuple[DestinationSettings, ...] = (),
    **instance: Any,
) -> RunningMember:
    """Start a member in `home`/`name`, as `manage.py runbroker` does.

    `instance` are settings of the policy's instance.
    """
    settings = GroupSettings(GROUP, name, tuple(engines), copies, hold_ms, ca)
    member = GroupMember(settings, JetStreamLog(settings))
    place = tempfile.mkdtemp(prefix="sluice-")
    paths = replace(BrokerPaths.in_home(home / name, GROUP), control=Path(place) / f"{GROUP}.sock")
    known = await member.find_log_identity(paths.journal, paths.archive, known_group)
    policy = replace(group_policy(port, **instance), destinations=destinations)
    broker = Broker(policy, paths, no_websocket, known, files=files, member=member, link_secrets=link_secrets)
    running = RunningMember(broker, member)
    await broker.start()
    return running


@asynccontextmanager
async def running_members(
    home: Path,
    engines: Sequence[str],
    *names: str,
    hold_ms: int = 5_000,
    link_secrets: Path | None = None,
    ca: str = "",
    **instance: Any,
) -> AsyncIterator[list[RunningMember]]:
    """Run members until the block ends.

    At the end no record may have been acknowledged too early, and no log broken.
    """
    members: list[RunningMember] = []
    try:
        for name in names:
            members.append(
                await start_member(
                    home, name, engines, hold_ms=hold_ms, link_secrets=link_secrets, ca=ca, **instance
                )
            )
        yield members
    finally:
        for one in members:
            await one.stop()
    for one in members:
        assert one.acknowledgements.violations == []
        assert one.errors == []


@asynccontextmanager
async def standalone_broker(home: Path) -> AsyncIterator[str]:
    """Run a broker of the same instance without a group; yield its address."""
    with tempfile.TemporaryDirectory(prefix="sluice-") as place:
        paths = replace(BrokerPaths.in_home(home, GROUP), control=Path(place) / "control.sock")
        broker = Broker(group_policy(), paths, no_websocket)
        await broker.start()
        try:
            yield address_of(broker)
        finally:
            await broker.stop()


class MemberProcess:
    """A member in its own process, which can be killed and restarted at the same address."""

    def __init__(
        self, home: Path, name: str, engines: Sequence[str], hold_ms: int, port: int, **instance: Any
    ) -> None:
        self._home, self._name, self._engines, self._hold_ms = home, name, engines, hold_ms
        self._instance = instance
        self._port = port
        self._process: BaseProcess | None = None
        self._clock = home / f"{name}.clock"
        self.set_clock(0)

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._process = SERVER.Process(
            target=_run,
            args=(
                self._home,
                self._name,
                self._engines,
                self._hold_ms,
                self._port,
                self._instance,
                self._clock,
            ),
            daemon=True,
        )
        self._process.start()

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None

    def freeze(self) -> None:
        """Stop the process with SIGSTOP: connections stay open, nothing is sent."""
        if self._process is not None and self._process.pid is not None:
            os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        if self._process is not None and self._process.pid is not None:
            os.kill(self._process.pid, signal.SIGCONT)

    def set_clock(self, ahead_ns: int) -> None:
        """Set how far the machine's clock is ahead, whether the process runs or not."""
        with self._clock.open("r+b" if self._clock.exists() else "wb") as clock:
            clock.write(ahead_ns.to_bytes(8, "little", signed=True))

    @property
    def exit_code(self) -> int | None:
        """Return the exit code of a process that ended without being killed."""
        return None if self._process is None else self._process.exitcode

    def open_journal(self) -> Journal:
        """Open the member's journal while no process has it open."""
        assert self._process is None
        paths = BrokerPaths.in_home(self._home / self._name, GROUP)
        return Journal.open(paths.journal, GROUP, paths.archive)


class ShiftedClock(SystemClock):
    """A system clock shifted by an offset that is read from a file."""

    def __init__(self, file: Path) -> None:
        with file.open("rb") as opened:
            self._ahead = mmap.mmap(opened.fileno(), 8, access=mmap.ACCESS_READ)

    def now_ns(self) -> int:
        return super().now_ns() + int.from_bytes(self._ahead[:], "little", signed=True)


def _run(
    home: Path,
    name: str,
    engines: Sequence[str],
    hold_ms: int,
    port: int,
    instance: dict[str, Any],
    clock_file: Path,
) -> None:
    log = os.open(home / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    clock: Any = lambda: ShiftedClock(clock_file)  # noqa: E731
    composition.SystemClock = clock  # type: ignore[misc]
    uvloop.run(_serve(home, name, engines, hold_ms, port, instance))


async def _serve(
    home: Path, name: str, engines: Sequence[str], hold_ms: int, port: int, instance: dict[str, Any]
) -> None:
    await start_member(home, name, engines, hold_ms=hold_ms, port=port, **instance)
    await asyncio.Event().wait()


def hash_log(journal: Journal, upto: int | None = None) -> tuple[int, str]:
    """Return the last sequence and a hash of the log's batches, optionally up to the end of a batch."""
    found, at, last = sha256(), journal.first_sequence, journal.next_sequence - 1 if upto is None else upto
    while batches := journal.read(at, 1 << 20, last):
        for batch in batches:
            found.update(batch.buf)
        at = batches[-1].last_sequence + 1
    return last, found.hexdigest()
