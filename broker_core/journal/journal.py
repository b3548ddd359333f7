"""The journal: the ordered segments of one instance, written at one end and read anywhere.

    write -> sync -> read up to the durable frontier      (group commit: commit_log)

One writer by a directory lock. `write`, `sync`, `preallocate`, reading and swaps may run in different threads; what
they share changes under one lock, and readers take none: they work on an immutable tuple of segments and on files
that stay open for as long as somebody reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import repeat
from pathlib import Path
from threading import Event, Lock

from broker_core.batch import Batch, hash64
from broker_core.documents.journals import RemovalReply
from broker_core.errors import JournalError
from broker_core.journal.appender import Appender, JournalOptions, SegmentSealer, SegmentWrite, WriteTail
from broker_core.journal.files import NO_ROOM, FileSystem, OpenFile, journal_error, lock_directory
from broker_core.journal.frontier_file import FrontierFile, KnownLog, frontier_path
from broker_core.journal.log_reader import LogReader
from broker_core.journal.open_segments import Pin, PinTable, Segment
from broker_core.journal.publishers import Publishers
from broker_core.journal.recovery import JournalRecovery, RecoveryReport
from broker_core.journal.removal_records import append_removal
from broker_core.journal.segment import BatchPosition, SegmentInfo
from broker_core.journal.segment_index import MissingRange
from broker_core.journal.segment_replacer import SegmentReplacer
from broker_core.sequence_set import SequenceSet

DEFAULT_OPTIONS = JournalOptions()
REST_S = 0.01
"""Between two steps of making a spare: 128 MiB take some six seconds, of which the disk works less than one."""


class Journal:
    """The transaction log of one instance. Made by `Journal.open`."""

    def __init__(
        self,
        files: FileSystem,
        lock: OpenFile,
        directory: Path,
        found: JournalRecovery,
        options: JournalOptions,
    ) -> None:
        self.instance = found.instance
        self.origin = hash64(found.instance)
        self.identity = found.log
        """Whose records these are, whatever the instance is called."""
        self.epoch = found.epoch
        self.directory = directory
        self.options = options
        self.recovery: RecoveryReport = found.report
        self.publishers: Publishers = found.publishers
        """The newest numbers that are durable."""
        self._written_numbers: dict[tuple[str, int], int] = {}
        """Numbers that are written and not durable yet, by name and session, the newest at the end."""
        self.last_at = max((segment.index.last_at for segment in found.segments), default=0)
        """The latest moment that a record found at opening bears."""
        self.next_sequence = found.next_sequence
        self.durable_sequence = found.next_sequence - 1
        self.stored_sequence = found.settled
        """Newest number that a durable record has; behind `durable_sequence` after numbers were skipped."""
        self.reserved = found.mark.reserved
        """Numbers up to here may be shown before their records are stored."""
        self.files = self._files = files
        """Through which everything of the instance that is kept beside its log is written too."""
        self._directory_lock = lock
        self._lock = Lock()
        self._pins = PinTable()
        self._log = LogReader(found.instance, tuple(found.segments), found.log)
        note = partial(append_removal, files, directory, found.instance)
        self._swaps = SegmentReplacer(
            files, self._log, self._lock, found.archive_directory, self._pins.owners_before, note
        )
        self._appender = Appender(files, directory, found.instance, found.log, found.epoch, options)
        self._sealer = SegmentSealer(files, directory, found.instance)
        self._syncing = Lock()
        self.failed: JournalError | None = None
        """Why nothing more is taken: what is on the disk can't be known, or isn't this process's any more."""
        self._closed = False
        self._closing = Event()
        self._frontier = FrontierFile(files, frontier_path(directory, found.instance), found.mark)
        self._appender.skipped_from = found.skipped_from
        last = found.segments[-1] if found.segments else None
        if last is not None and not last.sealed:
            self._go_on(last)
        self.note_frontier()

    def _go_on(self, last: Segment) -> None:
        self._appender.continue_segment(last)
        if last.index.last_sequence + 1 != self.next_sequence:
            self._end_segment()

    def _end_segment(self) -> None:
        """Have the next record begin a segment: numbers before it name no record, and file names tell the
        truth."""
        tail, self._appender.tail = self._appender.tail, None
        if tail is not None:
            self._sealer.add(tail, self._with_written())

    @classmethod
    def open(
        cls,
        directory: Path,
        instance: str,
        archive_directory: Path | None = None,
        options: JournalOptions = DEFAULT_OPTIONS,
        *,
        known: KnownLog | None = None,
        now_ns: int = 0,
        files: FileSystem | None = None,
        stopwatch: Callable[[], float] | None = None,
    ) -> Journal:
        """Lock the directory, recover, and be ready to write. `.recovery` says what was found.

        `known` is what the control plane last heard of this log. Raises OperatorError journal_locked, journal_other or
        journal_behind, or JournalError when the disk refuses. `now_ns` and `stopwatch` (seconds)
        are only for the report; the core doesn't read clocks.
        """
        files = files or FileSystem()
        started = stopwatch() if stopwatch else 0.0
        try:
            for place in (directory, archive_directory):
                if place is not None:
                    place.mkdir(parents=True, exist_ok=True)
            lock = lock_directory(directory / f"{instance}.lock")
            try:
                found = JournalRecovery(files, directory, instance, archive_directory, known)
                found.run()
                journal = cls(files, lock, directory, found, options)
            except BaseException:
                lock.close()
                raise
        except OSError as error:
            raise journal_error(error, "opening the journal") from error
        journal.recovery.opened_at = now_ns
        journal.recovery.seconds = stopwatch() - started if stopwatch else 0.0
        return journal

    # ------------------------------------------------------------------------------------------------ writing

    def write(self, batches: Sequence[Batch]) -> list[BatchPosition]:
        """Append stamped batches, in sequence order; where each stands. Nothing is durable before `sync`.

        All or none: a disk that is full raises JournalError disk_full, what was written of them is cut off again,
        and the next write can succeed. After any other refusal the journal takes nothing more (`failed`). Costs one pwritev for up to 1,024 batches.
        """
        if not batches:
            return []
        with self._lock:
            if self.failed is not None:
                raise self.failed
            following = self._following(batches)
            try:
                parts = self._appender.append(batches)
            except OSError as error:
                refused = journal_error(error, "the journal")
                if self._appender.broken or error.errno not in NO_ROOM:
                    self.failed = refused
                raise refused from error
            self._commit(parts)
            self.next_sequence = following
        if len(parts) == 1:
            return list(map(BatchPosition, repeat(parts[0].tail.segment.first_sequence), parts[0].offsets))
        return [
            BatchPosition(part.tail.segment.first_sequence, offset)
            for part in parts
            for offset in part.offsets
        ]

    def _following(self, batches: Sequence[Batch]) -> int:
        expected = self.next_sequence
        for batch in batches:
            header = batch.header
            if header.first_sequence != expected or header.flags:
                raise ValueError(f"batch {header.first_sequence} written where {expected} was expected")
            expected += header.count
        return expected

    def _commit(self, parts: Sequence[SegmentWrite]) -> None:
        written, log = self._written_numbers, self._log
        new = tuple(part.tail.segment for part in parts if part.tail is not self._appender.tail)
        # Publishers part by part: what is kept with a full segment must not know of later ones.
        for part in parts:
            for tail in self._appender.commit([part]):
                self._sealer.add(tail, self._with_written())
            newest = dict[tuple[int, int], Batch]()
            for batch in part.batches:
                header = batch.header
                if header.first_publisher_sequence:
                    key = header.publisher, header.session
                    newest.pop(key, None)  # the newest stands last, as in `Publishers`
                    newest[key] = batch
            for batch in newest.values():
                name_and_session = batch.publisher_name, batch.session
                written.pop(name_and_session, None)
                written[name_and_session] = batch.last_publisher_sequence
        if new:
            log.replace((*log.segments, *new))
            self._appender.skipped_from = 0  # the first of them says so now

    def reserve(self, upto: int) -> None:
        """Make it durable that numbers up to `upto` may be shown before they are stored. JournalError when
        the disk refuses.

        The next opening goes on behind them, so that none of them ever names another record.
        """
        try:
            self._frontier.reserve(upto)
        except OSError as error:
            raise journal_error(error, "the reservation of sequences") from error
        self.reserved = upto

    def skip_to(self, sequence: int) -> None:
        """Give the next record this number: those before it were shown for records that could not be stored.

        The caller must have nothing written that isn't durable, and `sequence - 1` reserved.
        """
        with self._lock:
            if sequence > self.next_sequence:
                assert self.durable_sequence == self.next_sequence - 1, "what is written is durable"
                self._appender.skipped_from = self._appender.skipped_from or self.next_sequence
                self.durable_sequence, self.next_sequence = sequence - 1, sequence
                self._end_segment()

    def _with_written(self) -> Publishers:
        """Publishers as of what is written, for what is closed and synced before anybody reads it."""
        noted = Publishers(self.publishers)
        for (name, session), number in self._written_numbers.items():
            noted.note(name, session, number)
        return noted

    def sync(self, heard: Callable[[], object] | None = None) -> None:
        """Make everything written so far durable; `durable_sequence` and the frontier file then say so.

        `heard` is called in between: whoever waits for the disk needn't wait for a file that only readers in other
        processes, and the next opening, look at. Raises JournalError journal_failed when the disk refuses; the journal then takes nothing more, because what
        a failed sync left of the written pages can't be known.
        """
        with self._syncing:
            with self._lock:
                if self.failed is not None:
                    raise self.failed
                written, numbers = self.next_sequence - 1, dict(self._written_numbers)
                tails = self._sealer.unsynced_tails()
                if self._appender.tail is not None:
                    tails.append(self._appender.tail)
                directory_changed, self._appender.directory_changed = self._appender.directory_changed, False
            if written == self.durable_sequence:
                if heard is not None:
                    heard()
                return
            try:
                for tail in tails:
                    self._files.fdatasync(tail.file.fd)
                if directory_changed:
                    self._files.sync_directory(self.directory)
            except OSError as error:
                self.failed = journal_error(error, "a sync of the journal", final=True)
                raise self.failed from error
            self._check(tails)
            self._durable(written, numbers)
            if heard is not None:
                heard()
            self.note_frontier()
        if len(self._sealer) > 1:
            with suppress(JournalError):
                self.finish_sealed()  # what is written is durable all the same; the next write says what is wrong

    def _durable(self, sequence: int, numbers: Mapping[tuple[str, int], int]) -> None:
        with self._lock:
            for (name, session), number in numbers.items():
                self.publishers.note(name, session, number)
                if self._written_numbers.get((name, session)) == number:
                    del self._written_numbers[name, session]
            self.durable_sequence = self.stored_sequence = sequence

    def check(self) -> None:
        """Whether this journal is still where others find it. For each second; every `sync` asks too.

        JournalError journal_taken when somebody removed, moved or replaced the lock or a segment that is written: the
        journal then takes nothing more, because another process may write there, or nobody would find the records.
        """
        with self._lock:
            tails = self._sealer.unsynced_tails()
            if self._appender.tail is not None:
                tails.append(self._appender.tail)
        self._check(tails)

    def _check(self, tails: Sequence[WriteTail]) -> None:
        taken = None if self._directory_lock.is_current else self._directory_lock.path
        for tail in tails:
            # One that is sealed may have been moved by a swap.
            if not tail.segment.sealed and not tail.file.is_current:
                taken = tail.file.path
        if taken is not None:
            self.failed = JournalError(
                "journal_taken",
                f"{taken} was removed, moved or replaced while the broker used it.",
                "Bring its files back, see that no second broker runs there, then start this one again.",
                path=str(taken),
            )
            raise self.failed

    def note_frontier(self) -> None:
        """Tell other processes how far the log is durable. `sync` does; once more costs nothing."""
        with suppress(OSError):
            self._frontier.write(self.stored_sequence)  # behind is allowed, see frontier_file.py

    def preallocate(self) -> int:
        """The chores that make the next roll cheap: closing full segments, and making spare ones. Returns spares made.

        For a thread that isn't in a hurry; safe at any time. JournalError disk_full when there is no room for
        spares: the journal then makes segments when it needs them. Takes seconds, with the disk at rest for most of them,
        unless the next segment will be needed soon; `close` ends it.
        """
        self.finish_sealed()
        try:
            return self._appender.spares.create_missing(self._rest)
        except OSError as error:
            raise journal_error(error, "spare segments") from error

    def _rest(self) -> bool:
        """Between two steps of making a spare: whether to go on."""
        return not self._closing.wait(0 if self._appender.needs_spare_segment else REST_S)

    def set_options(self, options: JournalOptions) -> None:
        """Other sizes from the next segment on; spares are renewed by `preallocate`. From any thread: takes no lock."""
        self.options = options
        self._appender.set_options(options)

    def finish_sealed(self) -> None:
        """Close full segments (see appender.py). Until then they count as current.

        JournalError when the disk refuses; the journal then takes nothing more, as after a sync that failed.
        """
        try:
            self._sealer.seal_pending()
        except JournalError as error:
            self.failed = error
            raise

    def close(self) -> None:
        """Sync, close what is open, note the publishers, and let go of the directory. Closing twice is harmless."""
        if self._closed:
            return
        self._closed = True
        self._closing.set()
        try:
            if self.failed is None:
                self.sync()
                self.finish_sealed()
                self._sealer.write_acks(self.stored_sequence, self.publishers)
                if self.reserved >= self.next_sequence:
                    with suppress(JournalError):  # then the next opening skips them
                        self.reserve(self.next_sequence - 1)
        except OSError as error:
            raise journal_error(error, "closing the journal") from error
        finally:
            self._appender.close()
            self._log.close()
            self._frontier.close()
            self._directory_lock.close()

    # ------------------------------------------------------------------------------------------------ reading

    @property
    def first_sequence(self) -> int:
        """The oldest record held; `next_sequence` when the log is empty."""
        segments = self._log.segments
        return segments[0].first_sequence if segments else self.next_sequence

    @property
    def begins_at(self) -> int:
        """The number before which records were removed: the oldest record's, or the first that was skipped
        before it."""
        skipped, first = self.skipped(), self.first_sequence
        return skipped[0][0] if skipped and skipped[0][1] + 1 == first else first

    @property
    def missing_ranges(self) -> list[MissingRange]:
        """Everything known to be unreadable, oldest first, between segments too."""
        return self._log.missing_ranges()

    def skipped(self) -> list[tuple[int, int]]:
        """Return the intervals of numbers that name no record and never will, oldest first: no gap and no
        damage.

        They were reserved for records that are shown before they are stored, and the broker ended, or the
        disk refused them.
        """
        # In this order: the writer puts a segment in place before it forgets these, and moves on after that.
        following, pending = self.next_sequence, self._appender.skipped_from
        found = self._log.skipped()
        return [*found, (pending, following - 1)] if pending else found

    def count(self, first: int, last: int) -> int:
        """Return how many numbers of an interval have or had a record: all but those that were skipped."""
        number = max(last - first + 1, 0)
        for begin, end in self.skipped():
            number -= max(min(end, last) - max(begin, first) + 1, 0)
        return number

    def lacks(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return what of an interval that can't be read is a loss: all but the numbers that were skipped."""
        return list(SequenceSet(self.skipped()).gaps_between(first, last)) if first <= last else []

    def read(self, sequence: int, max_bytes: int, upto: int) -> list[Batch]:
        """Whole, checked batches from the one with `sequence` on, about `max_bytes`, none with records > `upto`.

        One batch at least if there is one; [] at the end. The first may start before `sequence`. If the records
        from `sequence` on can't be read, the first starts behind it: the records between are a hole, told in
        `holes`; a read never goes over a hole in its middle. JournalError bookmark_gone when `sequence` is older
        than the log.
        """
        return self._read(sequence, max_bytes, upto)[1]

    def may_contain_topic(self, topic: str, sequence: int) -> bool:
        """Whether there may be a record of that topic from `sequence` on; False is certain, of all that is durable."""
        return self._log.may_contain_topic(topic, sequence)

    def next_sequence_of_topics(self, topics: Collection[str], sequence: int) -> int:
        """The first place from `sequence` on where a record of these topics may stand, as far as sealed segments tell by
        their sidecars; `sequence` itself where they don't. For the reader thread."""
        return self._log.next_sequence_of_topics(topics, sequence)

    def next_readable(self, sequence: int) -> int:
        """The first record at or after `sequence` that can be read: behind a hole, if there is one; else
        `next_sequence`. Where a read gives nothing although records are said to be there, go on from here."""
        batches = self._read(sequence, 1, self.next_sequence - 1)[1]
        return max(batches[0].first_sequence, sequence) if batches else self.next_sequence

    def read_with_positions(
        self, sequence: int, max_bytes: int, upto: int
    ) -> list[tuple[BatchPosition, Batch]]:
        """As `read`, with each batch's position."""
        segment, batches, offsets = self._read(sequence, max_bytes, upto)
        return list(zip(map(BatchPosition, repeat(segment), offsets), batches, strict=False))

    def _read(self, sequence: int, max_bytes: int, upto: int) -> tuple[int, list[Batch], list[int]]:
        first = self.first_sequence
        if sequence < first and sequence < self.begins_at:
            raise JournalError(
                "bookmark_gone",
                f"Record {sequence} isn't in the log any more; the oldest is {first}.",
                "Go on from the oldest record, or from now.",
                first=first,
                sequence=sequence,
            )
        if sequence > upto or sequence >= self.next_sequence:
            return 0, [], []
        return self._log.read(sequence, max_bytes, upto)

    def read_at(self, position: BatchPosition, length: int) -> Batch:
        """The batch of `length` bytes at a position, as `write` gave it. JournalError if it is gone or damaged."""
        return self._log.read_at(position, length)

    def read_span(self, position: BatchPosition, length: int) -> list[tuple[int, Batch]]:
        """(offset, batch) of the whole batches in `length` bytes at a position, up to the first that is damaged.

        One at least: JournalError if that is gone or damaged.
        """
        batches, offsets = self._log.read_span(position, length)
        return list(zip(offsets, batches, strict=True))

    def sequence_at(self, moment_ns: int) -> int:
        """The first record accepted at or after a moment; `next_sequence` when there is none yet."""
        found = self._log.sequence_at(moment_ns)
        return self.next_sequence if found is None else found

    def segments(self) -> list[SegmentInfo]:
        """All segments, oldest first."""
        return [segment.info() for segment in self._log.segments]

    def bytes_held_from(self, sequence: int) -> int:
        """Of the segments that can't be removed while this record is needed."""
        return self._log.bytes_held_from(sequence)

    # ------------------------------------------------------------------------------------------------ keeping

    def pin(self, sequence: int, owner: str = "", holder: str = "") -> Pin:
        """Keep everything from `sequence` on until the pin moves or is released. `holder`: for whose name, if that is to be limited."""
        return self._pins.add(sequence, owner, holder)

    def pins(self) -> list[Pin]:
        """Who holds what."""
        return self._pins.all()

    def set_user_lookup(self, user_of: Callable[[str], str]) -> Callable[[str, str], None]:
        """Who knows whose the names are that pins are held for; gives what is to be told of names that become another's."""
        self._pins.set_user_lookup(user_of)
        return self._pins.set_user

    def bytes_held_by(self, user: str) -> int:
        """Of the segments that what is held for a user's names keeps."""
        first = self._pins.first_pinned_by(user)
        return self.bytes_held_from(first) if first is not None else 0

    def archive_swap(self, name: str, prepared: Path) -> None:
        """Replace a sealed segment by its verified copy in the archive directory."""
        self._swaps.archive(name, prepared)

    def compress_swap(self, name: str, prepared: Path) -> None:
        """Replace a sealed or archived segment by its compressed form."""
        self._swaps.compress(name, prepared)

    def remove(self, names: Sequence[str], now_ns: int = 0) -> RemovalReply:
        """Remove the oldest segments, all named, none of them current or pinned. `now_ns` is noted."""
        return self._swaps.remove(names, now_ns)
