"""A recording in windows of 64 steps, with the state of each client at each step; made once for all policies.

Pure.

A window also has the maximum of each figure that rules use. From it `backtest` finds the clients whose
rules wouldn't react in the window. Times are ms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from broker_core.config.rule_terms import Signal
from pipeline.transforms.traces import STEP_MS, ClientTrace, Ints, TraceSample

STEPS: Final = 64
"""Steps of a window."""
WINDOW_MS: Final = STEPS * STEP_MS
WINDOWS_AT_ONCE: Final = 4
"""Windows read together from a trace, which takes hardly longer than one."""
NEAR_MS: Final = 2_500
"""Distance from an offlined time within which it may have effects."""
LEVELS: Final = {
    Signal.OUTBOUND_BYTES: 0,
    Signal.OUTBOUND_MESSAGES: 1,
    Signal.SPOOL_BYTES: 2,
    Signal.BACKLOG_BYTES: 3,
    Signal.BACKLOG_MESSAGES: 4,
    Signal.OLDEST_AGE: 5,
    Signal.WRITE_BLOCKED: 6,
}
"""Row of each signal in `levels`."""
OUTBOX_LEVELS: Final = 2
"""Number of first rows that don't apply to an offlined client."""


class WindowCourse(NamedTuple):
    """Figures of a client in a window. Arrays have a value for the step before it, then one for each step."""

    memory: Ints
    disk: Ints
    levels: Ints
    """Greatest value of each signal of LEVELS until the next step; ages are those at the next step."""
    most: list[int]
    """Maximum of each row."""


def course_of(memory: Ints, disk: Ints, levels: Ints) -> WindowCourse:
    """Return a course with the maxima of its levels."""
    return WindowCourse(memory, disk, levels, levels.max(axis=1).tolist())


def levels_of(moments: Ints, amounts: Sequence[Ints], since: Ints, blocked: Ints) -> Ints:
    """Return the rows of LEVELS at these moments.

    `amounts`: rows that aren't ages; `since`, `blocked`: start times of the ages, 0 for none.
    """
    ages = [np.where(one > 0, np.maximum(moments - one, 0) + STEP_MS, 0) for one in (since, blocked)]
    return np.stack([*amounts, *ages])


@dataclass(slots=True)
class _WindowSlice:
    """Some windows of a trace, from window `first` on."""

    first: int
    figures: list[Ints]
    """Columns of figures, in the order of `TraceSample`."""
    levels: Ints
    matched: Ints
    blocked: Ints
    """Value of the sample before, ms."""


class TraceWindow:
    """A trace in one window, as recorded."""

    def __init__(self, trace: ClientTrace, read: _WindowSlice, window: RecordingWindow) -> None:
        start = (window.number - read.first) * STEPS + window.skipped
        of = slice(start, start + window.steps + 1)
        self._figures = [column[of] for column in read.figures]
        self.matched: Ints = read.matched[of]
        self.blocked: Ints = read.blocked[of]
        self.course = course_of(self._figures[_MEMORY], self._figures[_DISK], read.levels[:, of])
        self.points = [at for at in trace.points if window.before <= at <= window.last]
        self._trace = trace
        self.eventful = (
            trace.started_at > window.before
            or max(trace.ended_at, trace.final) < window.last
            or bool(self.points)
        )
        """Whether the trace begins, ends or has a decision in the window."""
        self._owed = -1
        near = [
            (start, end)
            for start, end in trace.offlined
            if start - NEAR_MS <= window.last and end + NEAR_MS >= window.before
        ]
        self.offlined = bool(near)
        """Whether it was offlined in or near the window."""
        self.all_offlined = any(
            start <= window.before - NEAR_MS and window.last + NEAR_MS < end for start, end in near
        )

    @cached_property
    def rows(self) -> list[TraceSample]:
        """Samples at each moment."""
        return list(map(TraceSample, *(column.tolist() for column in self._figures)))

    @cached_property
    def bytes_received(self) -> list[int]:
        """Bytes of bodies from each step to the next."""
        found: list[int] = np.diff(self.matched).tolist()
        return found

    @cached_property
    def max_held(self) -> tuple[int, int]:
        """Maximum bytes of memory and disk, also at times of decisions."""
        between = self._trace.samples_at(np.array(self.points, np.int64)) if self.points else []
        memory, disk = int(self.course.memory.max()), int(self.course.disk.max())
        return max([memory, *(one.memory for one in between)]), max([disk, *(one.disk for one in between)])

    @cached_property
    def _most_owed(self) -> int:
        between = self._trace.samples_at(np.array(self.points, np.int64)) if self.points else []
        return max([0, *(one.owed_bytes for one in between)])

    def max_backlog(self, room: int) -> int:
        """Return the maximum backlog in bytes, if the client diverges anywhere in the window.

        `room`: bytes that it takes in a step.
        """
        if self._owed < 0:
            recorded = self.course.levels[_OWED].tolist()
            most = reached = recorded[0]
            for came, owed in zip(self.bytes_received, recorded[1:], strict=True):
                reached = max(reached + came - room, owed)
                most = max(most, reached)
            self._owed = max(most, self._most_owed)
        return self._owed


_MEMORY, _DISK = TraceSample._fields.index("memory"), TraceSample._fields.index("disk")
_OWED: Final = LEVELS[Signal.BACKLOG_BYTES]


class RecordingWindow:
    """A window of all traces, or the rest of it after some steps."""

    def __init__(self, recording: Recording, number: int, skipped: int = 0) -> None:
        self._recording = recording
        self.number = number
        self.skipped, self.steps = skipped, STEPS - skipped
        start = recording.origin + number * WINDOW_MS + skipped * STEP_MS
        self.before = start - STEP_MS
        self.last = start + (self.steps - 1) * STEP_MS
        self.moments: Ints = self.before + STEP_MS * np.arange(self.steps + 1)
        self.active: Sequence[int] = recording.active.get(number, ())
        """Traces with anything but an empty backlog."""
        self.begins: Sequence[int] = recording.begins.get(number, ())
        """Traces that begin, in order."""
        self.points: Sequence[tuple[int, int]] = [
            point for point in recording.points.get(number, ()) if not skipped or point[0] >= self.before
        ]
        """Times of decisions, each with the trace."""
        self._stretches: dict[int, TraceWindow] = {}

    def after(self, step: int) -> RecordingWindow:
        """Return the rest of the window after a step."""
        return RecordingWindow(self._recording, self.number, self.skipped + step)

    def of(self, trace: int) -> TraceWindow:
        """Return a trace in the window, read on first use."""
        found = self._stretches.get(trace)
        if found is None:
            found = self._stretches[trace] = self._recording.trace_window(trace, self)
        return found


class Recording:
    """Traces in the order of their beginning, with an index of the windows."""

    def __init__(self, traces: Iterable[ClientTrace]) -> None:
        self.traces = sorted(traces, key=lambda one: (one.started_at, one.who))
        self.origin = self.traces[0].started_at if self.traces else 0
        active: dict[int, list[int]] = defaultdict(list)
        begins: dict[int, list[int]] = defaultdict(list)
        points: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, trace in enumerate(self.traces):
            for window in self._active(trace):
                active[window].append(number)
            begins[self._reached(trace.started_at)].append(number)
            for at in sorted(set(trace.points)):
                points[self._reached(at)].append((at, number))
        self.active, self.begins = dict(active), dict(begins)
        self.points = {window: sorted(found) for window, found in points.items()}
        self._read: dict[int, _WindowSlice] = {}

    def windows(self, busy: Callable[[], bool]) -> Iterator[RecordingWindow]:
        """Yield windows with anything recorded, and others only while `busy` returns true."""
        known = sorted({*self.active, *self.begins, *self.points}, reverse=True)
        number = known[-1] if known else 0
        while known or busy():
            if known and not busy():
                number = known[-1]
            if known and known[-1] == number:
                known.pop()
            yield RecordingWindow(self, number)
            number += 1

    def trace_window(self, number: int, window: RecordingWindow) -> TraceWindow:
        """Return a trace in a window.

        Several windows of a trace are read together, and dropped at a later one.
        """
        trace, read = self.traces[number], self._read.get(number)
        if read is None or not read.first <= window.number < read.first + WINDOWS_AT_ONCE:
            read = self._read[number] = _read(trace, window)
        return TraceWindow(trace, read, window)

    def _reached(self, at: int) -> int:
        """Return the window of the first step at or after a time."""
        return max(-((self.origin - at) // STEP_MS), 0) // STEPS

    def _active(self, trace: ClientTrace) -> list[int]:
        at, rests = trace.columns["at"], trace.rests
        until = np.append(at[1:], at[-1:])
        until = np.where(rests, np.minimum(at + STEP_MS, until), until) + STEP_MS
        first = (at - self.origin) // WINDOW_MS
        spans = set(zip(first.tolist(), ((until - self.origin) // WINDOW_MS).tolist(), strict=True))
        told = [*((at - STEP_MS, at + STEP_MS) for at in (*trace.points, max(trace.ended_at, trace.final)))]
        told += [(start - NEAR_MS, end + NEAR_MS) for start, end in trace.offlined]
        spans |= {((a - self.origin) // WINDOW_MS, (b - self.origin) // WINDOW_MS) for a, b in told}
        return sorted({window for a, b in spans for window in range(max(a, 0), b + 1)})


def _read(trace: ClientTrace, window: RecordingWindow) -> _WindowSlice:
    begins = window.before - window.skipped * STEP_MS
    moments = begins + STEP_MS * np.arange(STEPS * WINDOWS_AT_ONCE + 1)
    figures = trace.columns_at(moments)
    of = dict(zip(TraceSample._fields, figures, strict=True))
    oldest, unacked = of["oldest_at"] // _MS, of["unacked_at"] // _MS
    since = np.where((oldest > 0) & (unacked > 0), np.minimum(oldest, unacked), np.maximum(oldest, unacked))
    amounts = [of[name] for name in ("memory", "messages", "disk", "owed_bytes", "owed_messages")]
    at = trace.columns["at"]
    place = np.maximum(np.searchsorted(at, moments, side="right") - 1, 0)
    return _WindowSlice(
        window.number,
        figures,
        levels_of(moments, amounts, since, of["blocked_since"] // _MS),
        np.interp(moments, at, trace.columns["matched_bytes"]).astype(np.int64),
        trace.columns["blocked_since"][place],
    )


_MS: Final = 1_000_000
