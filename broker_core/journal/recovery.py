"""Opening a journal: find its segments, check what a crash may have left, cut a torn tail, name what is damaged.

Kept apart and never thrown away: the bytes of a torn tail (`<segment>.torn.<offset>`), of a damaged stretch
(`<segment>.damaged.<offset>`, a copy; the segment keeps them too), and files without content (`<name>.empty`).

A torn tail is what stands behind the last whole batch when no whole batch follows it. If one follows, the stretch
between is a hole: reported with its exact interval, and reading goes on behind it. After a power loss a hole may
stand among records that were never acknowledged as persisted; it is reported all the same.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from broker_core.journal import sidecar
from broker_core.journal.acks import Publishers, acks_path, read_acks, write_acks
from broker_core.journal.files import Files, OpenFile, replace_durably, temporary_of
from broker_core.journal.frontier import read_frontier
from broker_core.journal.held import Segment
from broker_core.journal.index import Hole, SegmentIndex
from broker_core.journal.reader import open_source
from broker_core.journal.scan import Scan, scan
from broker_core.journal.segment import (
    HEADER_SIZE,
    SUFFIX,
    SUFFIX_COMPRESSED,
    SUFFIX_INDEX,
    SegmentFile,
    discover,
    encode_header,
    index_path,
    new_header,
    parse_name,
)

_ENDINGS = (
    ".lock",
    ".durable",
    ".clients.ack",
    ".prepared",
    ".kept.json",
    ".replays.json",
    ".migrated",
    ".removed.json",
    ".leases",
    SUFFIX_INDEX,
)


@dataclass(slots=True)
class RecoveryReport:
    """What opening found and did. `reason` says in a sentence why anything was cut or quarantined."""

    opened_at: int = 0
    kept_records: int = 0
    truncated_bytes: int = 0
    quarantined: list[Hole] = field(default_factory=list)
    reason: str = ""
    set_aside: list[Path] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    scanned_segments: int = 0
    seconds: float = 0.0

    @property
    def clean(self) -> bool:
        """Whether nothing was wrong."""
        return not (self.truncated_bytes or self.quarantined or self.set_aside)

    def as_dict(self) -> dict[str, Any]:
        """For the status and the command line."""
        return {
            "opened_at": self.opened_at,
            "kept_records": self.kept_records,
            "truncated_bytes": self.truncated_bytes,
            "quarantined": [hole._asdict() for hole in self.quarantined],
            "reason": self.reason,
            "set_aside": [path.name for path in self.set_aside],
            "ignored": self.ignored,
            "scanned_segments": self.scanned_segments,
            "seconds": round(self.seconds, 3),
            "clean": self.clean,
        }

    def because(self, sentence: str) -> None:
        self.reason = f"{self.reason} {sentence}".strip()


class Recovery:
    """One opening. `segments`, `publishers`, `next_sequence` and `report` are its results."""

    def __init__(self, files: Files, directory: Path, instance: str, archive_directory: Path | None) -> None:
        self.files = files
        self.directory = directory
        self.instance = instance
        self.archive_directory = archive_directory
        self.report = RecoveryReport()
        self.segments: list[Segment] = []
        self.publishers = Publishers()
        self.next_sequence = 1
        self.epoch = 1

    def run(self) -> None:
        """Look at everything. Damage never stops it; OSError and JournalError from the disk do."""
        self._note_foreign_files()
        self._sweep()
        scans: dict[int, Scan] = {}
        found = self._segment_files()
        for number, file in enumerate(found):
            self._take(file, number + 1 == len(found), scans)
        self._join()
        self._recover_publishers(scans)
        self.report.kept_records = sum(segment.index.records for segment in self.segments)

    def _note_foreign_files(self) -> None:
        """Name what is of no journal; the files of other instances that share the directory aren't worth a word."""
        for path in sorted(self.directory.iterdir()):
            if (
                not (temporary_of(path.name) or path.name).endswith(_ENDINGS)
                and SUFFIX not in path.name
                and ".spare." not in path.name
            ):
                self.report.ignored.append(path.name)

    def _sweep(self) -> None:
        """Remove what a crash may leave of our own: half-written small files, sidecars whose segment was removed."""
        held = {
            index_path(file.path) for file in discover(self.directory, self.instance, self.archive_directory)
        }
        for place in (self.directory, self.archive_directory):
            if place is None or not place.is_dir():
                continue
            for path in place.glob(f"{self.instance}.*"):
                name = temporary_of(path.name) or path.name
                indexes = name.endswith(SUFFIX_INDEX) and self._is_segment(
                    name.removesuffix(SUFFIX_INDEX) + SUFFIX
                )
                if path.name == name:
                    gone = indexes and path not in held
                else:
                    small = (f"{self.instance}.clients.ack", f"{self.instance}.removed.json")
                    gone = indexes or name in small or self._is_copy(name)
                if gone:
                    self.files.unlink(path)

    def _is_copy(self, name: str) -> bool:
        """Whether it is a name for bytes put aside of one of our segments."""
        before, _, why = name.partition(f"{SUFFIX}.")
        return why.startswith(("torn.", "damaged.", "header.")) and self._is_segment(before + SUFFIX)

    def _is_segment(self, name: str) -> bool:
        return parse_name(name, self.instance) is not None

    def _segment_files(self) -> list[SegmentFile]:
        """One file per segment; a second form of one comes from a swap that didn't finish, which is undone."""
        chosen: dict[int, SegmentFile] = {}
        for file in discover(self.directory, self.instance, self.archive_directory):
            if self._is_empty(file):
                self._put_aside(file.path, "empty", "It has no content.")
            elif file.first_sequence in chosen:
                self.files.unlink(file.path)
                self.report.because(f"A swap to {file.path.name} wasn't finished and was undone.")
            else:
                chosen[file.first_sequence] = file
        return [chosen[first] for first in sorted(chosen)]

    def _is_empty(self, file: SegmentFile) -> bool:
        if file.path.stat().st_size == 0:
            return True
        if file.compressed:
            return False
        with file.path.open("rb") as opened:
            # A crash after the roll's rename leaves a file of zeros: look at its header and first batch.
            return not any(opened.read(HEADER_SIZE + 8))

    def _put_aside(self, path: Path, why: str, sentence: str) -> None:
        target = _free_name(path.with_name(f"{path.name}.{why}"))
        self.files.rename(path, target)
        self.files.sync_directory(path.parent)
        self.report.set_aside.append(target)
        self.report.because(f"{path.name} was set aside as {target.name}: {sentence}")

    def _take(self, file: SegmentFile, last: bool, scans: dict[int, Scan]) -> None:
        index = sidecar.load_summary(index_path(file.path), self.instance, file.first_sequence)
        if index is not None and file.path.stat().st_size >= (0 if file.compressed else index.end):
            self.segments.append(Segment(file.path, file.archived, file.compressed, index, sealed=True))
            self.report.quarantined += index.holes
            return
        made = self._scan(file, index)
        scans[file.first_sequence] = made
        writable = last and index is None and not file.archived and not file.compressed
        segment = Segment(file.path, file.archived, file.compressed, made.index, sealed=not writable)
        self.segments.append(segment)
        if made.torn is not None:
            self._keep_torn(segment, made)
        self._mend(segment, made)

    def _scan(self, file: SegmentFile, sealed: SegmentIndex | None) -> Scan:
        self.report.scanned_segments += 1
        return scan(open_source(file.path), self.instance, file.first_sequence, sealed)

    def _keep_torn(self, segment: Segment, made: Scan) -> None:
        assert made.torn is not None
        start, end = made.torn
        self._copy_aside(segment.path, "torn", start, end - start)
        self.report.truncated_bytes += end - start
        self.report.because(f"{segment.path.name} was cut at byte {start}: {made.torn_why}.")

    def _copy_aside(self, path: Path, why: str, start: int, length: int) -> None:
        if path.name.endswith(SUFFIX_COMPRESSED):
            return  # nothing is cut from it: the file itself keeps the bytes
        with path.open("rb") as opened:
            opened.seek(start)
            content = opened.read(length)
        target = path.with_name(f"{path.name}.{why}.{start}")
        if target.exists() and target.read_bytes() == content:
            return
        target = _free_name(target)
        replace_durably(self.files, target, content)
        self.report.set_aside.append(target)

    def _mend(self, segment: Segment, made: Scan) -> None:
        for hole in made.index.holes:
            self.report.quarantined.append(hole)
            self.report.because(
                f"{segment.path.name}: records {hole.first_sequence} to {hole.last_sequence} can't be read"
                f" ({hole.why})."
            )
            if hole.length:
                self._copy_aside(segment.path, "damaged", hole.offset, hole.length)
        if segment.compressed:
            self._write_sidecar(segment)
            return
        handle = OpenFile(segment.path, os.O_RDWR)
        if made.header_problem is not None:
            # Everything in the header is known from elsewhere; its bytes are kept before it is written anew.
            self._copy_aside(segment.path, "header", 0, HEADER_SIZE)
            self.report.because(f"{segment.path.name}: its header was written anew ({made.header_problem}).")
            header = new_header(self.instance, made.index.epoch, segment.first_sequence, made.index.first_at)
            os.pwrite(handle.fd, encode_header(header), 0)
        if made.torn is not None or (segment.sealed and made.index.end < segment.path.stat().st_size):
            self.files.truncate(handle.fd, made.index.end)
        self.files.fsync(handle.fd)
        if segment.sealed:
            self._write_sidecar(segment)

    def _write_sidecar(self, segment: Segment) -> None:
        replace_durably(self.files, index_path(segment.path), sidecar.encode(segment.index))

    def _join(self) -> None:
        """Name what is missing between segments and behind the last, and set where numbering goes on."""
        for earlier, later in pairwise(self.segments):
            expected = earlier.index.last_sequence + 1
            if later.first_sequence > expected:
                self._missing(earlier, expected, later.first_sequence - 1)
        if self.segments:
            self.next_sequence = self.segments[-1].index.last_sequence + 1
            self.epoch = max(segment.index.epoch for segment in self.segments) + 1
        frontier = read_frontier(self.directory, self.instance)
        if frontier is not None and frontier >= self.next_sequence:
            if self.segments:
                self._missing(self.segments[-1], self.next_sequence, frontier)
            # Their numbers were given out and persisted: they are never given to other records.
            self.next_sequence = frontier + 1

    def _missing(self, earlier: Segment, first: int, last: int) -> None:
        hole = Hole(earlier.first_sequence, earlier.index.end, 0, first, last, "the records aren't there")
        self.report.quarantined.append(hole)
        self.report.because(f"Records {first} to {last} are missing behind {earlier.path.name}.")

    def _recover_publishers(self, scans: dict[int, Scan]) -> None:
        """The file's word up to where it goes, then the log's; the whole log if the file is lost or ahead of it."""
        upto = 0
        kept = read_acks(acks_path(self.directory, self.instance))
        if kept is not None and kept[0] < self.next_sequence:
            upto, self.publishers = kept[0], Publishers(kept[1])
        behind = [segment for segment in self.segments if segment.index.last_sequence > upto]
        for segment in behind:
            made = scans.get(segment.first_sequence)
            if made is None:
                self.report.scanned_segments += 1
                made = scan(open_source(segment.path), self.instance, segment.first_sequence)
            for name, sequence in made.publishers.items():
                self.publishers.note(name, max(sequence, self.publishers.get(name, 0)))
        if len(behind) > 1:
            # It was lost or old: the next opening shall not read these segments again. Opening synced what it read.
            with suppress(OSError):
                last = self.segments[-1].index.last_sequence
                write_acks(self.files, acks_path(self.directory, self.instance), last, self.publishers)


def _free_name(path: Path) -> Path:
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}.{number}")
    return free
