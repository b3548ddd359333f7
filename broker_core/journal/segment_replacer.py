"""Archiving, compressing and removing segments: the broker's short part, done while replays go on.

A worker has done the slow part (copy, check, compress) on a temporary file (`segment_copies`). Durable order:

1. the prepared file's header and length are checked against the segment; the worker has synced it;
2. it is renamed to its final name, and its directory is synced: the segment now exists twice, which is
   harmless;
3. the sidecar is written beside it;
4. the log refers to the new file; a reader of the old one keeps it open and continues;
5. the old file and its sidecar are unlinked, and their directory is synced.

A crash before step 5 leaves both forms; opening keeps the older one and removes the other.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

from broker_core.documents.journals import RemovalReply
from broker_core.errors import JournalError, OperatorError
from broker_core.journal import index_sidecar
from broker_core.journal.compressed_segment import CompressedSegmentSource
from broker_core.journal.files import FileSystem, journal_error, replace_durably
from broker_core.journal.log_reader import LogReader
from broker_core.journal.open_segments import Pin, Segment
from broker_core.journal.removal_records import RemovalReceipts, RemovalRecord
from broker_core.journal.segment import SegmentInfo, index_path, is_segment_of
from broker_core.journal.segment_reader import open_source, read_header


class SegmentReplacer:
    """Replacement and removal of a log's sealed segments, one operation at a time."""

    def __init__(
        self,
        files: FileSystem,
        log: LogReader,
        lock: Lock,
        archive_directory: Path | None,
        list_pins: Callable[[int], list[Pin]],
        receipts: RemovalReceipts,
    ) -> None:
        self._receipts = receipts
        self._files = files
        self._log = log
        self._lock = lock
        self._swap_lock = Lock()
        self._archive_directory = archive_directory
        self._list_pins = list_pins

    def archive(self, name: str, prepared: Path) -> None:
        """Move a segment to the archive: put its verified copy `prepared` in its place.

        Raises OperatorError no_archive, unknown_journal, journal_current, journal_archived or
        bad_prepared_file; JournalError when the disk refuses.
        """
        if self._archive_directory is None:
            raise OperatorError(
                "no_archive", "This instance has no archive directory.", "Set one in the instance's settings."
            )
        with self._swap_lock:
            old = self._sealed(name)
            if old.archived:
                raise OperatorError(
                    "journal_archived", f"{name} is archived already.", "There is nothing left to do."
                )
            path = self._archive_directory / old.path.name
            self._swap(old, prepared, Segment(path, True, old.compressed, old.index, sealed=True))

    def compress(self, name: str, prepared: Path) -> None:
        """Replace a segment by its compressed form `prepared`, in the same directory.

        Raises OperatorError unknown_journal, journal_current, journal_compressed or bad_prepared_file;
        JournalError when the disk refuses.
        """
        with self._swap_lock:
            old = self._sealed(name)
            if old.compressed:
                raise OperatorError(
                    "journal_compressed", f"{name} is compressed already.", "There is nothing left to do."
                )
            path = old.path.with_name(f"{old.path.name}.gz")
            self._swap(old, prepared, Segment(path, old.archived, True, old.index, sealed=True))

    def _sealed(self, name: str) -> Segment:
        """Return the sealed segment of this name. Raises OperatorError unknown_journal or journal_current."""
        found = next((one for one in self._log.segments if one.path.name == name), None)
        if found is None:
            raise OperatorError(
                "unknown_journal", f"The segment {name} doesn't exist.", "See `manage.py journal ls`."
            )
        if not found.sealed:
            raise _current(found)
        return found

    def _swap(self, old: Segment, prepared: Path, new: Segment) -> None:
        """Replace `old` by `new`, whose file is `prepared`, in the order of the module's docstring."""
        self._check(old, prepared, compressed=new.compressed)
        try:
            # Load the index before the rename: a failure here must leave the old form alone.
            encoded = index_sidecar.encode_sidecar(old.load_index())
            self._files.rename(prepared, new.path)
            self._files.sync_directory(new.path.parent)
            replace_durably(self._files, index_path(new.path), encoded)
        except OSError as error:
            if error.errno == errno.EXDEV:
                raise OperatorError(
                    "bad_prepared_file",
                    f"{prepared} isn't on the file system of {new.path.parent}.",
                    "Prepare the file in the target directory.",
                ) from None
            raise journal_error(error, f"the swap of {old.path.name}") from error
        # Unlink only after readers see the new file and its name is durable.
        with self._lock:
            self._log.replace(tuple(new if one is old else one for one in self._log.segments))
        self._unlink(old, retain_sidecar=new.path.parent == old.path.parent)

    def _check(self, old: Segment, prepared: Path, *, compressed: bool) -> None:
        """Check cheaply that `prepared` is a form of this segment; the worker has verified its content."""
        try:
            source = open_source(prepared)
            header = read_header(source)
        except (OSError, JournalError) as error:
            raise OperatorError(
                "bad_prepared_file",
                f"{prepared} can't take the place of {old.path.name}: {error}.",
                "Prepare the file again.",
            ) from None
        gzipped = isinstance(source, CompressedSegmentSource)
        if (
            gzipped != compressed
            or source.length != old.index.end
            or not is_segment_of(header, old.index.instance, old.first_sequence, self._log.identity)
        ):
            raise OperatorError(
                "bad_prepared_file",
                f"{prepared} isn't the content of {old.path.name}.",
                "Prepare the file again.",
            )

    def _unlink(self, old: Segment, *, retain_sidecar: bool) -> None:
        """Remove a segment's file, and its sidecar unless the new form uses it; sync the directory."""
        try:
            self._files.unlink(old.path)
            if not retain_sidecar:
                with suppress(FileNotFoundError):
                    self._files.unlink(index_path(old.path))
            self._files.sync_directory(old.path.parent)
        except OSError as error:
            raise journal_error(error, f"the removal of {old.path.name}") from error

    def remove(self, names: Sequence[str], now_ns: int = 0) -> RemovalReply:
        """Remove the oldest segments. `names` must list all of them, so that the operator knows each.

        The removal is recorded first (`removal_records`). Then pins and leases are read again: a reader that
        wrote its lease before that keeps its segments, and the receipt is withdrawn. A later reader sees the
        receipt. Then each segment is unlinked, oldest first, and its directory synced before the next. So
        the log has no gap after a crash at any point.

        Raises OperatorError journal_gap when `names` are not the oldest segments, journal_current or
        journal_pinned; JournalError when the disk refuses.
        """
        with self._swap_lock:
            chosen = self._log.segments[: len(names)]
            if not chosen or [segment.path.name for segment in chosen] != list(names):
                raise OperatorError(
                    "journal_gap",
                    "Only the oldest segments can be removed, in order, without leaving out one.",
                    "Request a new plan; the log has changed since then.",
                )
            self._refuse_if_needed(chosen, now_ns)
            infos = [segment.info() for segment in chosen]
            receipt = _removal_record(infos, now_ns)
            try:
                self._receipts.append(receipt)
                try:
                    self._refuse_if_needed(chosen, now_ns)
                except OperatorError:
                    self._receipts.withdraw_from(receipt.first)
                    raise
            except OSError as error:
                raise journal_error(error, "the note of what is removed") from error
            with self._lock:
                remaining = self._log.segments[len(chosen) :]
                self._log.replace(remaining)
            for segment in chosen:
                self._unlink(segment, retain_sidecar=False)
        nbytes = sum(info.nbytes for info in infos)
        return RemovalReply(
            action="remove",
            names=[info.name for info in infos],
            sizes=[info.nbytes for info in infos],
            nbytes=nbytes,
            freed_bytes=nbytes,
            records=sum(info.records for info in infos),
            first_sequence=infos[0].first_sequence,
            last_sequence=infos[-1].last_sequence,
            first_held=remaining[0].first_sequence if remaining else 0,
            first_at=infos[0].first_at,
            last_at=max(info.last_at for info in infos),
        )

    def _refuse_if_needed(self, chosen: Sequence[Segment], now_ns: int) -> None:
        """Raise OperatorError journal_current or journal_pinned if a segment can't be removed."""
        pins = self._list_pins(now_ns)
        for segment in chosen:
            if not segment.sealed:
                raise _current(segment)
            owners = sorted(
                {pin.owner or "a reader" for pin in pins if pin.sequence <= segment.index.last_sequence}
            )
            if owners:
                raise OperatorError(
                    "journal_pinned",
                    f"{segment.path.name} is needed by {', '.join(owners)}.",
                    "Wait until they have read it, or disconnect them.",
                    needed_by=owners,
                )


def _current(segment: Segment) -> OperatorError:
    return OperatorError(
        "journal_current", f"{segment.path.name} is being written.", "Wait until it is full."
    )


def _removal_record(infos: Sequence[SegmentInfo], now_ns: int) -> RemovalRecord:
    return RemovalRecord(
        infos[0].first_sequence,
        infos[-1].last_sequence,
        sum(info.records for info in infos),
        sum(info.nbytes for info in infos),
        len(infos),
        infos[0].first_at,
        max(info.last_at for info in infos),
        now_ns,
    )
