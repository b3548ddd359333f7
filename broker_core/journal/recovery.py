"""Opening a journal: find its segments, check what a crash may have left, cut a torn tail, name what is damaged.

Kept apart and never thrown away: the bytes of a torn tail (`<segment>.torn.<offset>`), of a damaged stretch
(`<segment>.damaged.<offset>`, a copy; the segment keeps them too), and files without content (`<name>.empty`).

A torn tail is what stands behind the last whole batch when no whole batch follows it. If one follows, the stretch
between is a hole: reported with its exact interval, and reading goes on behind it. After a power loss a hole may
stand among records that were never acknowledged as persisted; it is reported all the same.

What stands behind the durable mark may be there only because the kernel still has it in memory: after a sync that failed
it isn't written again by the next. So it is copied into a segment of its own, which is synced, and then cut off where it
was; a crash between leaves it twice, and the later segment counts. Segments with a sidecar were synced before that was
written.

Nothing is changed before it is clear that this is the log that the instance wrote last, and nothing is appended to a log
that lacks records which were acknowledged: both need an operator's word (`manage.py journal accept`).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from broker_core.errors import OperatorError
from broker_core.journal import index_sidecar
from broker_core.journal.files import FileSystem, OpenFile, replace_durably, temporary_target
from broker_core.journal.frontier_file import FrontierMark, KnownLog, read_mark
from broker_core.journal.open_segments import Segment
from broker_core.journal.publisher_sequences import (
    publisher_sequences_path,
    read_publisher_sequences,
    write_publisher_sequences,
)
from broker_core.journal.publishers import Publishers
from broker_core.journal.segment import (
    HEADER_SIZE,
    SUFFIX,
    SUFFIX_COMPRESSED,
    SUFFIX_INDEX,
    SegmentFile,
    describe_header,
    encode_header,
    find_segment_files,
    header_crc,
    index_path,
    is_segment_of,
    new_header,
    parse_segment_name,
    segment_name,
)
from broker_core.journal.segment_index import MissingRange, SegmentIndex
from broker_core.journal.segment_reader import (
    CHUNK,
    SegmentHead,
    SegmentScan,
    open_source,
    read_segment_head,
    scan_batches,
    scan_segment,
)

_ENDINGS = (
    ".lock",
    ".durable",
    ".clients.ack",
    ".owners",
    ".prepared",
    ".kept.json",
    ".removed.json",
    ".leases",
    ".chain",
    ".downgrades",
    SUFFIX_INDEX,
)
_NAMED = 5
"""Files in an error."""


@dataclass(slots=True)
class RecoveryReport:
    """What opening found and did. `reason` says in a sentence why anything was cut or quarantined."""

    opened_at: int = 0
    kept_records: int = 0
    truncated_bytes: int = 0
    quarantined: list[MissingRange] = field(default_factory=list)
    skipped: tuple[int, int] | None = None
    """First and last of the numbers that this opening skips: they may have been shown, and no record has
    them."""
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
            "skipped": list(self.skipped or ()),
            "reason": self.reason,
            "set_aside": [path.name for path in self.set_aside],
            "ignored": self.ignored,
            "scanned_segments": self.scanned_segments,
            "seconds": round(self.seconds, 3),
            "clean": self.clean,
        }

    def add_reason(self, sentence: str) -> None:
        self.reason = f"{self.reason} {sentence}".strip()


class JournalRecovery:
    """Opening of a journal. Results: `segments`, `publishers`, `mark`, `skipped_from`, `next_sequence` and
    `report`.

    `accept` is an operator's word that this log is to be the instance's, with what it has.
    """

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        instance: str,
        archive_directory: Path | None,
        known: KnownLog | None = None,
        *,
        accept: bool = False,
    ) -> None:
        self.files = files
        self.directory = directory
        self.instance = instance
        self.archive_directory = archive_directory
        self._known = known
        self._accept = accept
        self._mark = read_mark(directory, instance) or FrontierMark(0)
        self.acknowledged = max(self._mark.sequence, known.sequence if known is not None else 0)
        self.given_up = self._mark.given_up
        self.report = RecoveryReport()
        self.segments: list[Segment] = []
        self.publishers = Publishers()
        self.settled = 0
        """Last number that a record has, or had when it was acknowledged."""
        self.skipped_from = 0
        """First of the numbers before `next_sequence` that name no record and never will; 0: none."""
        self.next_sequence = 1
        self.epoch = 1
        self.log: UUID
        """Identity of the log; `run` finds it."""
        self._fronts: dict[Path, SegmentHead] = {}
        self._scans: dict[int, SegmentScan] = {}

    def run(self) -> None:
        """Look at everything. Damage never stops it; OSError and JournalError from the disk do.

        OperatorError other_log, journal_other and journal_behind when the log isn't one, not this one, or not all of it.
        """
        files = find_segment_files(self.directory, self.instance, self.archive_directory)
        self._fronts = {file.path: read_segment_head(file.path) for file in files}
        self.log = self._identity(files)
        self._note_foreign_files()
        self._sweep(files)
        found = self._segment_files(files)
        for number, file in enumerate(found):
            self._take(file, number + 1 == len(found))
        self._refuse_if_behind()
        for segment in list(self.segments):
            if segment.first_sequence in self._scans:
                self._settle(segment)
        self._join()
        self._recover_publishers()
        self.report.kept_records = sum(segment.index.records for segment in self.segments)

    def _identity(self, files: list[SegmentFile]) -> UUID:
        """Which log this is: by its segments, its mark, and what the control plane knows. They must say the same."""
        self._refuse_others(files)
        said: dict[UUID, str] = {}
        for file in reversed(files):
            header = self._fronts[file.path].header
            if header is not None:
                said[header.log] = file.path.name
                break
        if self._mark.log is not None:
            said.setdefault(self._mark.log, f"{self.instance}.durable")
        if self._known is not None and self._known.log is not None:
            said.setdefault(self._known.log, "the control plane")
        if len(said) > 1 and not self._accept:
            raise OperatorError(
                "journal_other",
                f"This isn't the log that {self.instance} wrote last: "
                + ", ".join(f"{who} says {log}" for log, who in said.items())
                + ".",
                "Give the instance its own journal directory, or bring its files back. If this log is to be its own from"
                f" now on: `manage.py journal accept --instance {self.instance}`.",
                logs=[str(log) for log in said],
            )
        return next(iter(said), None) or uuid4()

    def _refuse_others(self, files: list[SegmentFile]) -> None:
        """No log is made of two: files that bear a segment's name and are another one are for an operator to move away."""
        found = [(file, header) for file in files if (header := self._fronts[file.path].header) is not None]
        logs = [header.log for _, header in found]
        log = self._mark.log if self._mark.log in logs else logs[-1] if logs else None
        others = [
            (file.path, header)
            for file, header in found
            if not is_segment_of(header, self.instance, file.first_sequence, log)
        ]
        if not others:
            return
        named = ", ".join(f"{path} is {describe_header(header)}" for path, header in others[:_NAMED])
        more = f", and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        raise OperatorError(
            "other_log",
            f"{len(others)} of {len(files)} segments of {self.instance} aren't what their names say,"
            f" and it is the log {log}: {named}{more}.",
            "Move these files away and bring back the segments that were there. Without them their records are a gap, which"
            " subscribers are told.",
            files=[path.name for path, _ in others[:_NAMED]],
            found=sorted({str(header.log) for _, header in others})[:_NAMED],
            expected=str(log),
        )

    def _refuse_if_behind(self) -> None:
        """Not without an operator's word: who published what is missing has let go of it."""
        found = self.segments[-1].index.last_sequence if self.segments else 0
        if found >= self.acknowledged or self.given_up >= self.acknowledged:
            return
        if not self._accept:
            raise OperatorError(
                "journal_behind",
                f"The log of {self.instance} ends with record {found}, and {self.acknowledged} were acknowledged.",
                f"Bring back the files that hold records {found + 1} to {self.acknowledged}. If they are lost:"
                f" `manage.py journal accept --instance {self.instance}`; their numbers are never used again."
                " A member of a group isn't to accept: `manage.py replication reseed` gives it what the others have.",
                found=found,
                acknowledged=self.acknowledged,
            )
        self.given_up = self.acknowledged

    def _note_foreign_files(self) -> None:
        """Name what is of no journal; the files of other instances that share the directory aren't worth a word."""
        for path in sorted(self.directory.iterdir()):
            if (
                not (temporary_target(path.name) or path.name).endswith(_ENDINGS)
                and SUFFIX not in path.name
                and ".spare." not in path.name
            ):
                self.report.ignored.append(path.name)

    def _sweep(self, files: list[SegmentFile]) -> None:
        """Remove what a crash may leave of our own: half-written small files, sidecars whose segment was removed."""
        held = {index_path(file.path) for file in files}
        for place in (self.directory, self.archive_directory):
            if place is None or not place.is_dir():
                continue
            for path in place.glob(f"{self.instance}.*"):
                name = temporary_target(path.name) or path.name
                indexes = name.endswith(SUFFIX_INDEX) and self._is_segment(
                    name.removesuffix(SUFFIX_INDEX) + SUFFIX
                )
                if path.name == name:
                    gone = indexes and path not in held
                else:
                    small = (f"{self.instance}.clients.ack", f"{self.instance}.removed.json")
                    gone = indexes or name in small or self._is_copy(name) or self._is_segment(name)
                if gone:
                    self.files.unlink(path)

    def _is_copy(self, name: str) -> bool:
        """Whether it is a name for bytes put aside of one of our segments."""
        before, _, why = name.partition(f"{SUFFIX}.")
        return why.startswith(("torn.", "damaged.", "header.")) and self._is_segment(before + SUFFIX)

    def _is_segment(self, name: str) -> bool:
        return parse_segment_name(name, self.instance) is not None

    def _segment_files(self, files: list[SegmentFile]) -> list[SegmentFile]:
        """One file per segment; a second form of one comes from a swap that didn't finish, which is undone."""
        chosen: dict[int, SegmentFile] = {}
        for file in files:
            if self._fronts[file.path].empty:
                self._put_aside(file.path, "empty", "It has no content.")
            elif file.first_sequence in chosen:
                self.files.unlink(file.path)
                self.report.add_reason(f"A swap to {file.path.name} wasn't finished and was undone.")
            else:
                chosen[file.first_sequence] = file
        return [chosen[first] for first in sorted(chosen)]

    def _put_aside(self, path: Path, why: str, sentence: str) -> None:
        target = _free_name(path.with_name(f"{path.name}.{why}"))
        self.files.rename(path, target)
        self.files.sync_directory(path.parent)
        self.report.set_aside.append(target)
        self.report.add_reason(f"{path.name} was set aside as {target.name}: {sentence}")

    def _take(self, file: SegmentFile, last: bool) -> None:
        index = index_sidecar.load_summary(index_path(file.path), self.instance, file.first_sequence)
        header = self._fronts[file.path].header
        if index is not None and header is not None and index.header_crc != header.crc:
            index = None  # another segment's
        if index is not None and header is not None:
            index.skipped_from = header.skipped_from
        if index is not None and file.path.stat().st_size >= (0 if file.compressed else index.end):
            self.segments.append(Segment(file.path, file.archived, file.compressed, index, sealed=True))
            self.report.quarantined += index.holes
            return
        made = self._scan(file.path, file.first_sequence, index)
        writable = last and index is None and not file.archived and not file.compressed
        self.segments.append(
            Segment(file.path, file.archived, file.compressed, made.index, sealed=not writable)
        )

    def _scan(self, path: Path, first: int, sealed: SegmentIndex | None = None) -> SegmentScan:
        self.report.scanned_segments += 1
        made = self._scans[first] = scan_segment(open_source(path), self.instance, first, sealed)
        return made

    def _settle(self, segment: Segment) -> None:
        """Put a segment without a sidecar in order: what can't be read aside, what isn't on disk for sure written again."""
        made = self._scans[segment.first_sequence]
        self._keep_aside(segment, made)
        if segment.compressed:
            self._write_sidecar(segment)
            return
        self._mend(segment, made)
        number = self.segments.index(segment)
        following = self.segments[number + 1] if number + 1 < len(self.segments) else None
        if following is not None and following.first_sequence <= segment.index.last_sequence:
            self.segments[number] = self._cut_before(segment, following)
        elif segment.index.records and segment.index.last_sequence > self._mark.sequence:
            self.segments[number : number + 1] = self._copied(segment)
        for one in self.segments[number : number + 2]:
            if one.sealed and one.first_sequence in self._scans and one is not following:
                self._write_sidecar(one)

    def _keep_aside(self, segment: Segment, made: SegmentScan) -> None:
        if made.torn is not None:
            start, end = made.torn
            self._copy_aside(segment.path, "torn", start, end - start)
            self.report.truncated_bytes += end - start
            self.report.add_reason(f"{segment.path.name} was cut at byte {start}: {made.torn_why}.")
        for hole in made.index.holes:
            self.report.quarantined.append(hole)
            self.report.add_reason(
                f"{segment.path.name}: records {hole.first_sequence} to {hole.last_sequence} can't be read"
                f" ({hole.why})."
            )
            if hole.length:
                self._copy_aside(segment.path, "damaged", hole.offset, hole.length)

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

    def _mend(self, segment: Segment, made: SegmentScan) -> None:
        handle = OpenFile(segment.path, os.O_RDWR)
        if made.header_problem is not None:
            # Everything in the header is known from elsewhere; its bytes are kept before it is written anew.
            self._copy_aside(segment.path, "header", 0, HEADER_SIZE)
            self.report.add_reason(
                f"{segment.path.name}: its header was written anew ({made.header_problem})."
            )
            index = made.index
            header = new_header(self.instance, index.epoch, segment.first_sequence, index.first_at, self.log)
            encoded = encode_header(header)
            index.header_crc = header_crc(encoded)
            self.files.pwritev(handle.fd, [encoded], 0)
        if made.torn is not None or (segment.sealed and made.index.end < segment.path.stat().st_size):
            self.files.truncate(handle.fd, made.index.end)
        self.files.fsync(handle.fd)

    # What isn't on disk for sure.

    def _copied(self, segment: Segment) -> list[Segment]:
        """The segment, up to the mark, and a new one with the rest of it."""
        behind = [one for one in _batches(segment) if one.last_sequence > self._mark.sequence]
        start, first = behind[0].start, behind[0].first_sequence
        path = self.directory / segment_name(self.instance, first)
        skipped_from = segment.index.skipped_from if path == segment.path else 0
        header = new_header(
            self.instance, segment.index.epoch, first, behind[0].accepted_at, self.log, skipped_from
        )
        file = OpenFile(segment.path)
        content = memoryview(mmap.mmap(file.fd, 0, access=mmap.ACCESS_READ))
        parts = (content[one.start : one.end] for one in behind)
        replace_durably(self.files, path, encode_header(header), *parts)
        made = Segment(path, False, False, self._scan(path, first).index, sealed=segment.sealed)
        self.report.add_reason(
            f"Records {first} to {made.index.last_sequence} weren't known to be on disk and were written again."
        )
        return [made] if path == segment.path else [self._cut(segment, start), made]

    def _cut_before(self, segment: Segment, following: Segment) -> Segment:
        """A segment whose end a crash left also in the next one, which was synced before it got its name."""
        start, end = next(
            (one.start, segment.index.end)
            for one in _batches(segment)
            if one.last_sequence >= following.first_sequence
        )
        if following.index.last_sequence < segment.index.last_sequence:
            self._copy_aside(segment.path, "torn", start, end - start)
            self.report.add_reason(
                f"{segment.path.name} was cut at byte {start}: the next one holds these records."
            )
        return self._cut(segment, start)

    def _cut(self, segment: Segment, end: int) -> Segment:
        handle = OpenFile(segment.path, os.O_RDWR)
        self.files.truncate(handle.fd, end)
        self.files.fsync(handle.fd)
        index = self._scan(segment.path, segment.first_sequence).index
        return Segment(segment.path, False, False, index, sealed=True)

    def _write_sidecar(self, segment: Segment) -> None:
        replace_durably(self.files, index_path(segment.path), index_sidecar.encode_sidecar(segment.index))

    def _join(self) -> None:
        """Name what is missing between segments and behind the last, and set where numbering goes on."""
        for earlier, later in pairwise(self.segments):
            expected = earlier.index.last_sequence + 1
            if later.index.last_before >= expected:
                self._missing(earlier, expected, later.index.last_before)
        if self.segments:
            self.next_sequence = self.segments[-1].index.last_sequence + 1
        self.epoch = max([self._mark.epoch, *(segment.index.epoch for segment in self.segments)]) + 1
        if self.acknowledged >= self.next_sequence:
            if self.segments:
                self._missing(self.segments[-1], self.next_sequence, self.acknowledged)
            # Their numbers were given out and persisted: they are never given to other records.
            self.next_sequence = self.acknowledged + 1
        self.settled = self.next_sequence - 1
        if self._mark.reserved > self.settled:
            self._skip(self.next_sequence, self._mark.reserved)

    def _skip(self, first: int, last: int) -> None:
        """Go on behind numbers that may have been shown to subscribers and that no record has."""
        self.skipped_from, self.next_sequence = first, last + 1
        self.report.skipped = (first, last)
        self.report.add_reason(
            f"Numbers {first} to {last} were reserved for records that are shown before they are stored."
            " No record has them, and none will."
        )

    @property
    def mark(self) -> FrontierMark:
        """The durable mark of the log as it was found, for the frontier file."""
        return FrontierMark(self.settled, self.log, self.epoch, self.given_up, self._mark.reserved)

    def _missing(self, earlier: Segment, first: int, last: int) -> None:
        hole = MissingRange(
            earlier.first_sequence, earlier.index.end, 0, first, last, "the records aren't there"
        )
        self.report.quarantined.append(hole)
        self.report.add_reason(f"Records {first} to {last} are missing behind {earlier.path.name}.")

    def _recover_publishers(self) -> None:
        """The file's word up to where it goes, then the log's; the whole log if the file is lost or ahead of it."""
        upto = 0
        kept = read_publisher_sequences(publisher_sequences_path(self.directory, self.instance))
        if kept is not None and kept[0] < self.next_sequence:
            upto, self.publishers = kept
        behind = [segment for segment in self.segments if segment.index.last_sequence > upto]
        for segment in behind:
            made = self._scans.get(segment.first_sequence) or self._scan(segment.path, segment.first_sequence)
            for name, sessions in made.publishers.items():
                self.publishers.note_all(name, sessions)
        if len(behind) > 1:
            # It was lost or old: the next opening shall not read these segments again. Opening synced what it read.
            with suppress(OSError):
                last = self.segments[-1].index.last_sequence
                write_publisher_sequences(
                    self.files, publisher_sequences_path(self.directory, self.instance), last, self.publishers
                )


def _free_name(path: Path) -> Path:
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}.{number}")
    return free


class _StoredBatch(NamedTuple):
    """A batch in a segment's file."""

    start: int
    end: int
    first_sequence: int
    last_sequence: int
    accepted_at: int


def _batches(segment: Segment) -> Iterator[_StoredBatch]:
    """The whole batches of a segment, over holes."""
    source = open_source(segment.path)
    offset, end = HEADER_SIZE, segment.index.end
    while offset < end:
        found = scan_batches(source, offset, end, CHUNK)
        for at, batch in zip(found.offsets, found.batches, strict=True):
            yield _StoredBatch(
                at, at + batch.nbytes, batch.first_sequence, batch.last_sequence, batch.accepted_at
            )
        hole = segment.index.missing_range_at(found.stopped_at)
        if not found.batches and hole is None:
            return
        offset = found.stopped_at + (hole.length if hole is not None else 0)
