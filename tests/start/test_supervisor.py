"""The supervisor with small real processes: start order, restarts, stopping, escalation."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from console.supervisor.backoff import RestartBackoff
from console.supervisor.child_specs import ChildSpec, StopStep
from console.supervisor.supervisor import Supervisor

QUICK = RestartBackoff(first_s=0.01, max_s=0.05)
SLEEP = (sys.executable, "-c", "import signal; signal.pause()")
STUBBORN = (
    sys.executable,
    "-c",
    "import signal as s; s.signal(s.SIGTERM, s.SIG_IGN); print('deaf', flush=True); s.pause()",
)


class SupervisedProcesses:
    """A supervisor and the lines it logged."""

    def __init__(self, tmp_path: Path, *specs: ChildSpec) -> None:
        self.lines: list[str] = []
        self.ready = asyncio.Event()
        self.supervisor = Supervisor(
            specs,
            tmp_path,
            dict(os.environ),
            tmp_path / "log",
            self.lines.append,
            self.ready.set,
            backoff=QUICK,
        )

    def has_logged(self, part: str) -> bool:
        return any(part in sentence for sentence in self.lines)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.01)


def run(
    house: Callable[[], SupervisedProcesses],
    scenario: Callable[[SupervisedProcesses], Coroutine[Any, Any, None]],
) -> tuple[SupervisedProcesses, int]:
    """Run a supervisor during `scenario`, then stop it; return the supervisor with its log, and its exit
    code.
    """

    async def all_of_it() -> tuple[SupervisedProcesses, int]:
        made = house()
        running = asyncio.create_task(made.supervisor.run())
        await scenario(made)
        made.supervisor.request_stop("the test")
        async with asyncio.timeout(20):
            return made, await running

    return asyncio.run(all_of_it())


async def ready(house: SupervisedProcesses) -> None:
    async with asyncio.timeout(20):
        await house.ready.wait()


def test_children_stop_in_reverse_order_of_their_start(tmp_path: Path) -> None:
    one, two = ChildSpec("one", SLEEP), ChildSpec("two", SLEEP, needs=("one",))
    house, code = run(lambda: SupervisedProcesses(tmp_path, one, two), ready)
    assert [line for line in house.lines if line.endswith("stopped")] == [
        "two has stopped",
        "one has stopped",
    ]
    assert code == 0


def test_child_that_dies_is_named_with_its_last_lines_and_started_again(tmp_path: Path) -> None:
    child = ChildSpec("frail", (sys.executable, "-c", "print('out of luck'); raise SystemExit(3)"))

    async def dies_twice(house: SupervisedProcesses) -> None:
        await house.until(lambda: sum("frail died (code 3)" in line for line in house.lines) >= 2)

    house, _ = run(lambda: SupervisedProcesses(tmp_path, child), dies_twice)
    assert house.has_logged("out of luck")


def test_child_that_is_killed_comes_back_as_a_new_process(tmp_path: Path) -> None:
    pids: list[int] = []

    async def kill(house: SupervisedProcesses) -> None:
        await ready(house)
        child = house.supervisor.children["one"]
        pids.append(child.pid or 0)
        os.kill(pids[0], signal.SIGKILL)
        await house.until(lambda: child.pid not in (None, pids[0]))

    house, _ = run(lambda: SupervisedProcesses(tmp_path, ChildSpec("one", SLEEP)), kill)
    assert house.has_logged("one died (SIGKILL)")


def test_child_that_ignores_its_signal_is_killed_and_the_exit_code_says_so(tmp_path: Path) -> None:
    steps = (StopStep(signal.SIGTERM, 0.1), StopStep(signal.SIGKILL, 5.0))
    child = ChildSpec("deaf", STUBBORN, stop=steps)

    async def listening(house: SupervisedProcesses) -> None:
        log = tmp_path / "log" / "deaf.log"
        await house.until(lambda: log.exists() and b"deaf" in log.read_bytes())

    house, code = run(lambda: SupervisedProcesses(tmp_path, child), listening)
    assert house.has_logged("deaf doesn't stop, so the supervisor kills it")
    assert code == 1


def test_needed_child_is_waited_for(tmp_path: Path) -> None:
    async def never(_: float) -> bool:
        return False

    first = ChildSpec("first", SLEEP, ready=never)
    second = ChildSpec("second", SLEEP, needs=("first",))

    async def first_runs(house: SupervisedProcesses) -> None:
        await house.until(lambda: house.supervisor.children["first"].pid is not None)

    house, code = run(lambda: SupervisedProcesses(tmp_path, first, second), first_runs)
    assert not house.has_logged("second")
    assert code == 0


def test_child_whose_work_is_done_is_not_started_again_and_the_supervisor_ends(tmp_path: Path) -> None:
    async def by_itself() -> tuple[SupervisedProcesses, int]:
        house = SupervisedProcesses(tmp_path, ChildSpec("feed", (sys.executable, "-c", ""), once=True))
        async with asyncio.timeout(20):
            return house, await house.supervisor.run()

    house, code = asyncio.run(by_itself())
    assert house.has_logged("feed has finished")
    assert code == 0


def test_program_that_is_not_there_is_said_and_tried_again(tmp_path: Path) -> None:
    async def said(house: SupervisedProcesses) -> None:
        await house.until(lambda: house.has_logged("ghost died (can't be started"))

    run(lambda: SupervisedProcesses(tmp_path, ChildSpec("ghost", ("/no/such/program",))), said)


def test_what_a_dead_child_left_behind_goes_too(tmp_path: Path) -> None:
    script = "import subprocess as s; p = s.Popen(['sleep', '600']); print(p.pid, flush=True); p.wait()"
    log = tmp_path / "log" / "parent.log"

    async def grandchild(house: SupervisedProcesses) -> None:
        await house.until(lambda: log.exists() and log.read_bytes().endswith(b"\n"))

    async def gone(house: SupervisedProcesses) -> None:
        await grandchild(house)
        os.kill(house.supervisor.children["parent"].pid or 0, signal.SIGKILL)
        pid = int(log.read_text().split()[0])
        await house.until(lambda: not is_running(pid))

    run(lambda: SupervisedProcesses(tmp_path, ChildSpec("parent", (sys.executable, "-c", script))), gone)


def test_second_request_within_a_second_is_the_same_request(tmp_path: Path) -> None:
    async def stop_at_once(house: SupervisedProcesses) -> None:
        await ready(house)
        house.supervisor.request_stop("the group")

    house, _ = run(lambda: SupervisedProcesses(tmp_path, ChildSpec("one", SLEEP)), stop_at_once)
    assert not house.has_logged("stopping the remaining processes")


def is_running(pid: int) -> bool:
    """Return whether a process with this id runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
