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
NO_LIMIT: Final = 2.0**62
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

    def add(self, session: SimulatedClient) -> bool:
        """Add a client as of its last step, if possible; return whether it was added.

        A client can't be added outside a gap, or if its rules need figures that aren't linear there.
        """
        trace, use, limits_of = session.trace, session.use, session.quiet_limits
        at, matched = trace.columns["at"], trace.columns["matched_bytes"]
        sample = max(trace.sample_index(session.moved_at), 0)
        if (
            limits_of.uses_rates
            or sample + 1 >= len(at)
            or not trace.is_idle[sample]
            or session.moved_at - at[sample] <= STEP_MS
        ):
            return False
        # The oldest waiting byte arrived on the line from `arrival` to the next sample.
        taken_bytes = session.matched - session.waiting
        arrival = int(np.searchsorted(matched, taken_bytes, side="right")) - 1
        if not 0 <= arrival < len(at) - 1:
            return False
        limits = [NO_LIMIT if limit >= NO_LIMIT else float(limit) for limit in limits_of.levels]
        if use.is_offlined:
            limits[LEVELS[Signal.OUTBOUND_BYTES]] = limits[LEVELS[Signal.OUTBOUND_MESSAGES]] = NO_LIMIT
        blocked, deadline = int(trace.columns["blocked_since"][sample]), NO_LIMIT
        if blocked:
            deadline = blocked + limits[LEVELS[Signal.WRITE_BLOCKED]]
        if use.is_offlined:
            deadline = min(deadline, use.offlined_at // _MS + float(limits_of.spool_age))
        memory, disk = session.factors
        self._rows[session.number] = (
            session.waiting,
            session.matched,
            session.moved_at,
            at[sample],
            matched[sample],
            (matched[sample + 1] - matched[sample]) / (at[sample + 1] - at[sample]),
            session.step_capacity,
            memory,
            disk,
            trace.size,
            *limits[:6],
            deadline,
            matched[arrival],
            matched[arrival + 1],
            at[arrival],
            (at[arrival + 1] - at[arrival]) / (matched[arrival + 1] - matched[arrival]),
            self._pools[use.pool_name],
        )
        self.sessions[session.number] = session
        return True

    def remove(self, number: int, moment: int) -> SimulatedClient:
        """Remove a client as of the step at `moment`, with its backlog at that time."""
        session, row = self.sessions.pop(number), self._rows[number]
        matched = int(_matched_at(row, moment))
        steps = (moment - session.moved_at) // STEP_MS
        session.waiting += matched - session.matched - steps * session.step_capacity
        session.moved_at, session.matched = moment, matched
        return session

    def advance_window(self, moments: Ints, active: Sequence[int]) -> tuple[list[int], list[IdleUsages]]:
        """Return the clients that must leave before a window, and the usage of the others in it."""
        leaving = {number for number in active if number in self.sessions}
        numbers = np.array([number for number in self.sessions if number not in leaving], np.int64)
        if not len(numbers):
            return sorted(leaving), []
        rows = self._rows[numbers]
        reacting = _find_reacting(rows, moments[1], moments[-1])
        leaving.update(numbers[reacting].tolist())
        numbers, rows = numbers[~reacting], rows[~reacting]
        column = {name: rows[name][:, None] for name in _ROW.names or ()}
        backlog = _backlog_at(column, moments[None, :])
        empty = (backlog <= 0).any(axis=1)
        if empty.any():
            leaving.update(numbers[empty].tolist())
            numbers, backlog, rows = numbers[~empty], backlog[~empty], rows[~empty]
        if not len(numbers):
            return sorted(leaving), []
        zeros: Ints = np.zeros((len(numbers), len(moments)), np.int64)
        memory, disk = (
            np.floor(backlog * rows[name][:, None]).astype(np.int64) if rows[name].any() else zeros
            for name in ("memory", "disk")
        )
        return sorted(leaving), [IdleUsages(numbers, rows["pool"], (memory, disk))]


def _matched_at(row: Any, moments: Any) -> Any:
    """Return the bytes that arrived by a time, equal to `np.interp`."""
    return np.floor(row["slope"] * (moments - row["at"]) + row["from_bytes"])


def _backlog_at(row: Any, moments: Any) -> Any:
    steps = (moments - row["moved"]) / STEP_MS
    return row["waiting"] + (_matched_at(row, moments) - row["matched"]) - steps * row["room"]


def _find_reacting(rows: Any, first: int, last: int) -> npt.NDArray[np.bool_]:
    """Return for which clients a rule may react at the first step, the last, or between."""
    reacting = last + STEP_MS + MARGIN > rows["deadline"]
    for moment in (first, last):
        backlog = _backlog_at(rows, moment) + MARGIN
        taken_bytes = _matched_at(rows, moment) - backlog
        oldest_at = rows["taken_at"] + (taken_bytes - rows["taken_from"]) * rows["ms_a_byte"]
        reacting |= backlog * rows["memory"] + MARGIN > rows["most_memory"]
        reacting |= backlog * rows["disk"] + MARGIN > rows["most_disk"]
        reacting |= backlog + MARGIN > rows["most_bytes"]
        reacting |= backlog / rows["size"] + MARGIN > np.minimum(rows["most_messages"], rows["most_owed"])
        reacting |= moment + STEP_MS + MARGIN - oldest_at > rows["most_age"]
        reacting |= (taken_bytes + 2 * MARGIN > rows["taken_to"]) | (taken_bytes < rows["taken_from"])
    return np.asarray(reacting, np.bool_)
