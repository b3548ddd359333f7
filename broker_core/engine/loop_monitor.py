"""Thread beside the event loop that reports when the loop stalls, and why.

    loop      every BEAT_S: records the time
    thread    every POLL_S: reads that time, its own delay and CPU times;
              every BASELINE_S and in a stall: reads /proc
    SIGALRM   set to ALARM_S after the thread's newest poll; fires when the thread cannot run either

The thread needs the interpreter lock. If another thread holds it, the timer's signal makes `faulthandler`
write the stacks, which does not need the lock. Stacks go into a file in memory, which cannot block. From
there they go into the log, whose pipe cannot block either, and into `<instance>.stalls.json`, which the next
process reads.

Bounds: three dumps per stall (DUMPS_S), DUMP_REST_S between dumps, 16 KiB each, the newest 20 stalls.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import resource
import signal
import threading
import time
from collections import deque
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import structlog

from broker_core.activity import LAST
from broker_core.documents.stalls import CAUSES, StallCause, StallEntry
from broker_core.engine.stalls import (
    MAX_STACK_BYTES,
    STALL_S,
    MachineSample,
    Observation,
    ProcessSample,
    StallHistory,
    make_stall_entry,
)
from broker_core.stored_stalls import read_stalls, stalls_path, write_stalls

log = structlog.get_logger("sluice.loop")
BEAT_S: Final = 0.25
"""Interval at which the event loop records the time."""
POLL_S: Final = 0.5
"""Interval at which the thread checks that time."""
BASELINE_S: Final = 5.0
"""Interval between samples of the machine while there is no stall."""
ALARM_S: Final = 1.0
"""Time after a poll at which the signal fires.

Less than a stall, so that a stall in which this thread cannot run is signalled before it ends.
"""
DUMP_AFTER_S: Final = (STALL_S, 10.0, 60.0)
"""Durations of a stall at which stacks are dumped."""
DUMP_INTERVAL_S: Final = 5.0
"""Minimum time between two dumps."""
_PRESSURE: Final = Path("/proc/pressure")


class _Gap(NamedTuple):
    """Interval between two beats of the loop that was too long, monotonic seconds."""

    started_at: float
    ended_at: float


class LoopMonitor:
    """Monitor of the event loop of the thread that calls `start`, which must be the main thread.

    One per process.
    """

    def __init__(self, history: StallHistory, control: Path, member: str = "") -> None:
        self._history, self._member = history, member
        self._path = stalls_path(control)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loop-monitor", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._beat_at = 0.0
        self._gaps: deque[_Gap] = deque(maxlen=16)
        self._timer: asyncio.TimerHandle | None = None
        self._stacks = os.memfd_create("sluice-stacks")
        self._loop_thread = self._loop_clock = 0
        self._process_sample = ProcessSample(0.0, 0.0)
        self._machine_sample = MachineSample(0.0)
        # State of the present stall.
        self._dumps = 0
        self._dumped_at = 0.0
        self._stack_text = ""
        self._states = ""
        self._activity = self._task = ""
        self._late_s = 0.0
        self._signalled_at: float | None = None
        self._is_stored = True

    def start(self) -> None:
        """Start monitoring. Loads the stalls that the previous process stored."""
        self._history.load(read_stalls(self._path))
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_native_id()
        self._loop_clock = time.pthread_getcpuclockid(threading.get_ident())
        faulthandler.register(signal.SIGALRM, file=self._stacks, all_threads=True)
        self._beat_at = time.monotonic()
        self._process_sample, self._machine_sample = self._sample(), self._sample_machine()
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        """Stop monitoring.

        The signal handler stays installed: without it, a signal in flight would end the process.
        """
        self._stopping.set()
        if self._timer is not None:
            self._timer.cancel()
        self._thread.join(2.0)
        signal.setitimer(signal.ITIMER_REAL, 0)

    # Runs on the event loop.

    def _beat(self) -> None:
        """Record the time, and a gap if the loop was late."""
        now = time.monotonic()
        if now - self._beat_at - BEAT_S >= STALL_S:
            self._gaps.append(_Gap(self._beat_at, now))
        self._beat_at = now
        assert self._loop is not None
        self._timer = self._loop.call_later(BEAT_S, self._beat)

    # Run on the thread.

    def _run(self) -> None:
        """Poll until stopped."""
        signal.setitimer(signal.ITIMER_REAL, ALARM_S)
        polled_at = time.monotonic()
        while not self._stopping.wait(POLL_S):
            signal.setitimer(signal.ITIMER_REAL, ALARM_S)
            now = time.monotonic()
            try:
                self._poll(now, late_s=now - polled_at - POLL_S)
            except Exception:
                log.exception("loop_monitor_failed")
            polled_at = now

    def _poll(self, now: float, late_s: float) -> None:
        """Check whether the loop is late, was late, or is on time."""
        self._late_s = max(self._late_s, late_s)
        is_late = now - self._beat_at - BEAT_S >= STALL_S and not self._gaps
        if self._gaps:
            self._end_stall()
        elif is_late:
            self._follow_stall(now)
        else:
            self._sample_on_time(now)

    def _sample_on_time(self, now: float) -> None:
        """Sample while the loop is on time. A suspension of the machine is reported."""
        sample = self._sample()
        suspended_s = sample.suspended_s(self._process_sample)
        if suspended_s >= STALL_S:
            self._report(self._observe(now - POLL_S, now, sample), over=True, stacks="", activity=("", ""))
        if now - self._machine_sample.at >= BASELINE_S:
            self._machine_sample = self._sample_machine()
        if not self._is_stored and now - self._dumped_at >= DUMP_INTERVAL_S:
            self._store()
        self._drain_stacks()  # drop stacks of a signal that fired because only this thread was late
        self._process_sample, self._late_s = sample, 0.0

    def _follow_stall(self, now: float) -> None:
        """Follow a stall in progress: the loop is late, and this thread runs."""
        began = self._beat_at
        self._read_signalled_stacks()
        self._states += _thread_state(self._loop_thread)
        if self._dumps == 0:
            self._activity, self._task = LAST.describe(), self._find_task()
        is_due = self._dumps < len(DUMP_AFTER_S) and now - began - BEAT_S >= DUMP_AFTER_S[self._dumps]
        if not is_due or now - self._dumped_at < DUMP_INTERVAL_S:
            return
        if self._dumps or not self._stack_text:
            faulthandler.dump_traceback(self._stacks, all_threads=True)
            self._stack_text = self._drain_stacks()
        self._dumps += 1
        self._dumped_at = now
        self._report(
            self._observe(began, now, self._sample()),
            over=False,
            stacks=self._stack_text,
            activity=(self._activity, self._task),
        )

    def _end_stall(self) -> None:
        """Report the stalls that have ended.

        Stacks that the signal wrote are used where this thread could not dump any.
        """
        sample = self._sample()
        while self._gaps:
            gap = self._gaps.popleft()
            self._read_signalled_stacks()
            activity = (self._activity, self._task) if self._activity else (LAST.describe(), "")
            observation = self._observe(gap.started_at, gap.ended_at, sample)
            self._report(observation, over=True, stacks=self._stack_text, activity=activity)
            self._dumps, self._stack_text, self._states, self._activity, self._task = 0, "", "", "", ""
            self._signalled_at = None
        self._process_sample, self._machine_sample, self._late_s = sample, self._sample_machine(), 0.0

    def _observe(self, began: float, ended: float, sample: ProcessSample) -> Observation:
        """Return the samples before and after a stall."""
        return Observation(
            began,
            ended,
            self._late_s,
            self._process_sample,
            sample,
            self._machine_sample,
            self._sample_machine(),
            self._states,
            self._signalled_at,
        )

    def _report(
        self, observation: Observation, *, over: bool, stacks: str, activity: tuple[str, str]
    ) -> None:
        """Log, store and count a stall."""
        doing, task = activity
        ended_s = time.monotonic() - observation.ended_at
        entry = make_stall_entry(
            observation,
            time.time_ns() // 1_000_000 - round(1_000 * ended_s),
            over=over,
            doing=doing,
            task=task,
            pid=os.getpid(),
            member=self._member,
            stacks=stacks,
        )
        self._history.put(entry)
        _log(entry, with_stacks=not over or self._dumps == 0)
        self._is_stored = False
        # The start of a stall is stored immediately: the process may be killed during it.
        if not over or time.monotonic() - self._dumped_at >= DUMP_INTERVAL_S:
            self._store()

    def _store(self) -> None:
        """Write the newest stalls to disk."""
        self._is_stored = True
        write_stalls(self._path, self._history.entries)

    def _read_signalled_stacks(self) -> None:
        """Read the stacks that the signal wrote during this stall, and when."""
        status = os.fstat(self._stacks)
        if status.st_size and not self._stack_text:
            self._signalled_at = time.monotonic() - (time.time_ns() - status.st_mtime_ns) / 1e9
            self._stack_text = self._drain_stacks()

    def _drain_stacks(self) -> str:
        """Return the dumped stacks and empty the file.

        If they are too long, the end is kept, because the event loop's thread comes last.
        """
        size = os.fstat(self._stacks).st_size
        if not size:
            return ""
        cut = max(size - MAX_STACK_BYTES, 0)
        text = os.pread(self._stacks, MAX_STACK_BYTES, cut).decode(errors="replace")
        os.ftruncate(self._stacks, 0)
        os.lseek(self._stacks, 0, os.SEEK_SET)
        return f"({cut} bytes are left out)\n{text}" if cut else text

    def _find_task(self) -> str:
        """Return name and coroutine of the task that runs on the loop; "" when a callback runs."""
        task = asyncio.current_task(self._loop)
        if task is None:
            return ""
        return f"{task.get_name()} ({getattr(task.get_coro(), '__qualname__', '')})"

    def _sample(self) -> ProcessSample:
        """Sample the process."""
        return ProcessSample(
            time.monotonic(),
            time.clock_gettime(time.CLOCK_BOOTTIME),
            time.process_time(),
            time.clock_gettime(self._loop_clock),
            resource.getrusage(resource.RUSAGE_SELF).ru_majflt,
        )

    def _sample_machine(self) -> MachineSample:
        """Sample the machine."""
        memory = _read_meminfo()
        return MachineSample(
            time.monotonic(),
            _cpu_wait_s(self._loop_thread),
            _pressure_s("cpu"),
            _pressure_s("io"),
            _pressure_s("memory"),
            memory.get("MemAvailable", 0),
            memory.get("Dirty", 0) + memory.get("Writeback", 0),
        )


def _log(entry: StallEntry, *, with_stacks: bool) -> None:
    """Log a stall."""
    text = CAUSES[StallCause(entry.cause)]
    excluded = ("stacks", "pid", "member", "over", "at")
    fields = {key: value for key, value in msgspec.to_builtins(entry).items() if key not in excluded}
    if with_stacks and entry.stacks:
        fields["stack"] = entry.stacks
    log.error(
        "event_loop_stalled" if entry.over else "event_loop_stalls", why=text.meaning, fix=text.fix, **fields
    )


def _thread_state(thread: int) -> str:
    """Return Linux's state letter of a thread of this process; "" if it cannot be read."""
    try:
        text = Path(f"/proc/self/task/{thread}/stat").read_text(errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].strip()[:1]


def _cpu_wait_s(thread: int) -> float:
    """Return how long a thread has waited for a CPU, seconds; 0 if it cannot be read."""
    try:
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _pressure_s(name: str) -> float:
    """Return how long some task has waited for a resource since the start of the machine, seconds.

    Returns 0 where Linux does not count it.
    """
    try:
        some = (_PRESSURE / name).read_text().splitlines()[0]
        return int(some.rpartition("total=")[2]) / 1e6
    except (OSError, ValueError, IndexError):
        return 0.0


def _read_meminfo() -> dict[str, int]:
    """Return the figures of /proc/meminfo in bytes; {} if they cannot be read."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return {
            name: int(value.split()[0]) * 1_024 for name, _, value in (one.partition(":") for one in lines)
        }
    except (OSError, ValueError, IndexError):
        return {}
