"""Diverged clients in gaps of their recording: arrivals are linear there. Pure; times are ms.

So the backlog is linear too, and a window is computed for all these clients at once.

Backlog, memory and disk are exact. The test that no rule reacts has a margin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from broker_core.config.rule_terms import Signal
from pipeline.transforms.idle_clients import IdleUsages
from pipeline.transforms.recording import LEVELS
from pipeline.transforms.simulated_client import SimulatedClient
from pipeline.transforms.traces import STEP_MS, Ints

Floats = npt.NDArray[np.float64]
NEVER: Final = 2.0**62
MARGIN: Final = 2
"""Maximum deviation of a value from the line, in bytes, messages or ms."""
_MS: Final = 1_000_000
_ROW: Final = np.dtype(
    [(name, np.float64) for name in (
        "waiting", "matched", "moved",  # values on entry
        "at", "from_bytes", "slope",  # line of arrivals
        "room", "memory", "disk", "size",
        "most_memory", "most_messages", "most_disk", "most_bytes", "most_owed", "most_age", "deadline",
        "taken_from", "taken_to", "taken_at", "ms_a_byte",  # line on which the oldest waiting byte arrived
    )] + [("pool", np.int64)]
)  # fmt: skip


class RecordingGaps:
    """Clients in a gap, by index of their traces."""

    def __init__(self, traces: int, pools: Sequence[str]) -> None:
        self._rows = np.zeros(traces, _ROW)
        self._pools = {name: number for number, name in enumerate(pools)}
        self.sessions: dict[int, SimulatedClient] = {}

    def enter(self, session: SimulatedClient) -> bool:
        """Add a client as of its last step, if possible; return whether it was added.

        A client can't be added outside a gap, or if its rules need figures that aren't linear there.
        """
        trace, use, calm = session.trace, session.use, session.calm
        at, matched = trace.columns["at"], trace.columns["matched_bytes"]
        place = max(trace.sample_index(session.moved), 0)
        if (
            calm.rated
            or place + 1 >= len(at)
            or not trace.rests[place]
            or session.moved - at[place] <= STEP_MS
        ):
            return False
        # The oldest waiting byte arrived on the line from `came` to the next sample.
        taken = session.matched - session.waiting
        came = int(np.searchsorted(matched, taken, side="right")) - 1
        if not 0 <= came < len(at) - 1:
            return False
        limits = [NEVER if limit >= NEVER else float(limit) for limit in calm.levels]
        if use.is_offlined:
            limits[LEVELS[Signal.OUTBOUND_BYTES]] = limits[LEVELS[Signal.OUTBOUND_MESSAGES]] = NEVER
        blocked, deadline = int(trace.columns["blocked_since"][place]), NEVER
        if blocked:
            deadline = blocked + limits[LEVELS[Signal.WRITE_BLOCKED]]
        if use.is_offlined:
            deadline = min(deadline, use.offlined_at // _MS + float(calm.spool_age))
        memory, disk = session.factors
        self._rows[session.number] = (
            session.waiting,
            session.matched,
            session.moved,
            at[place],
            matched[place],
            (matched[place + 1] - matched[place]) / (at[place + 1] - at[place]),
            session.step_capacity,
            memory,
            disk,
            trace.size,
            *limits[:6],
            deadline,
            matched[came],
            matched[came + 1],
            at[came],
            (at[came + 1] - at[came]) / (matched[came + 1] - matched[came]),
            self._pools[use.pool_name],
        )
        self.sessions[session.number] = session
        return True

    def leave(self, number: int, moment: int) -> SimulatedClient:
        """Remove a client as of the step at `moment`, with its backlog at that time."""
        session, row = self.sessions.pop(number), self._rows[number]
        matched = int(_matched(row, moment))
        passed = (moment - session.moved) // STEP_MS
        session.waiting += matched - session.matched - passed * session.step_capacity
        session.moved, session.matched = moment, matched
        return session

    def advance_window(self, moments: Ints, active: Sequence[int]) -> tuple[list[int], list[IdleUsages]]:
        """Return the clients that must leave before a window, and the usage of the others in it."""
        left = {number for number in active if number in self.sessions}
        numbers = np.array([number for number in self.sessions if number not in left], np.int64)
        if not len(numbers):
            return sorted(left), []
        rows = self._rows[numbers]
        stirred = _stirred(rows, moments[1], moments[-1])
        left.update(numbers[stirred].tolist())
        numbers, rows = numbers[~stirred], rows[~stirred]
        column = {name: rows[name][:, None] for name in _ROW.names or ()}
        waits = _waits(column, moments[None, :])
        empty = (waits <= 0).any(axis=1)
        if empty.any():
            left.update(numbers[empty].tolist())
            numbers, waits, rows = numbers[~empty], waits[~empty], rows[~empty]
        if not len(numbers):
            return sorted(left), []
        nothing: Ints = np.zeros((len(numbers), len(moments)), np.int64)
        memory, disk = (
            np.floor(waits * rows[name][:, None]).astype(np.int64) if rows[name].any() else nothing
            for name in ("memory", "disk")
        )
        return sorted(left), [IdleUsages(numbers, rows["pool"], (memory, disk))]


def _matched(row: Any, moments: Any) -> Any:
    """Return the bytes that arrived by a time, equal to `np.interp`."""
    return np.floor(row["slope"] * (moments - row["at"]) + row["from_bytes"])


def _waits(row: Any, moments: Any) -> Any:
    passed = (moments - row["moved"]) / STEP_MS
    return row["waiting"] + (_matched(row, moments) - row["matched"]) - passed * row["room"]


def _stirred(rows: Any, first: int, last: int) -> npt.NDArray[np.bool_]:
    """Return for which clients a rule may react at the first step, the last, or between."""
    found = last + STEP_MS + MARGIN > rows["deadline"]
    for moment in (first, last):
        waits = _waits(rows, moment) + MARGIN
        taken = _matched(rows, moment) - waits
        since = rows["taken_at"] + (taken - rows["taken_from"]) * rows["ms_a_byte"]
        found |= waits * rows["memory"] + MARGIN > rows["most_memory"]
        found |= waits * rows["disk"] + MARGIN > rows["most_disk"]
        found |= waits + MARGIN > rows["most_bytes"]
        found |= waits / rows["size"] + MARGIN > np.minimum(rows["most_messages"], rows["most_owed"])
        found |= moment + STEP_MS + MARGIN - since > rows["most_age"]
        found |= (taken + 2 * MARGIN > rows["taken_to"]) | (taken < rows["taken_from"])
    return np.asarray(found, np.bool_)
