"""Segments as the journal holds them, their open files, and pins on what must stay."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import NamedTuple
from uuid import UUID

from broker_core.journal.index_sidecar import load_positions, load_sidecar
from broker_core.journal.pins import PinsByUser
from broker_core.journal.segment import SegmentInfo, index_path
from broker_core.journal.segment_index import SegmentIndex
from broker_core.journal.segment_reader import SegmentSource, check_source, open_source, scan_segment

MAX_OPEN_SOURCES = 64


@dataclass(slots=True, eq=False)
class Segment:
    """One segment: where its file is, and what is in it. A swap replaces the object; the index is shared."""

    path: Path
    archived: bool
    compressed: bool
    index: SegmentIndex
    sealed: bool
    _info: SegmentInfo | None = field(default=None, repr=False)
    """Kept once it can't change: a log of thousands is asked for it every second."""

    @property
    def first_sequence(self) -> int:
        return self.index.first_sequence

    def with_path(self) -> SegmentIndex:
        """The index with its places, from the sidecar or, should that be gone or damaged, by reading the segment.

        OSError when the segment's file can't be read; FileNotFoundError when a swap has just moved it.
        """
        if not self.index.has_entries:
            self.index.take_entries(self._read(load_positions))
        return self.index

    def load_index(self) -> SegmentIndex:
        """The index with everything that a sidecar says. Raises as `located`."""
        if self.index.is_complete:
            return self.index
        found = self._read(load_sidecar)
        found.holes = self.index.holes
        return found

    def _read(self, way: Callable[[Path, str, int], SegmentIndex | None]) -> SegmentIndex:
        instance, first = self.index.instance, self.index.first_sequence
        found = way(index_path(self.path), instance, first)
        if found is None or (found.end, found.header_crc) != (self.index.end, self.index.header_crc):
            return scan_segment(open_source(self.path), instance, first).index
        return found

    @property
    def nbytes(self) -> int:
        """Of its file, without what is preallocated."""
        return self.info().nbytes if self.compressed else self.index.end

    def info(self) -> SegmentInfo:
        """The segment as operators see it."""
        if self._info is not None:
            return self._info
        index = self.index
        state = "archived" if self.archived else "sealed" if self.sealed else "current"
        try:
            found = self.path.stat()
        except OSError:
            found = None  # a swap has just moved it
        size = found.st_size if self.compressed and found is not None else index.end
        made = SegmentInfo(
            self.path.name, self.path, index.first_sequence, index.last_sequence, index.first_at, index.last_at,
            size, state, self.compressed, index.records, found.st_mtime_ns if found is not None else 0,
        )  # fmt: skip
        if self.sealed:
            self._info = made
        return made


class _CachedFile(NamedTuple):
    """A segment's open file, as it was then."""

    source: SegmentSource
    segment: Segment
    written: tuple[int, int]


class OpenFileCache:
    """Open files for reading, the least recently used closed first. A reader keeps its own alive by holding it.

    A sealed segment's entries are in memory while its file is open, and no longer.
    """

    def __init__(self, log: UUID | None) -> None:
        self._log = log
        self._open: OrderedDict[Path, _CachedFile] = OrderedDict()
        self._lock = Lock()

    def get(self, segment: Segment) -> SegmentSource:
        """The segment's source. FileNotFoundError when a swap has just moved it: look the segment up again.

        JournalError other_log when another file stands in its place, or was written over it.
        """
        with self._lock:
            known = self._open.get(segment.path)
            if known is not None and segment.sealed and known.written != _written(known.source):
                # Sealed since it was opened, or somebody's copy was written over it: look whose it is.
                _let_go(self._open.pop(segment.path))
                known = None
            if known is None:
                known = self._open[segment.path] = self._opened(segment)
                if len(self._open) > MAX_OPEN_SOURCES:
                    _let_go(self._open.popitem(last=False)[1])
            else:
                self._open.move_to_end(segment.path)
            return known.source

    def _opened(self, segment: Segment) -> _CachedFile:
        source = open_source(segment.path)
        check_source(source, segment.index.instance, segment.first_sequence, self._log)
        return _CachedFile(source, segment, _written(source))

    def evict(self, path: Path) -> None:
        """Let go of a file that was removed or moved."""
        with self._lock:
            known = self._open.pop(path, None)
        if known is not None:
            _let_go(known)

    def clear(self) -> None:
        with self._lock:
            self._open.clear()


def _let_go(known: _CachedFile) -> None:
    if known.segment.sealed:
        known.segment.index.set_entries(None)


def _written(source: SegmentSource) -> tuple[int, int]:
    """By which it is seen that a file isn't what it was: its size, and when it was written last."""
    found = os.fstat(source.file.fd)
    return found.st_size, found.st_mtime_ns


PIN_KINDS = (
    "managed replay",
    "replay",
    "spool",
    "durable subscription",
    "paused subscription",
    "snapshot",
    "pipeline",
)


class Pin:
    """Holds everything from `sequence` on in the log until it is released.

    `owner` says for whom, and begins with one of PIN_KINDS: "replay of anna", "managed replay nightly". `holder` is the name that it
    counts for where what somebody holds is limited; "": nobody's.
    """

    __slots__ = ("_release", "holder", "owner", "sequence")

    def __init__(self, owner: str, sequence: int, release: Callable[[Pin], None], holder: str = "") -> None:
        self.owner = owner
        self.sequence = sequence
        self.holder = holder
        self._release = release

    @property
    def kind(self) -> str:
        """Of PIN_KINDS, by the owner's first words; "reader" for any other."""
        return next((kind for kind in PIN_KINDS if self.owner.startswith(kind)), "reader")

    def move(self, sequence: int) -> None:
        """Let go of what is before `sequence`; a pin never moves back."""
        if sequence > self.sequence:
            self.sequence = sequence

    def release(self) -> None:
        """Hold nothing any more. Releasing twice is harmless."""
        self._release(self)


class PinTable:
    """All pins of a journal."""

    def __init__(self) -> None:
        self._pins: set[Pin] = set()
        self._holdings = PinsByUser()
        self._lock = Lock()

    def add(self, sequence: int, owner: str, holder: str = "") -> Pin:
        pin = Pin(owner, sequence, self._release, holder)
        with self._lock:
            self._pins.add(pin)
            if holder:
                self._holdings.add(pin)
        return pin

    def _release(self, pin: Pin) -> None:
        with self._lock:
            self._pins.discard(pin)
            if pin.holder:
                self._holdings.remove(pin)

    def set_user_lookup(self, user_of: Callable[[str], str]) -> None:
        """Who knows whose the names are that pins are held for."""
        with self._lock:
            self._holdings.set_user_lookup(user_of)

    def set_user(self, holder: str, user: str) -> None:
        """A name is another user's from now on."""
        with self._lock:
            self._holdings.set_user(holder, user)

    def first_pinned_by(self, user: str) -> int | None:
        """The first record that is held for a user's names; None: none is."""
        with self._lock:
            return self._holdings.first_pinned_by(user)

    def all(self) -> list[Pin]:
        """Those not released, in no order."""
        with self._lock:
            return list(self._pins)

    def owners_before(self, sequence: int) -> list[str]:
        """Who needs records at or before `sequence`."""
        return sorted({pin.owner or "a reader" for pin in self.all() if pin.sequence <= sequence})
