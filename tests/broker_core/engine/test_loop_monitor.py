"""A blocked event loop is reported by a thread, with cause, activity and all stacks.

A stopped process is distinguished from a blocked loop.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from broker_core.activity import LoopActivity
from broker_core.documents.stalls import CAUSES, StallCause, StallEntry
from broker_core.engine.loop_monitor import LoopMonitor
from broker_core.engine.stalls import (
    MAX_STALLS,
    MachineSample,
    Observation,
    ProcessSample,
    StallHistory,
    find_stall_cause,
    make_stall_entry,
)
from broker_core.protocols import commands
from broker_core.stored_stalls import find_lasting_stall, read_stalls, stalls_path

BROKER = textwrap.dedent(
    """
    import asyncio, ctypes, os, sys, time
    from pathlib import Path
    import uvloop
    from broker_core.broker import Broker, BrokerPaths
    from broker_core.connections.connection import Connection
    from broker_core.engine.loop_monitor import LoopMonitor
    from broker_core.protocols import commands
    from tests.support.brokers import no_websocket, tcp_policy

    home = Path(sys.argv[1])
    policy = tcp_policy()
    paths = BrokerPaths.in_home(home, policy.instance.name)
    carry_out = Connection._dispatch

    def blocking(self, command):
        topic = getattr(command, "topic", "")
        if isinstance(command, commands.Subscribe) and topic.startswith("block."):
            getattr(sys.modules[__name__], f"block_{topic[6:]}")()
        carry_out(self, command)

    def block_fifo():
        with open(home / "fifo", "rb") as reading:
            reading.read()

    def block_busy():
        until = time.monotonic() + 3
        while time.monotonic() < until:
            pass

    def block_held():
        # A call in C that lets no other thread run and that no signal ends.
        mutex, c = ctypes.create_string_buffer(64), ctypes.PyDLL(None)
        until = (ctypes.c_long * 2)(int(time.time()) + 5, 0)
        c.pthread_mutex_lock(mutex)
        c.pthread_mutex_timedlock(mutex, until)

    Connection._dispatch = blocking

    async def serve():
        broker = Broker(policy, paths, no_websocket)
        await broker.start()
        monitor = LoopMonitor(broker.stalls, paths.control)
        monitor.start()
        print(broker.statistics.transports[0]["port"], paths.control, flush=True)
        await asyncio.Event().wait()

    uvloop.run(serve())
    """
)


class BrokerUnderTest:
    """A real broker in its own process; a subscription to `block.…` blocks its loop."""

    def __init__(self, home: Path) -> None:
        self.log = home / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", BROKER, str(home)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=Path(__file__).parents[3],
            )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := re.fullmatch(r"(\d+) (\S+)\n", line):
                self.port, self.control = int(found[1]), Path(found[2])
                return
        raise AssertionError("the broker didn't start")

    def stored(self) -> list[StallEntry]:
        return read_stalls(stalls_path(self.control))

    def wait_stored(self, *, over: bool) -> StallEntry:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            if (found := self.stored()) and found[-1].over == over:
                return found[-1]
            time.sleep(0.05)
        raise AssertionError("no stall was stored")

    async def subscribe(self, topic: str) -> None:
        from broker_core.client import AsyncClient

        client = AsyncClient(f"tcp://127.0.0.1:{self.port}", "board", heartbeat_ms=60_000)
        await client.start()
        task = asyncio.create_task(client.subscribe(topic))
        await asyncio.sleep(0.3)
        self._held = (client, task)

    async def close(self) -> None:
        client, task = self._held
        await asyncio.wait([task], timeout=10)
        await client.close()

    def end(self) -> str:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        return self.process.stdout.read() + self.log.read_text()


async def test_a_loop_that_waits_in_a_call_is_reported_while_it_waits_with_stacks_and_what_was_done(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "fifo")
    broker = await asyncio.to_thread(BrokerUnderTest, tmp_path)
    try:
        await broker.subscribe("block.fifo")
        lasting = await asyncio.to_thread(broker.wait_stored, over=False)
        assert lasting.cause is StallCause.LOOP_BLOCKED and lasting.thread_states == "S"
        assert lasting.doing.startswith("command Subscribe of board")
        assert "block_fifo" in lasting.stacks and "loop_monitor.py" in lasting.stacks
        assert lasting.lasted_ms >= 1_000 and lasting.pid == broker.process.pid
        assert find_lasting_stall(broker.control) == lasting
        await asyncio.sleep(2)
        with (tmp_path / "fifo").open("wb"):
            pass
        over = await asyncio.to_thread(broker.wait_stored, over=True)
        assert (over.cause, over.doing) == (StallCause.LOOP_BLOCKED, lasting.doing)
        assert over.lasted_ms > lasting.lasted_ms and "block_fifo" in over.stacks
        assert abs(over.at - lasting.at) < 1_000
        assert len(broker.stored()) == 1 and find_lasting_stall(broker.control) is None
        await broker.close()
    finally:
        log = broker.end()
    assert "event_loop_stalls" in log and "event_loop_stalled" in log and "block_fifo" in log


async def test_a_loop_that_computes_and_one_whose_call_holds_the_interpreter_are_told_apart(
    tmp_path: Path,
) -> None:
    broker = await asyncio.to_thread(BrokerUnderTest, tmp_path)
    try:
        await broker.subscribe("block.busy")
        busy = await asyncio.to_thread(broker.wait_stored, over=True)
        # On a machine without a free CPU the loop is starved of it at the same time.
        assert busy.cause in (StallCause.LOOP_BUSY, StallCause.CPU_STARVED)
        assert "block_busy" in busy.stacks and busy.loop_cpu_ms + busy.cpu_wait_ms > 1_000
        await broker.close()
        await broker.subscribe("block.held")
        until = time.monotonic() + 60
        while len(broker.stored()) < 2 or not broker.stored()[-1].over:
            assert time.monotonic() < until
            await asyncio.sleep(0.1)
        held = broker.stored()[-1]
        # No thread could run: the signal took the stacks.
        assert held.cause in (StallCause.INTERPRETER_LOCKED, StallCause.CPU_STARVED)
        assert "block_held" in held.stacks
        assert held.lasted_ms >= 3_000
        await broker.close()
    finally:
        broker.end()


async def test_a_stopped_process_is_no_blocked_loop(tmp_path: Path) -> None:
    broker = await asyncio.to_thread(BrokerUnderTest, tmp_path)
    try:
        await asyncio.sleep(1)
        broker.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(4)
        assert broker.stored() == []
        broker.process.send_signal(signal.SIGCONT)
        stopped = await asyncio.to_thread(broker.wait_stored, over=True)
        assert stopped.cause is StallCause.PROCESS_STOPPED
        assert 3_000 <= stopped.lasted_ms <= 60_000 and stopped.cpu_ms < 1_000
        assert abs(stopped.at + stopped.lasted_ms - time.time() * 1_000) < 30_000
    finally:
        log = broker.end()
    assert "process_stopped" in log and CAUSES[StallCause.PROCESS_STOPPED].fix in log


QUIET = MachineSample(0.0)


def observed_stall(
    lasted: float, late: float = 0.0, machine: MachineSample | None = None, states: str = "S", **after: float
) -> Observation:
    process = ProcessSample(lasted, after.pop("boot_at", lasted))._replace(**after)  # type: ignore[arg-type]
    return Observation(
        0.0, lasted, late, ProcessSample(0.0, 0.0), process, QUIET, machine or MachineSample(lasted), states
    )


@pytest.mark.parametrize(
    ("stall", "cause"),
    [
        (observed_stall(5), StallCause.LOOP_BLOCKED),
        (observed_stall(5, states="DDDS"), StallCause.DISK_WAIT),
        (observed_stall(5, loop_cpu_s=4.0, cpu_s=4.0), StallCause.LOOP_BUSY),
        (observed_stall(5, late=4.5, loop_cpu_s=4.0, cpu_s=4.0), StallCause.LOOP_BUSY),
        (observed_stall(5, late=4.5, cpu_s=4.0), StallCause.INTERPRETER_LOCKED),
        (observed_stall(5, late=4.5), StallCause.PROCESS_STOPPED),
        (observed_stall(5, late=4.5)._replace(signalled_at=1.0), StallCause.INTERPRETER_LOCKED),
        (observed_stall(5, late=4.5)._replace(signalled_at=4.9), StallCause.PROCESS_STOPPED),
        (observed_stall(5, states="T"), StallCause.PROCESS_STOPPED),
        (observed_stall(5, late=4.5, machine=MachineSample(5.0, cpu_wait_s=4.0)), StallCause.CPU_STARVED),
        (observed_stall(5, late=4.5, major_faults=1_000), StallCause.PAGE_FAULTS),
        (
            observed_stall(5, late=4.5, major_faults=9, machine=MachineSample(5.0, memory_s=4)),
            StallCause.PAGE_FAULTS,
        ),
        (observed_stall(5, late=4.5, major_faults=9), StallCause.PROCESS_STOPPED),
        (observed_stall(1, boot_at=126.0), StallCause.MACHINE_SUSPENDED),
    ],
)
def test_the_cause_is_what_took_most_of_the_time(stall: Observation, cause: StallCause) -> None:
    assert find_stall_cause(stall) is cause


def test_every_cause_has_a_meaning_and_a_fix() -> None:
    assert set(CAUSES) == set(StallCause) and all(text.meaning and text.fix for text in CAUSES.values())


def entry(at_ms: int, *, over: bool = True, pid: int = 1) -> StallEntry:
    return make_stall_entry(
        observed_stall(2), at_ms, over=over, doing="tick", task="", pid=pid, member="", stacks="x" * 100_000
    )


def test_stalls_are_kept_by_number_and_size_and_counted_once() -> None:
    history = StallHistory()
    history.load([entry(number) for number in range(50)])
    assert len(history.entries) == MAX_STALLS and history.totals.count == {}
    for number in range(30):
        history.put(entry(10_000 * number, over=False))
        history.put(entry(10_000 * number + 5))
    assert len(history.entries) == MAX_STALLS and all(one.over for one in history.entries)
    assert history.totals.count == {"loop_blocked": 30}
    assert history.totals.lasted_ms == {"loop_blocked": 60_000}
    assert max(len(one.stacks) for one in history.entries) <= 16 * 1024
    assert history.totals.last is not None and (history.totals.last.stacks, history.totals.last.doing) == (
        "",
        "",
    )


def test_a_stall_in_which_the_process_before_ended_stays_open() -> None:
    history = StallHistory()
    history.load([entry(1, over=False, pid=1)])
    history.put(entry(2, pid=2))
    assert [(one.pid, one.over) for one in history.entries] == [(1, False), (2, True)]


def test_what_was_done_is_said_newest_first() -> None:
    activity = LoopActivity()
    assert activity.describe() == ""
    activity.latest, activity.periodic_task = "periodic_task", "tick"
    activity.first, activity.last = 7, 9
    activity.command, activity.client = commands.Subscribe, "board"
    assert activity.describe() == "tick; command Subscribe of board; records 7 to 9"
    activity.latest = "batch"
    assert activity.describe() == "records 7 to 9; command Subscribe of board; tick"


async def test_a_healthy_loop_is_left_alone(tmp_path: Path) -> None:
    history = StallHistory()
    before = signal.getsignal(signal.SIGALRM)
    monitor = LoopMonitor(history, tmp_path / "a.sock")
    monitor.start()
    try:
        began = time.process_time()
        await asyncio.sleep(3)
        spent = time.process_time() - began
    finally:
        monitor.stop()
    assert history.entries == () and not stalls_path(tmp_path / "a.sock").exists()
    assert spent < 1.0
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
    assert signal.getsignal(signal.SIGALRM) == before


def test_stored_stalls_that_cant_be_read_are_none(tmp_path: Path) -> None:
    assert read_stalls(tmp_path / "absent") == []
    (tmp_path / "torn").write_bytes(b'{"stalls": [{')
    assert read_stalls(tmp_path / "torn") == []
