"""Opening of a journal: find its segments, repair the effects of a crash, report damage.

These bytes are copied aside and never deleted: a torn tail (`<segment>.torn.<offset>`), a damaged range
(`<segment>.damaged.<offset>`; the segment keeps the bytes too) and files without content (`<name>.empty`).

A torn tail is the bytes after the last whole batch, when no whole batch follows them. If one follows, the
bytes between are a missing range: it is reported with its exact interval, and reading continues after it.
After a power loss a missing range may include records that were never acknowledged as persisted; it is
reported all the same.

Records after the durable mark may be readable only because the kernel still has them in memory: after a
failed sync the next sync does not write those pages again. So recovery copies them into a new segment, syncs
it, and then cuts them off in the old one. A crash in between leaves them twice, and the later segment counts.
A segment with a sidecar was synced before the sidecar was written.

Recovery changes nothing before it knows that this is the log that the instance wrote last, and does not
continue a log that lacks acknowledged records. An operator may override both (`manage.py journal accept`).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid4

from broker_core.errors import OperatorError
from broker_core.journal import index_sidecar
from broker_core.journal.files import FileSystem, OpenFile, replace_durably, temporary_target
from broker_core.journal.frontier_file import FrontierMark, KnownLog, read_mark
from broker_core.journal.header_repair import (
    HeaderSources,
    RestoredHeader,
    find_header_sources,
    header_length,
    read_raw_header,
    restore_header,
    restore_original_header,
    write_header,
)
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
    SegmentHeader,
    describe_header,
    encode_header,
    find_segment_files,
    index_path,
    is_segment_of,
    parse_segment_name,
    segment_name,
)
from broker_core.journal.segment_index import MISSING_RECORDS, MissingRange, SegmentIndex
from broker_core.journal.segment_reader import (
    CHUNK,
    SegmentHead,
    SegmentScan,
    open_source,
    read_segment_head,
    scan_batches,
    scan_segment,
)

RESEEDING_SUFFIX: Final = ".reseeding"
"""Suffix of the empty file that is there while a journal is moved aside and its replacement moved in."""
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
    RESEEDING_SUFFIX,
    SUFFIX_INDEX,
)
_NAMED = 5
"""Maximum number of files named in an error."""


@dataclass(slots=True)
class RecoveryReport:
    """Findings and actions of one opening. `reason` explains why bytes were cut or copied aside."""

    opened_at: int = 0
    kept_records: int = 0
    """Number of readable records."""
    truncated_bytes: int = 0
    """Bytes of torn tails that were cut off."""
    quarantined: list[MissingRange] = field(default_factory=list)
    """Missing ranges, in segments and between them."""
    skipped: tuple[int, int] | None = None
    """First and last sequence that this opening skips: they may have been shown, and no record has them."""
    reason: str = ""
    set_aside: list[Path] = field(default_factory=list)
    """Files with bytes that were copied or moved aside."""
    ignored: list[str] = field(default_factory=list)
    """Names of files in the directory that belong to no journal."""
    scanned_segments: int = 0
    """Number of segments that were read completely."""
    seconds: float = 0.0
    """Duration of the opening."""

    @property
    def clean(self) -> bool:
        """Whether recovery found nothing wrong."""
        return not (self.truncated_bytes or self.quarantined or self.set_aside)

    def as_dict(self) -> dict[str, Any]:
        """Return the report for the status and the command line."""
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
    """Opening of a journal.

    The results are `segments`, `publishers`, `mark`, `skipped_from`, `next_sequence` and `report`. `accept`:
    the operator has decided that this log is the instance's, with the records that it has.
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
        """Newest sequence that was acknowledged, by the frontier file and the control plane."""
        self.given_up = self._mark.given_up
        """Lost records up to here were accepted by an operator."""
        self.report = RecoveryReport()
        self.segments: list[Segment] = []
        self.publishers = Publishers()
        self.last_stored = 0
        """Newest sequence that a record has, or had when it was acknowledged."""
        self.skipped_from = 0
        """First of the skipped sequences before `next_sequence`, which name no record and never will; 0:
        none."""
        self.next_sequence = 1
        self.epoch = 1
        self.log: UUID
        """Identity of the log; set by `run`."""
        self._heads: dict[Path, SegmentHead] = {}
        """Header of each segment's file."""
        self._restored: dict[int, RestoredHeader] = {}
        """Headers to write in place of damaged ones, by first sequence."""
        self._scans: dict[int, SegmentScan] = {}
        """Scans of the segments without a valid sidecar, by first sequence."""

    def run(self) -> None:
        """Examine and repair the log. Damage never stops it; OSError and JournalError from the disk do.

        Raises OperatorError journal_reseeding when a reseed was interrupted, other_log when files of several
        logs are mixed, journal_other when this is not the instance's log, and journal_behind when it lacks
        acknowledged records.
        """
        self._check_reseeding()
        files = find_segment_files(self.directory, self.instance, self.archive_directory)
        self._heads = {file.path: read_segment_head(file.path) for file in files}
        self.log = self._identity(files)
        self._note_foreign_files()
        self._remove_leftovers(files)
        found = self._segment_files(files)
        for number, file in enumerate(found):
            self._add_segment(file, number + 1 == len(found))
        self._check_logs(files)
        self._check_acknowledged()
        for segment in list(self.segments):
            if segment.first_sequence in self._restored:
                self._rewrite_header(segment)
            if segment.first_sequence in self._scans:
                self._repair(segment)
        self._join_segments()
        self._recover_publishers()
        self.report.kept_records = sum(segment.index.records for segment in self.segments)

    def _check_reseeding(self) -> None:
        """Raise OperatorError journal_reseeding when the directory may have a part of a journal only."""
        if (self.directory / f"{self.instance}{RESEEDING_SUFFIX}").exists():
            raise OperatorError(
                "journal_reseeding",
                f"A reseed of {self.instance} was interrupted while it replaced the journal in"
                f" {self.directory}.",
                "Run `manage.py replication reseed` again, with the same options.",
            )

    def _identity(self, files: list[SegmentFile]) -> UUID:
        """Return the log's identity from its segments, its mark and the control plane.

        Raises OperatorError journal_other when they differ, unless `accept` is set.
        """
        self._check_logs(files)
        identities: dict[UUID, str] = {}
        for file in reversed(files):
            header = self._heads[file.path].header or self._original_header(file)
            if header is not None:
                identities[header.log] = file.path.name
                break
        if self._mark.log is not None:
            identities.setdefault(self._mark.log, f"{self.instance}.durable")
        if self._known is not None and self._known.log is not None:
            identities.setdefault(self._known.log, "the control plane")
        if len(identities) > 1 and not self._accept:
            raise OperatorError(
                "journal_other",
                f"This isn't the log that {self.instance} wrote last: "
                + ", ".join(f"{origin} says {log}" for log, origin in identities.items())
                + ".",
                "Give the instance its own journal directory, or bring its files back. If this log is to be"
                f" its own from now on: `manage.py journal accept --instance {self.instance}`.",
                logs=[str(log) for log in identities],
            )
        if not identities and not all(self._heads[file.path].empty for file in files):
            self.report.add_reason("No file has the log's identity, so the log got a new one.")
        return next(iter(identities), None) or uuid4()

    def _check_logs(self, files: list[SegmentFile]) -> None:
        """Raise OperatorError other_log when files with a segment's name belong to another log or segment.

        Recovery never merges two logs: an operator must move the files away.
        """
        found = [(file, header) for file in files if (header := self._heads[file.path].header) is not None]
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
            "Move these files away and restore the original segments. Without these segments, "
            "their records are a gap, which the broker reports to subscribers.",
            files=[path.name for path, _ in others[:_NAMED]],
            found=sorted({str(header.log) for _, header in others})[:_NAMED],
            expected=str(log),
        )

    def _check_acknowledged(self) -> None:
        """Raise OperatorError journal_behind when acknowledged records are missing, unless `accept` is set.

        Their publishers have deleted them, so only an operator may give them up.
        """
        found = self.segments[-1].index.last_sequence if self.segments else 0
        if found >= self.acknowledged or self.given_up >= self.acknowledged:
            return
        if not self._accept:
            raise OperatorError(
                "journal_behind",
                f"The log of {self.instance} ends with record {found}, and {self.acknowledged} were"
                " acknowledged.",
                f"Restore the files with records {found + 1} to {self.acknowledged}. If they are lost: "
                f"`manage.py journal accept --instance {self.instance}`; their numbers are never used "
                "again. Don't accept the log of a group's member: use `manage.py replication reseed`, "
                "which copies another member's.",
                found=found,
                acknowledged=self.acknowledged,
            )
        self.given_up = self.acknowledged

    def _note_foreign_files(self) -> None:
        """Report files that belong to no journal. Files of other instances in the directory are ignored."""
        for path in sorted(self.directory.iterdir()):
            if (
                not (temporary_target(path.name) or path.name).endswith(_ENDINGS)
                and SUFFIX not in path.name
                and ".spare." not in path.name
            ):
                self.report.ignored.append(path.name)

    def _remove_leftovers(self, files: list[SegmentFile]) -> None:
        """Remove leftovers of a crash: temporary files, and sidecars whose segment was removed."""
        sidecars = {index_path(file.path) for file in files}
        for directory in (self.directory, self.archive_directory):
            if directory is None or not directory.is_dir():
                continue
            for path in directory.glob(f"{self.instance}.*"):
                name = temporary_target(path.name) or path.name
                indexes = name.endswith(SUFFIX_INDEX) and self._is_segment(
                    name.removesuffix(SUFFIX_INDEX) + SUFFIX
                )
                if path.name == name:
                    is_leftover = indexes and path not in sidecars
                else:
                    small = (f"{self.instance}.clients.ack", f"{self.instance}.removed.json")
                    is_leftover = indexes or name in small or self._is_copy(name) or self._is_segment(name)
                if is_leftover:
                    self.files.unlink(path)

    def _is_copy(self, name: str) -> bool:
        """Whether it is the name of bytes of this instance's segments that were copied aside."""
        before, _, reason = name.partition(f"{SUFFIX}.")
        copied = reason.removeprefix("gz.").startswith(("torn.", "damaged.", "header."))
        return copied and self._is_segment(before + SUFFIX)

    def _is_segment(self, name: str) -> bool:
        return parse_segment_name(name, self.instance) is not None

    def _segment_files(self, files: list[SegmentFile]) -> list[SegmentFile]:
        """Return one file per segment. A second form comes from an unfinished swap and is removed."""
        chosen: dict[int, SegmentFile] = {}
        for file in files:
            if self._heads[file.path].empty:
                self._set_aside(file.path, "empty", "It has no content.")
            elif file.first_sequence in chosen:
                self.files.unlink(file.path)
                self.report.add_reason(f"A swap to {file.path.name} wasn't finished and was undone.")
            else:
                chosen[file.first_sequence] = file
        return [chosen[first] for first in sorted(chosen)]

    def _set_aside(self, path: Path, reason: str, sentence: str) -> None:
        """Rename a whole file to `<name>.<reason>` and report it."""
        target = _free_name(path.with_name(f"{path.name}.{reason}"))
        self.files.rename(path, target)
        self.files.sync_directory(path.parent)
        self.report.set_aside.append(target)
        self.report.add_reason(f"{path.name} was set aside as {target.name}: {sentence}")

    def _add_segment(self, file: SegmentFile, last: bool) -> None:
        """Add a segment: by its sidecar's summary if that is valid, otherwise by a scan.

        The last segment without a sidecar becomes the current one.
        """
        index = self._load_sidecar(file)
        head = self._heads[file.path]
        header = head.header
        if header is None:
            restored = restore_header(read_raw_header(file.path), self._header_sources(file, self.log))
            self._restored[file.first_sequence], header = restored, restored.header
            self._heads[file.path] = head._replace(header=header)
            is_own_sidecar = index is not None and restored.is_original and index.header_crc == header.crc
        else:
            is_own_sidecar = index is not None and index.header_crc == header.crc
            index = index if is_own_sidecar else None  # another segment's sidecar
        if index is not None:
            index.set_header(header)
        if (
            index is not None
            and is_own_sidecar
            and file.path.stat().st_size >= (0 if file.compressed else index.end)
        ):
            self.segments.append(Segment(file.path, file.archived, file.compressed, index, sealed=True))
            self.report.quarantined += index.holes
            return
        scan = self._scan(file.path, file.first_sequence, index)
        scan.index.set_header(header)
        writable = last and index is None and not file.archived and not file.compressed
        self.segments.append(
            Segment(file.path, file.archived, file.compressed, scan.index, sealed=not writable)
        )

    def _load_sidecar(self, file: SegmentFile) -> SegmentIndex | None:
        return index_sidecar.load_summary(index_path(file.path), self.instance, file.first_sequence)

    # Damaged headers.

    def _original_header(self, file: SegmentFile) -> SegmentHeader | None:
        """Return a damaged header as it was, with its log, if a checksum proves it."""
        if self._heads[file.path].empty:
            return None
        return restore_original_header(read_raw_header(file.path), self._header_sources(file, None))

    def _header_sources(self, file: SegmentFile, log: UUID | None) -> HeaderSources:
        headers = [head.header for head in self._heads.values() if head.header is not None]
        earlier = self.segments[-1].index if self.segments else None
        return find_header_sources(
            file.path, self.instance, file.first_sequence, log, headers, self._mark, earlier
        )

    def _rewrite_header(self, segment: Segment) -> None:
        """Copy a damaged header aside and write the restored one in its place."""
        header, is_original = self._restored[segment.first_sequence]
        path = segment.path
        length = header_length(path)
        problem = f"{path.name}: its header was {'restored' if is_original else 'rebuilt'}"
        if length:
            self._copy_aside(path, "header", 0, length)
            write_header(self.files, path, header)
        self.report.add_reason(f"{problem} ({self._heads[path].problem}).")
        if header.skips_unknown:
            self.report.add_reason("It is no longer known whether sequences before it were skipped.")

    def _scan(self, path: Path, first: int, sealed: SegmentIndex | None = None) -> SegmentScan:
        self.report.scanned_segments += 1
        scan = self._scans[first] = scan_segment(open_source(path), self.instance, first, sealed)
        return scan

    def _repair(self, segment: Segment) -> None:
        """Repair a segment without a sidecar: save damaged bytes, rewrite records that may not be on disk."""
        scan = self._scans[segment.first_sequence]
        self._save_damage(segment, scan)
        if segment.compressed:
            self._write_sidecar(segment)
            return
        self._truncate_torn_tail(segment, scan)
        number = self.segments.index(segment)
        following = self.segments[number + 1] if number + 1 < len(self.segments) else None
        if following is not None and following.first_sequence <= segment.index.last_sequence:
            self.segments[number] = self._truncate_before(segment, following)
        elif segment.index.records and segment.index.last_sequence > self._mark.sequence:
            self.segments[number : number + 1] = self._rewrite_unsynced(segment)
        for one in self.segments[number : number + 2]:
            if one.sealed and one.first_sequence in self._scans and one is not following:
                self._write_sidecar(one)

    def _save_damage(self, segment: Segment, scan: SegmentScan) -> None:
        """Copy a torn tail and damaged ranges aside, and report them."""
        if scan.torn is not None:
            start, end = scan.torn
            self._copy_aside(segment.path, "torn", start, end - start)
            self.report.truncated_bytes += end - start
            self.report.add_reason(f"{segment.path.name} was cut at byte {start}: {scan.torn_reason}.")
        for hole in scan.index.holes:
            self.report.quarantined.append(hole)
            self.report.add_reason(
                f"{segment.path.name}: records {hole.first_sequence} to {hole.last_sequence} can't be read"
                f" ({hole.why})."
            )
            if hole.length:
                self._copy_aside(segment.path, "damaged", hole.offset, hole.length)

    def _copy_aside(self, path: Path, reason: str, start: int, length: int) -> None:
        """Copy bytes of a segment to `<name>.<reason>.<start>`, unless an earlier opening did."""
        if path.name.endswith(SUFFIX_COMPRESSED) and reason != "header":
            return  # nothing is cut from it: the file keeps the bytes
        with path.open("rb") as segment_file:
            segment_file.seek(start)
            content = segment_file.read(length)
        target = path.with_name(f"{path.name}.{reason}.{start}")
        if target.exists() and target.read_bytes() == content:
            return
        target = _free_name(target)
        replace_durably(self.files, target, content)
        self.report.set_aside.append(target)

    def _truncate_torn_tail(self, segment: Segment, scan: SegmentScan) -> None:
        """Cut off a torn tail, and sync the segment."""
        handle = OpenFile(segment.path, os.O_RDWR)
        if scan.torn is not None or (segment.sealed and scan.index.end < segment.path.stat().st_size):
            self.files.truncate(handle.fd, scan.index.end)
        self.files.fsync(handle.fd)

    # Records that may not be on disk.

    def _rewrite_unsynced(self, segment: Segment) -> list[Segment]:
        """Return the segment cut at the durable mark, and a new, synced segment with the rest."""
        behind = [one for one in _iter_batches(segment) if one.last_sequence > self._mark.sequence]
        start, first = behind[0].start, behind[0].first_sequence
        path = self.directory / segment_name(self.instance, first)
        header = self._heads[segment.path].header
        assert header is not None, "a damaged header was restored before"
        if path != segment.path:
            header = header._replace(
                first_sequence=first,
                created_at=behind[0].accepted_at,
                skipped_from=0,
                skips_unknown=False,
            )
        file = OpenFile(segment.path)
        content = memoryview(mmap.mmap(file.fd, 0, access=mmap.ACCESS_READ))
        parts = (content[one.start : one.end] for one in behind)
        replace_durably(self.files, path, encode_header(header), *parts)
        rewritten = Segment(path, False, False, self._scan(path, first).index, sealed=segment.sealed)
        self.report.add_reason(
            f"Records {first} to {rewritten.index.last_sequence} weren't known to be on disk and were written"
            " again."
        )
        return [rewritten] if path == segment.path else [self._truncate(segment, start), rewritten]

    def _truncate_before(self, segment: Segment, following: Segment) -> Segment:
        """Return the segment cut where the next one begins.

        A crash during a copy left these records in both; the next segment was synced before it got its name.
        """
        start, end = next(
            (one.start, segment.index.end)
            for one in _iter_batches(segment)
            if one.last_sequence >= following.first_sequence
        )
        if following.index.last_sequence < segment.index.last_sequence:
            self._copy_aside(segment.path, "torn", start, end - start)
            self.report.add_reason(
                f"{segment.path.name} was cut at byte {start}: the next one holds these records."
            )
        return self._truncate(segment, start)

    def _truncate(self, segment: Segment, end: int) -> Segment:
        """Cut a segment at offset `end`, sync it, and return it as sealed."""
        handle = OpenFile(segment.path, os.O_RDWR)
        self.files.truncate(handle.fd, end)
        self.files.fsync(handle.fd)
        index = self._scan(segment.path, segment.first_sequence).index
        return Segment(segment.path, False, False, index, sealed=True)

    def _write_sidecar(self, segment: Segment) -> None:
        replace_durably(self.files, index_path(segment.path), index_sidecar.encode_sidecar(segment.index))

    def _join_segments(self) -> None:
        """Report records missing between segments and at the end, and set the next sequence."""
        for earlier, later in pairwise(self.segments):
            expected = earlier.index.last_sequence + 1
            if later.index.last_before >= expected:
                reason = later.index.reason_missing_before
                self._report_missing(earlier, expected, later.index.last_before, reason)
        if self.segments:
            self.next_sequence = self.segments[-1].index.last_sequence + 1
        self.epoch = max([self._mark.epoch, *(segment.index.epoch for segment in self.segments)]) + 1
        if self.acknowledged >= self.next_sequence:
            if self.segments:
                self._report_missing(self.segments[-1], self.next_sequence, self.acknowledged)
            # These sequences were acknowledged: they never name other records.
            self.next_sequence = self.acknowledged + 1
        self.last_stored = self.next_sequence - 1
        if self._mark.reserved > self.last_stored:
            self._skip(self.next_sequence, self._mark.reserved)

    def _skip(self, first: int, last: int) -> None:
        """Continue after reserved sequences that subscribers may have seen and that no record has."""
        self.skipped_from, self.next_sequence = first, last + 1
        self.report.skipped = (first, last)
        self.report.add_reason(
            f"Numbers {first} to {last} were reserved for records that are shown before they are stored."
            " No record has them, and none will."
        )

    @property
    def mark(self) -> FrontierMark:
        """Durable mark of the log as found, for the frontier file."""
        return FrontierMark(self.last_stored, self.log, self.epoch, self.given_up, self._mark.reserved)

    def _report_missing(self, earlier: Segment, first: int, last: int, reason: str = MISSING_RECORDS) -> None:
        """Report missing records after a segment."""
        hole = MissingRange(earlier.first_sequence, earlier.index.end, 0, first, last, reason)
        self.report.quarantined.append(hole)
        self.report.add_reason(
            f"Records {first} to {last} are missing behind {earlier.path.name}."
            if reason == MISSING_RECORDS
            else f"It isn't known whether records {first} to {last} existed behind {earlier.path.name}."
        )

    def _recover_publishers(self) -> None:
        """Load the publishers: from `.clients.ack` up to its sequence, from the log after that.

        Reads the whole log if the file is lost or ahead of the log.
        """
        upto = 0
        stored = read_publisher_sequences(publisher_sequences_path(self.directory, self.instance))
        if stored is not None and stored[0] < self.next_sequence:
            upto, self.publishers = stored
        behind = [segment for segment in self.segments if segment.index.last_sequence > upto]
        for segment in behind:
            scan = self._scans.get(segment.first_sequence) or self._scan(segment.path, segment.first_sequence)
            for name, sessions in scan.publishers.items():
                self.publishers.merge_sessions(name, sessions)
        if len(behind) > 1:
            # The file was lost or old: the next opening must not read these segments again. Their records are
            # synced by now.
            with suppress(OSError):
                last = self.segments[-1].index.last_sequence
                write_publisher_sequences(
                    self.files, publisher_sequences_path(self.directory, self.instance), last, self.publishers
                )


def _free_name(path: Path) -> Path:
    """Return the path, or the path with a number if it exists."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}.{number}")
    return free


class _StoredBatch(NamedTuple):
    """Location of a batch in a segment's file, and its numbers."""

    start: int
    end: int
    first_sequence: int
    last_sequence: int
    accepted_at: int


def _iter_batches(segment: Segment) -> Iterator[_StoredBatch]:
    """Yield the whole batches of a segment, skipping missing ranges."""
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
