"""Causes of event-loop stalls, found from samples of the process and the machine. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

from msgspec import structs

from broker_core.documents.stalls import StallCause, StallEntry, StallTotals

STALL_S: Final = 1.0
"""An event loop that runs at least this much later than scheduled has stalled."""
MAX_STALLS: Final = 20
"""Maximum stalls stored."""
MAX_STACK_BYTES: Final = 16 * 1024
"""Maximum bytes of stacks stored per stall."""
FAULTS_PER_S: Final = 50.0
"""Major page faults per second that count as the cause: a disk needs some milliseconds for each."""
IN_TIME_SHARE: Final = 0.2
"""Minimum remaining share of a stall for its signal to count as handled in time."""
MAIN_SHARE: Final = 0.5
"""Minimum share of the time for something to be the cause."""


class ProcessSample(NamedTuple):
    """Counters of the process, cheap to read. Seconds, except for the faults."""

    at: float
    """Monotonic clock, which stops while the machine is suspended."""
    boot_at: float
    """Monotonic clock that continues while the machine is suspended."""
    cpu_s: float = 0.0
    loop_cpu_s: float = 0.0
    major_faults: int = 0

    def suspended_s(self, before: ProcessSample) -> float:
        """Return how long the machine was suspended since `before`."""
        return (self.boot_at - before.boot_at) - (self.at - before.at)


class MachineSample(NamedTuple):
    """Linux counters of the event loop's thread and of the machine, read rarely.

    Seconds, except for bytes.
    """

    at: float
    cpu_wait_s: float = 0.0
    """Time for which the thread was ready to run and had no CPU."""
    cpu_s: float = 0.0
    """Time for which some task of the machine waited for a CPU (/proc/pressure)."""
    io_s: float = 0.0
    """Time for which some task of the machine waited for I/O (/proc/pressure)."""
    memory_s: float = 0.0
    """Time for which some task of the machine waited for memory (/proc/pressure)."""
    available_bytes: int = 0
    dirty_bytes: int = 0


class Observation(NamedTuple):
    """Samples before and after a stall. `late_s`: delay of the monitoring thread itself."""

    started_at: float
    ended_at: float
    late_s: float
    process_before: ProcessSample
    process_after: ProcessSample
    machine_before: MachineSample
    machine_after: MachineSample
    states: str = ""
    signalled_at: float | None = None
    """When the process handled a timer signal that fired during the stall; None if there was none."""

    @property
    def lasted_s(self) -> float:
        """Duration of the stall."""
        return max(self.ended_at - self.started_at, 1e-3)

    @property
    def observed_s(self) -> float:
        """Time between the two samples of the process."""
        return max(self.process_after.at - self.process_before.at, self.lasted_s)

    def machine_share(self, name: str) -> float:
        """Return by how much a counter grew between the machine samples, as a share of the time: 0 to 1."""
        grown: float = getattr(self.machine_after, name) - getattr(self.machine_before, name)
        return min(max(grown / max(self.machine_after.at - self.machine_before.at, 1e-3), 0.0), 1.0)


def find_stall_cause(observation: Observation) -> StallCause:
    """Return the cause of a stall.

    If the monitoring thread was late too, more than the event loop was stopped.
    """
    if observation.process_after.suspended_s(observation.process_before) >= STALL_S:
        return StallCause.MACHINE_SUSPENDED
    process = (observation.process_after.cpu_s - observation.process_before.cpu_s) / observation.observed_s
    loop = (
        observation.process_after.loop_cpu_s - observation.process_before.loop_cpu_s
    ) / observation.observed_s
    faults = (
        observation.process_after.major_faults - observation.process_before.major_faults
    ) / observation.observed_s
    cpu_wait = observation.machine_share("cpu_wait_s")
    if loop + cpu_wait >= MAIN_SHARE:
        return StallCause.LOOP_BUSY if loop >= cpu_wait else StallCause.CPU_STARVED
    if faults >= FAULTS_PER_S or (faults > 0 and observation.machine_share("memory_s") >= MAIN_SHARE):
        return StallCause.PAGE_FAULTS
    if "T" in observation.states or "t" in observation.states:
        return StallCause.PROCESS_STOPPED
    if observation.late_s >= min(STALL_S, observation.lasted_s * MAIN_SHARE):
        is_interpreter_locked = process >= MAIN_SHARE or _is_signalled_in_time(observation)
        return StallCause.INTERPRETER_LOCKED if is_interpreter_locked else StallCause.PROCESS_STOPPED
    return StallCause.DISK_WAIT if _is_mostly(observation.states, "D") else StallCause.LOOP_BLOCKED


def _is_signalled_in_time(observation: Observation) -> bool:
    """Return whether the process handled the signal well before the end of the stall.

    A stopped process handles it only when it continues.
    """
    at = observation.signalled_at
    return at is not None and observation.ended_at - at >= IN_TIME_SHARE * observation.lasted_s


def _is_mostly(states: str, state: str) -> bool:
    """Return whether most of the thread states are `state`."""
    return 2 * states.count(state) > len(states)


def make_stall_entry(
    observation: Observation,
    wall_ms: int,
    *,
    over: bool,
    doing: str,
    task: str,
    pid: int,
    member: str,
    stacks: str,
) -> StallEntry:
    """Return the report of a stall.

    Args:
        observation: Samples before and after.
        wall_ms: Time at its end, ms UTC.
        over: Whether it has ended.
        doing: Work that the event loop was doing.
        task: Task that was running.
        pid: Process id.
        member: Name of this member of a group.
        stacks: Stacks of all threads; only the end is kept if they are too long.
    """
    lasted = max(observation.lasted_s, observation.process_after.suspended_s(observation.process_before))
    return StallEntry(
        at=wall_ms - round(1_000 * lasted),
        lasted_ms=round(1_000 * lasted),
        over=over,
        cause=find_stall_cause(observation),
        doing=doing,
        task=task,
        pid=pid,
        member=member,
        cpu_ms=round(1_000 * (observation.process_after.cpu_s - observation.process_before.cpu_s)),
        loop_cpu_ms=round(
            1_000 * (observation.process_after.loop_cpu_s - observation.process_before.loop_cpu_s)
        ),
        cpu_wait_ms=round(
            1_000 * (observation.machine_after.cpu_wait_s - observation.machine_before.cpu_wait_s)
        ),
        major_faults=observation.process_after.major_faults - observation.process_before.major_faults,
        thread_states="".join(sorted(set(observation.states))),
        pressure={
            name: round(100 * observation.machine_share(f"{name}_s"), 1) for name in ("cpu", "io", "memory")
        },
        available_bytes=observation.machine_after.available_bytes,
        dirty_bytes=observation.machine_after.dirty_bytes,
        stacks=stacks[-MAX_STACK_BYTES:],
    )


class StallHistory:
    """Newest stalls, and totals since the start.

    Written by one thread. Readers of other threads always see complete lists.
    """

    def __init__(self) -> None:
        self.entries: tuple[StallEntry, ...] = ()
        self.totals = StallTotals()
        self._count: Counter[str] = Counter()
        self._lasted_ms: Counter[str] = Counter()

    def load(self, earlier: list[StallEntry]) -> None:
        """Load the stalls of earlier processes. They are not counted in the totals."""
        self.entries = tuple(earlier[-MAX_STALLS:])

    def put(self, entry: StallEntry) -> None:
        """Add a stall, or replace the newest one if that was still in progress."""
        newest = self.entries[-1] if self.entries else None
        is_same = newest is not None and not newest.over and newest.pid == entry.pid
        earlier = self.entries[:-1] if is_same else self.entries
        self.entries = (*earlier, entry)[-MAX_STALLS:]
        if entry.over:
            self._count[entry.cause] += 1
            self._lasted_ms[entry.cause] += entry.lasted_ms
        self.totals = StallTotals(
            count=dict(self._count),
            lasted_ms=dict(self._lasted_ms),
            last=structs.replace(entry, stacks="", doing="", task=""),
        )
