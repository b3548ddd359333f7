"""Stalls of a broker's event loop. During a stall the broker serves no client."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from broker_core.documents.base import Document, Moment


class StallCause(StrEnum):
    """Cause of a stall of the event loop, as far as it can be determined from outside."""

    LOOP_BUSY = "loop_busy"
    LOOP_BLOCKED = "loop_blocked"
    DISK_WAIT = "disk_wait"
    INTERPRETER_LOCKED = "interpreter_held"
    PAGE_FAULTS = "page_faults"
    CPU_STARVED = "cpu_starved"
    PROCESS_STOPPED = "process_stopped"
    MACHINE_SUSPENDED = "machine_suspended"


class CauseText(NamedTuple):
    """Explanation of a stall's cause, and advice for operators."""

    meaning: str
    fix: str


_REPORT: Final = "This is a defect of the broker: report it with the stacks."
CAUSES: Final[dict[StallCause, CauseText]] = {
    StallCause.LOOP_BUSY: CauseText("The event loop used the CPU all the time.", _REPORT),
    StallCause.LOOP_BLOCKED: CauseText("The event loop waited in a call.", _REPORT),
    StallCause.DISK_WAIT: CauseText(
        "The event loop waited for a disk.", "Check the disks of the journal, the spools and the log."
    ),
    StallCause.INTERPRETER_LOCKED: CauseText("Another thread blocked the event loop.", _REPORT),
    StallCause.PAGE_FAULTS: CauseText(
        "The process waited for memory pages from a disk.",
        "Add memory to the machine, or lower MessageMemoryLimit; switch off swap for the broker.",
    ),
    StallCause.CPU_STARVED: CauseText(
        "The process was ready to run and got no CPU.",
        "Check other programs on the machine, and the CPU limit of its control group.",
    ),
    StallCause.PROCESS_STOPPED: CauseText(
        "The whole process was stopped, with all threads.",
        "Check for SIGSTOP, a debugger, a frozen control group, or a paused virtual machine.",
    ),
    StallCause.MACHINE_SUSPENDED: CauseText(
        "The machine was suspended.", "Disable suspend on machines that run a broker."
    ),
}


class StallEntry(Document, frozen=True, kw_only=True):
    """Stall of an event loop: when, how long, why, and what the loop was doing."""

    at: Moment
    """Time at which the event loop last ran before the stall."""
    lasted_ms: Annotated[int, Meta(description="Duration so far, while the stall lasts.")]
    over: Annotated[bool, Meta(description="False: the stall lasts, or the process ended during it.")]
    cause: StallCause
    doing: Annotated[str, Meta(description="The last command, batch and periodic work; the newest first.")]
    task: Annotated[str, Meta(description="The asyncio task that ran; empty: a callback of the loop.")] = ""
    pid: int = 0
    member: Annotated[
        str, Meta(description="Name of the member of a group; empty for a standalone broker.")
    ] = ""
    cpu_ms: Annotated[int, Meta(description="CPU time of the process during the stall.")] = 0
    loop_cpu_ms: Annotated[int, Meta(description="CPU time of the event loop's thread during the stall.")] = 0
    cpu_wait_ms: Annotated[
        int, Meta(description="Time for which the event loop's thread was ready to run and had no CPU.")
    ] = 0
    major_faults: Annotated[int, Meta(description="Memory pages read from a disk.")] = 0
    thread_states: Annotated[
        str,
        Meta(description="Observed states of the event loop's thread, by Linux's letters: R, S, D, T."),
    ] = ""
    pressure: Annotated[
        dict[str, float],
        Meta(description="Percent of the time in which tasks of the machine waited: `cpu`, `io`, `memory`."),
    ] = {}
    available_bytes: Annotated[int, Meta(description="Memory that was available on the machine.")] = 0
    dirty_bytes: Annotated[int, Meta(description="Memory waiting to be written to disks.")] = 0
    stacks: Annotated[
        str, Meta(description="Stacks of all threads; empty in a status, and if none could be recorded.")
    ] = ""


class StallTotals(Document, frozen=True, kw_only=True):
    """Number and duration of stalls since the start.

    `last` has no stacks, and not what the loop was doing, which names a client. The request `stalls` returns
    them.
    """

    count: Annotated[dict[str, int], Meta(description="By cause.")] = {}
    lasted_ms: Annotated[dict[str, int], Meta(description="By cause.")] = {}
    last: StallEntry | None = None


class Stalls(Document, frozen=True, kw_only=True):
    """Newest stalls, newest last, including those of earlier processes."""

    stalls: list[StallEntry]
