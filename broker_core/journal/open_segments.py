"""Segments in memory, their open files, and the pins that protect records from removal."""

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
"""Maximum number of open files in the cache."""


@dataclass(slots=True, eq=False)
class Segment:
    """Segment of the log: its file and its index. A swap replaces this object; both share the index."""

    path: Path
    archived: bool
    compressed: bool
    index: SegmentIndex
    sealed: bool
    """Whether it is complete and cut to its content; actions apply only to sealed segments."""
    _info: SegmentInfo | None = field(default=None, repr=False)
    """Cached once it can't change, because a log with thousands of segments is asked every second."""

    @property
    def first_sequence(self) -> int:
        return self.index.first_sequence

    def with_path(self) -> SegmentIndex:
        """Return the index with its entries, loaded from the sidecar if they aren't in memory.

        A missing or damaged sidecar makes it scan the segment. Raises OSError when the segment can't be read;
        FileNotFoundError when a swap has just moved it.
        """
        if not self.index.has_entries:
            self.index.copy_entries(self._read(load_positions))
        return self.index

    def load_index(self) -> SegmentIndex:
        """Return the index with everything that the sidecar stores. Raises as `with_path` does."""
        if self.index.is_complete:
            return self.index
        found = self._read(load_sidecar)
        found.holes = self.index.holes
        return found

    def _read(self, load: Callable[[Path, str, int], SegmentIndex | None]) -> SegmentIndex:
        """Load the index with `load` from the sidecar; scan the segment if that is missing or wrong."""
        instance, first = self.index.instance, self.index.first_sequence
        found = load(index_path(self.path), instance, first)
        if found is None or (found.end, found.header_crc) != (self.index.end, self.index.header_crc):
            return scan_segment(open_source(self.path), instance, first).index
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of the segment's file, without the preallocated part."""
        return self.info().nbytes if self.compressed else self.index.end

    def info(self) -> SegmentInfo:
        """Return the segment's description for operators."""
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
            self.path.name,
            self.path,
            index.first_sequence,
            index.last_sequence,
            index.first_at,
            index.last_at,
            size,
            state,
            self.compressed,
            index.records,
            found.st_mtime_ns if found is not None else 0,
        )
        if self.sealed:
            self._info = made
        return made


class _CachedFile(NamedTuple):
    """Open file of a segment, with its size and modification time when it was opened."""

    source: SegmentSource
    segment: Segment
    written: tuple[int, int]


class OpenFileCache:
    """Cache of open files for reading; the least recently used is dropped first.

    A reader's reference keeps its file open. The entries of a sealed segment's index are in memory only while
    the cache has its file.
    """

    def __init__(self, log: UUID | None) -> None:
        self._log = log
        self._open: OrderedDict[Path, _CachedFile] = OrderedDict()
        self._lock = Lock()

    def get(self, segment: Segment) -> SegmentSource:
        """Return the open file of a segment.

        Raises FileNotFoundError when a swap has just moved it: get the segment again and retry. Raises
        JournalError other_log when another log's file was put in its place or written over it.
        """
        with self._lock:
            known = self._open.get(segment.path)
            if known is not None and segment.sealed and known.written != _written(known.source):
                # It was sealed since it was opened, or another file was written over it: check its header
                # again.
                _let_go(self._open.pop(segment.path))
                known = None
            if known is None:
                known = self._open[segment.path] = self._open_file(segment)
                if len(self._open) > MAX_OPEN_SOURCES:
                    _let_go(self._open.popitem(last=False)[1])
            else:
                self._open.move_to_end(segment.path)
            return known.source

    def _open_file(self, segment: Segment) -> _CachedFile:
        source = open_source(segment.path)
        check_source(source, segment.index.instance, segment.first_sequence, self._log)
        return _CachedFile(source, segment, _written(source))

    def evict(self, path: Path) -> None:
        """Drop a file that was removed or moved."""
        with self._lock:
            known = self._open.pop(path, None)
        if known is not None:
            _let_go(known)

    def clear(self) -> None:
        with self._lock:
            self._open.clear()


def _let_go(known: _CachedFile) -> None:
    """Drop the index entries of a sealed segment whose file was closed."""
    if known.segment.sealed:
        known.segment.index.set_entries(None)


def _written(source: SegmentSource) -> tuple[int, int]:
    """Return size and modification time, which reveal that a file has changed."""
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
"""Types of pins; the owner of a pin begins with its type."""


class Pin:
    """Protection of the log from `sequence` on, until it is released.

    `owner` describes the reason to operators and begins with one of PIN_KINDS: "replay of anna", "managed
    replay nightly". `holder` is the client name whose limit the pinned bytes count to; "": none.
    """

    __slots__ = ("_release", "holder", "owner", "sequence")

    def __init__(self, owner: str, sequence: int, release: Callable[[Pin], None], holder: str = "") -> None:
        self.owner = owner
        self.sequence = sequence
        self.holder = holder
        self._release = release

    @property
    def kind(self) -> str:
        """Type of the pin: the one of PIN_KINDS that `owner` begins with, else "reader"."""
        return next((kind for kind in PIN_KINDS if self.owner.startswith(kind)), "reader")

    def move(self, sequence: int) -> None:
        """Move the pin forward to `sequence`. A smaller sequence has no effect."""
        if sequence > self.sequence:
            self.sequence = sequence

    def release(self) -> None:
        """Remove the pin. A second call has no effect."""
        self._release(self)


class PinTable:
    """Pins of one journal. Thread-safe."""

    def __init__(self) -> None:
        self._pins: set[Pin] = set()
        self._holdings = PinsByUser()
        self._lock = Lock()

    def add(self, sequence: int, owner: str, holder: str = "") -> Pin:
        """Add a pin; see Pin for the arguments."""
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
        """Set the function that returns the user of a client name."""
        with self._lock:
            self._holdings.set_user_lookup(user_of)

    def set_user(self, holder: str, user: str) -> None:
        """Record that a client name belongs to another user now."""
        with self._lock:
            self._holdings.set_user(holder, user)

    def first_pinned_by(self, user: str) -> int | None:
        """Return the first sequence pinned for a user's client names; None if none is."""
        with self._lock:
            return self._holdings.first_pinned_by(user)

    def list_pins(self) -> list[Pin]:
        """Return the current pins in no order."""
        with self._lock:
            return list(self._pins)
