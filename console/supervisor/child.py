"""Lifecycle of one child process: start, readiness checks, restart after its death, stop by signals."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from broker_core.private_files import PRIVATE_UMASK
from console.supervisor.backoff import RestartBackoff
from console.supervisor.child_specs import ChildSpec
from console.supervisor.logs import ChildLog

CHECK_INTERVAL_S = 0.25
"""Interval between readiness checks of a child."""
_PR_SET_PDEATHSIG = 1
try:
    _libc = ctypes.CDLL(None)
    _prctl = getattr(_libc, "prctl", None)
except OSError:
    _prctl = None


def set_parent_death_signal() -> None:
    """Ask the kernel (Linux) for SIGTERM when the parent dies. Runs in the child before exec.

    A supervisor that is killed can't send the signal itself.
    """
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)


class ChildOutput:
    """Pipe from a child to its log.

    asyncio's own pipes don't fit. With those a process counts as running while any process holds its output
    open. So a killed worker whose pool lives on would go unnoticed.
    """

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read_end, self._read)

    def started(self) -> None:
        """Close this process's write end after the child's start. Otherwise the pipe would never end."""
        os.close(self.write_end)
        self.write_end = -1

    def close(self) -> None:
        """Read the remaining output, and close the pipe."""
        while self._read():
            pass
        self._loop.remove_reader(self._read_end)
        os.close(self._read_end)
        if self.write_end >= 0:
            self.started()

    def _read(self) -> bool:
        """Read one chunk into the log, and return whether there was any."""
        try:
            chunk = os.read(self._read_end, 65536)
        except BlockingIOError:
            return False
        if chunk:
            self._write(chunk)
        else:
            self._loop.remove_reader(self._read_end)  # all write ends are closed
        return bool(chunk)


class ChildProcess:
    """Supervision of one process: restarts it after each death until it is asked to stop.

    ready     event that is set while the process is ready
    done      event that is set when the process will never run again
    stopping  event that the owner sets to stop the process
    say       function that shows a sentence to the operator
    hurry     event that the owner sets to cut every wait of a stop short
    """

    def __init__(
        self,
        spec: ChildSpec,
        directory: Path,
        environment: Mapping[str, str],
        log: ChildLog,
        print_line: Callable[[str], None],
        hurry: asyncio.Event,
        backoff: RestartBackoff | None = None,
    ) -> None:
        self.spec = spec
        self.ready = asyncio.Event()
        self.done = asyncio.Event()
        self.stopping = asyncio.Event()
        self.pid: int | None = None
        self.killed = False
        self._directory = directory
        self._environment = {**environment, **dict(spec.environment)}
        self._log = log
        self._print_line = print_line
        self._hurry = hurry
        self._backoff = backoff or RestartBackoff()

    async def run_until_stopped(self) -> None:
        """Run the process, restarting it after each death, until `stopping` is set or its work is done."""
        failures = 0
        while not self.stopping.is_set():
            began = time.monotonic()
            outcome = await self._run_once()
            if self.stopping.is_set():
                break
            if self.spec.once and outcome == "code 0":
                self._print_line(f"{self.spec.name} has finished")
                break
            failures = self._backoff.failures_after(failures, time.monotonic() - began)
            delay = self._backoff.delay_s(failures)
            self._report_exit(outcome, delay)
            await wait_or_timeout(self.stopping, delay)
        self.done.set()

    async def _run_once(self) -> str:
        """Run the process once, and return how it ended, in words.

        Kills the rest of its process group afterwards.
        """
        started_at = time.time()
        output = ChildOutput(self._log.write)
        try:
            process = await self._start(output)
        except OSError as error:
            output.close()
            return f"can't be started: {error}"
        self.pid = process.pid
        readiness_task = asyncio.create_task(self._ask_until_ready(started_at))
        exited = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait({exited, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not exited.done():
                await self._bring_down(process, exited)
        finally:
            readiness_task.cancel()
            stopping.cancel()
            self.ready.clear()
            self.pid = None
            _signal_group(process.pid, signal.SIGKILL)  # remaining descendants, such as Celery's pool
            output.close()
        return describe_exit(await exited)

    async def _start(self, output: ChildOutput) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *self.spec.command,
            cwd=self._directory,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output.write_end,
            stderr=asyncio.subprocess.STDOUT,
            umask=PRIVATE_UMASK,
            # Own session: Ctrl-C reaches only the supervisor, which stops all children in order.
            start_new_session=True,
            # A single async-signal-safe system call, hence safe although readiness checks use threads.
            preexec_fn=set_parent_death_signal,
        )
        output.started()
        return process

    async def _ask_until_ready(self, started_at: float) -> None:
        """Check until the process is ready.

        Show the last lines of its log if that takes longer than `ready_s`.
        """
        began = time.monotonic()
        is_reported = False
        while self.spec.ready is not None and not await self.spec.ready(started_at):
            waited = time.monotonic() - began
            if waited > self.spec.ready_s and not is_reported:
                is_reported = True
                self._print_line(
                    f"{self.spec.name} runs but isn't ready after {waited:.0f} s; the supervisor keeps "
                    "checking"
                )
                self._report_last_lines()
            await asyncio.sleep(CHECK_INTERVAL_S)
        self._print_line(f"{self.spec.name} is ready ({time.monotonic() - began:.1f} s, pid {self.pid})")
        self.ready.set()

    async def _bring_down(self, process: asyncio.subprocess.Process, exited: asyncio.Task[int]) -> None:
        """Send the signals of `stop` in turn until the process exits.

        SIGKILL goes to its whole process group.
        """
        for step in self.spec.stop:
            if step.signal == signal.SIGKILL:
                self.killed = True
                self._print_line(f"{self.spec.name} doesn't stop, so the supervisor kills it")
                _signal_group(process.pid, signal.SIGKILL)
            else:
                _signal(process, step.signal)
            hurried = asyncio.create_task(self._hurry.wait())
            last = step.signal == signal.SIGKILL
            watched = {exited} if last else {exited, hurried}
            await asyncio.wait(watched, timeout=step.wait_s, return_when=asyncio.FIRST_COMPLETED)
            hurried.cancel()
            if exited.done():
                return

    def _report_exit(self, outcome: str, delay: float) -> None:
        self._print_line(
            f"{self.spec.name} died ({outcome}); started again in {delay:.1f} s. Log: {self._log.path}"
        )
        self._report_last_lines()

    def _report_last_lines(self) -> None:
        for line in self._log.last_lines():
            self._print_line(f"    {self.spec.name} | {line}")


def describe_exit(code: int) -> str:
    """Return an exit status in words: `code 1`, or the signal's name."""
    if code >= 0:
        return f"code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


async def wait_or_timeout(event: asyncio.Event, seconds: float) -> bool:
    """Wait at most `seconds` for the event, and return whether it was set."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


def _signal_group(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
