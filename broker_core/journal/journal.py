"""Journal of one instance: its ordered segments, written at one end and read anywhere.

    write -> sync -> read up to the durable frontier      (group commit: commit_log)

A directory lock ensures a single writer. `write`, `sync`, `preallocate`, reads and swaps may run in different
threads. Their shared state changes under one lock. Readers take no lock: they work on an immutable tuple of
segments, and on files that stay open while a reader uses them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from threading import Event, Lock

from broker_core.batch import UNCERTAIN_TIME, Batch, hash64
from broker_core.documents.journals import RemovalReply
from broker_core.errors import JournalError
from broker_core.journal.appender import Appender, JournalOptions, SegmentSealer, SegmentWrite, WriteTail
from broker_core.journal.files import DISK_FULL_ERRNOS, FileSystem, OpenFile, journal_error, lock_directory
from broker_core.journal.frontier_file import FrontierFile, KnownLog, frontier_path
from broker_core.journal.log_reader import LogReader
from broker_core.journal.open_segments import Pin, PinTable, Segment
from broker_core.journal.publishers import Publishers
from broker_core.journal.reader_leases import read_leases
from broker_core.journal.recovery import JournalRecovery, RecoveryReport
from broker_core.journal.removal_records import RemovalReceipts, RemovedInterval, removed_intervals
from broker_core.journal.segment import BatchPosition, SegmentInfo
from broker_core.journal.segment_index import UNKNOWN_RECORDS, MissingRange
from broker_core.journal.segment_replacer import SegmentReplacer
from broker_core.sequence_set import SequenceSet

DEFAULT_OPTIONS = JournalOptions()
SPARE_STEP_PAUSE_S = 0.01
"""Pause in seconds between two steps of making a spare segment.

128 MiB then take some six seconds, of which the disk is busy less than one.
"""


class Journal:
    """Transaction log of one instance. Create it with `Journal.open`."""

    def __init__(
        self,
        files: FileSystem,
        lock: OpenFile,
        directory: Path,
        recovery: JournalRecovery,
        options: JournalOptions,
    ) -> None:
        self.instance = recovery.instance
        self.origin = hash64(recovery.instance)
        self.identity = recovery.log
        """UUID of the log, independent of the instance's name."""
        self.epoch = recovery.epoch
        self.directory = directory
        self.options = options
        self.recovery: RecoveryReport = recovery.report
        self.publishers: Publishers = recovery.publishers
        """Newest durable publisher sequence of each session."""
        self._written_numbers: dict[tuple[str, int], int] = {}
        """Publisher sequences that are written and not yet durable, by name and session, newest last."""
        self.last_at = max((segment.index.last_at for segment in recovery.segments), default=0)
        """Latest acceptance time of a record found at opening, ns UTC."""
        self.next_sequence = recovery.next_sequence
        self.durable_sequence = recovery.next_sequence - 1
        self.stored_sequence = recovery.last_stored
        """Newest sequence with a durable record. Smaller than `durable_sequence` after sequences were
        skipped."""
        self.reserved = recovery.mark.reserved
        """Newest sequence that may be shown to subscribers before its record is stored."""
        self.files = self._files = files
        """File system used for the log, and for all other files of the instance beside it."""
        self._directory_lock = lock
        self._lock = Lock()
        self._pins = PinTable()
        self._log = LogReader(recovery.instance, tuple(recovery.segments), recovery.log)
        self._receipts = RemovalReceipts(files, directory, recovery.instance)
        self._removed: tuple[tuple[int, int, int], list[RemovedInterval]] = ((0, 0, 0), [])
        """Intervals before the oldest record, after the values for which they were computed."""
        self._swaps = SegmentReplacer(
            files, self._log, self._lock, recovery.archive_directory, self._pins_and_leases, self._receipts
        )
        self._appender = Appender(files, directory, recovery.instance, recovery.log, recovery.epoch, options)
        self._sealer = SegmentSealer(files, directory, recovery.instance)
        self._syncing = Lock()
        self.failure: JournalError | None = None
        """Error after which the journal accepts no more writes; None while it is healthy.

        Either the content of the disk is unknown, or another process may own the files.
        """
        self._closed = False
        self._closing = Event()
        self._frontier = FrontierFile(files, frontier_path(directory, recovery.instance), recovery.mark)
        self._appender.skipped_from = recovery.skipped_from
        last = recovery.segments[-1] if recovery.segments else None
        if last is not None and not last.sealed:
            self._go_on(last)
        self.note_frontier()

    def _go_on(self, last: Segment) -> None:
        """Continue the current segment that recovery found; end it if sequences were skipped after it."""
        self._appender.continue_segment(last)
        if last.index.last_sequence + 1 != self.next_sequence:
            self._end_segment()

    def _end_segment(self) -> None:
        """Make the next record begin a new segment.

        After a skip the numbers before it name no record, so only a new segment's file name gives its first
        sequence.
        """
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
        """Lock the directory, recover the log and make it writable. `.recovery` reports the findings.

        Args:
            directory: Directory of the segments; created if missing.
            instance: Name of the instance.
            archive_directory: Directory of archived segments, or None.
            options: Sizes of segments.
            known: Identity and frontier of this log that the control plane last received.
            now_ns: Time for the report only; the core reads no clock.
            files: File system; a test may pass one that fails.
            stopwatch: Clock in seconds, for the report only.

        Raises:
            OperatorError: journal_locked, journal_other or journal_behind.
            JournalError: the disk refuses an operation.
        """
        files = files or FileSystem()
        started = stopwatch() if stopwatch else 0.0
        try:
            for path in (directory, archive_directory):
                if path is not None:
                    path.mkdir(parents=True, exist_ok=True)
            lock = lock_directory(directory / f"{instance}.lock")
            try:
                recovery = JournalRecovery(files, directory, instance, archive_directory, known)
                recovery.run()
                journal = cls(files, lock, directory, recovery, options)
            except BaseException:
                lock.close()
                raise
        except OSError as error:
            raise journal_error(error, "opening the journal") from error
        # A receipt that can't be rewritten now only makes Spark jobs wait for its removal.
        with suppress(OSError, JournalError):
            journal._withdraw_receipts()
        journal.recovery.opened_at = now_ns
        journal.recovery.seconds = stopwatch() - started if stopwatch else 0.0
        return journal

    # ------------------------------------------------------------------------------------------------ writing

    def write(self, batches: Sequence[Batch]) -> list[BatchPosition]:
        """Append stamped batches in sequence order, and return their positions. `sync` makes them durable.

        Writes all batches or none: on a full disk it raises JournalError disk_full, cuts off the bytes
        written, and the next write may succeed. Any other error sets `failure`, and the journal accepts
        nothing more. Costs one pwritev for up to 1,024 batches.
        """
        if not batches:
            return []
        with self._lock:
            if self.failure is not None:
                raise self.failure
            following = self._sequence_after(batches)
            try:
                parts = self._appender.append(batches)
            except OSError as error:
                refused = journal_error(error, "the journal")
                if self._appender.has_partial_append or error.errno not in DISK_FULL_ERRNOS:
                    self.failure = refused
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

    def _sequence_after(self, batches: Sequence[Batch]) -> int:
        """Return the sequence after the batches. Raises ValueError if they don't follow `next_sequence`."""
        expected = self.next_sequence
        for batch in batches:
            header = batch.header
            if header.first_sequence != expected or header.flags & ~UNCERTAIN_TIME:
                raise ValueError(f"batch {header.first_sequence} written where {expected} was expected")
            expected += header.count
        return expected

    def _commit(self, parts: Sequence[SegmentWrite]) -> None:
        """Make written parts visible to readers, seal full segments and note the publishers."""
        written, log = self._written_numbers, self._log
        new = tuple(part.tail.segment for part in parts if part.tail is not self._appender.tail)
        # Note publishers part by part: the publishers stored with a full segment must not include later
        # records.
        for part in parts:
            for tail in self._appender.commit([part]):
                self._sealer.add(tail, self._with_written())
            newest = dict[tuple[int, int], Batch]()
            for batch in part.batches:
                header = batch.header
                if header.first_publisher_sequence:
                    key = header.publisher, header.session
                    newest.pop(key, None)  # newest last, as in `Publishers`
                    newest[key] = batch
            for batch in newest.values():
                name_and_session = batch.publisher_name, batch.session
                written.pop(name_and_session, None)
                written[name_and_session] = batch.last_publisher_sequence
        if new:
            log.replace((*log.segments, *new))
            self._appender.skipped_from = 0  # its first new segment has this number in its header

    def reserve(self, upto: int) -> None:
        """Make durable that sequences up to `upto` may be shown before their records are stored.

        The next opening continues after them, so none of them ever names another record. Raises
        JournalError.
        """
        try:
            self._frontier.reserve(upto)
        except OSError as error:
            raise journal_error(error, "the reservation of sequences") from error
        self.reserved = upto

    def skip_to(self, sequence: int) -> None:
        """Give the next record this sequence; those before it were shown for records that were not stored.

        Precondition: everything written is durable, and `sequence - 1` is reserved.
        """
        with self._lock:
            if sequence > self.next_sequence:
                assert self.durable_sequence == self.next_sequence - 1, "what is written is durable"
                self._appender.skipped_from = self._appender.skipped_from or self.next_sequence
                self.durable_sequence, self.next_sequence = sequence - 1, sequence
                self._end_segment()

    def _with_written(self) -> Publishers:
        """Return the publishers including written records, not only durable ones.

        They are stored with a sealed segment, which is synced first.
        """
        noted = Publishers(self.publishers)
        for (name, session), number in self._written_numbers.items():
            noted.note(name, session, number)
        return noted

    def sync(self, on_durable: Callable[[], object] | None = None) -> None:
        """Make everything written so far durable, then update `durable_sequence` and the frontier file.

        `on_durable` is called after the fdatasync and before the frontier file is written: acknowledgements
        don't have to wait for a file that only other processes and the next opening read. Raises JournalError
        journal_failed when the disk refuses. The journal then accepts nothing more, because after a failed
        sync the state of the written pages is unknown.
        """
        with self._syncing:
            with self._lock:
                if self.failure is not None:
                    raise self.failure
                # Take the state before the fdatasync: batches written during it are not covered by it.
                written, numbers = self.next_sequence - 1, dict(self._written_numbers)
                tails = self._sealer.unsynced_tails()
                if self._appender.tail is not None:
                    tails.append(self._appender.tail)
                needs_directory_sync, self._appender.needs_directory_sync = (
                    self._appender.needs_directory_sync,
                    False,
                )
            if written == self.durable_sequence:
                if on_durable is not None:
                    on_durable()
                return
            try:
                for tail in tails:
                    self._files.fdatasync(tail.file.fd)
                if needs_directory_sync:
                    self._files.sync_directory(self.directory)
            except OSError as error:
                self.failure = journal_error(error, "a sync of the journal", final=True)
                raise self.failure from error
            # Check after the fdatasync and before the acknowledgements: it may have synced a file that was
            # removed or replaced.
            self._check(tails)
            self._durable(written, numbers)
            if on_durable is not None:
                on_durable()
            self.note_frontier()
        if len(self._sealer) > 1:
            with suppress(JournalError):
                self.finish_sealed()  # the records are durable; the next write raises the error

    def _durable(self, sequence: int, numbers: Mapping[tuple[str, int], int]) -> None:
        """Record that everything up to `sequence` is durable, with the publishers' `numbers` of that time."""
        with self._lock:
            for (name, session), number in numbers.items():
                self.publishers.note(name, session, number)
                if self._written_numbers.get((name, session)) == number:
                    del self._written_numbers[name, session]
            self.durable_sequence = self.stored_sequence = sequence

    def check(self) -> None:
        """Check that the lock and the segments being written are still at their paths. Call it once a second.

        `sync` checks too. Raises JournalError journal_taken when a file was removed, moved, replaced or cut.
        The journal then accepts nothing more: another process may write there, or readers would not find
        the records.
        """
        with self._lock:
            tails = self._sealer.unsynced_tails()
            if self._appender.tail is not None:
                tails.append(self._appender.tail)
        self._check(tails)

    def _check(self, tails: Sequence[WriteTail]) -> None:
        """Raise JournalError journal_taken if the lock or an unsealed segment isn't at its path or is cut."""
        cut = next((one for one in tails if not one.segment.sealed and one.was_cut), None)
        if cut is not None:
            self.failure = JournalError(
                "journal_taken",
                f"Another process has cut {cut.file.path} while the broker wrote it: records are lost.",
                "Find that process, bring the file back from a copy, then start the broker again.",
                path=str(cut.file.path),
            )
            raise self.failure
        replaced_path = None if self._directory_lock.is_current else self._directory_lock.path
        for tail in tails:
            # A swap may have moved a sealed segment.
            if not tail.segment.sealed and not tail.file.is_current:
                replaced_path = tail.file.path
        if replaced_path is not None:
            self.failure = JournalError(
                "journal_taken",
                f"{replaced_path} was removed, moved or replaced while the broker used it.",
                "Bring its files back, see that no second broker runs there, then start this one again.",
                path=str(replaced_path),
            )
            raise self.failure

    def note_frontier(self) -> None:
        """Write the durable frontier to its file for other processes.

        `sync` does so; a repetition costs nothing.
        """
        with suppress(OSError):
            self._frontier.write(self.stored_sequence)  # the file may lag behind, see frontier_file.py

    def preallocate(self) -> int:
        """Seal full segments and make spare ones for a cheap roll; return the number of spares made.

        Run it in a background thread; it may be called at any time. It takes seconds, with pauses for the
        disk unless the next segment is needed soon. `close` interrupts it. Raises JournalError disk_full
        without space for spares: the journal then makes each segment when it needs it.
        """
        self.finish_sealed()
        try:
            return self._appender.spares.create_missing(self._pause)
        except OSError as error:
            raise journal_error(error, "spare segments") from error

    def _pause(self) -> bool:
        """Pause between two steps of making a spare; return whether to continue."""
        return not self._closing.wait(0 if self._appender.needs_spare_segment else SPARE_STEP_PAUSE_S)

    def set_options(self, options: JournalOptions) -> None:
        """Set the sizes from the next segment on; `preallocate` renews the spares.

        Takes no lock: call from any thread.
        """
        self.options = options
        self._appender.set_options(options)

    def finish_sealed(self) -> None:
        """Seal full segments (see appender.py). Until then they count as current.

        Raises JournalError when the disk refuses. The journal then accepts nothing more, as after a failed
        sync.
        """
        try:
            self._sealer.seal_pending()
        except JournalError as error:
            self.failure = error
            raise

    def close(self) -> None:
        """Sync, seal, store the publishers and unlock the directory. A second call has no effect."""
        if self._closed:
            return
        self._closed = True
        self._closing.set()
        try:
            if self.failure is None:
                self.sync()
                self.finish_sealed()
                self._sealer.write_acks(self.stored_sequence, self.publishers)
                if self.reserved >= self.next_sequence:
                    with suppress(JournalError):  # then the next opening skips the reserved numbers
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
        """Sequence of the oldest record in the log; `next_sequence` when the log is empty."""
        segments = self._log.segments
        return segments[0].first_sequence if segments else self.next_sequence

    @property
    def begins_at(self) -> int:
        """First sequence that was not removed: the oldest record's, or the first one skipped before it."""
        skipped, first = self.skipped(), self.first_sequence
        return skipped[0][0] if skipped and skipped[0][1] + 1 == first else first

    @property
    def missing_ranges(self) -> list[MissingRange]:
        """Ranges known to be unreadable, oldest first, including ranges between segments."""
        return self._log.missing_ranges()

    def skipped(self) -> list[tuple[int, int]]:
        """Return the intervals of sequences that name no record and never will, oldest first.

        They are neither gaps nor damage: they were reserved for records to show before they are stored, and
        then the broker ended or the disk refused the records.
        """
        # This order matters: the writer adds a segment before it clears `skipped_from`, and increases
        # `next_sequence` after that.
        following, pending = self.next_sequence, self._appender.skipped_from
        found = self._log.skipped()
        return [*found, (pending, following - 1)] if pending else found

    def count(self, first: int, last: int) -> int:
        """Return how many sequences of an interval have or had a record: all except skipped ones."""
        number = max(last - first + 1, 0)
        for begin, end in self.skipped():
            number -= max(min(end, last) - max(begin, first) + 1, 0)
        return number

    def lacks(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the lost parts of an interval that can't be read: all except skipped sequences."""
        return list(SequenceSet(self.skipped()).gaps_between(first, last)) if first <= last else []

    def removed_intervals(self) -> list[RemovedInterval]:
        """Return the intervals before the oldest record, oldest first."""
        oldest_at = next((one.index.first_at for one in self._log.segments), self.last_at)
        removals, oldest = self._receipts.known, self.begins_at
        known = (removals[-1].last if removals else 0, oldest, oldest_at)
        if self._removed[0] != known:
            self._removed = known, removed_intervals(removals, oldest, oldest_at)
        return self._removed[1]

    def gaps(self, first: int, last: int) -> list[tuple[int, int, bool]]:
        """Return the parts of `lacks`, divided by whether they may have been skipped, oldest first.

        A part is (first, last, True) if it isn't known whether records ever had these sequences.
        """
        lost = self.lacks(first, last)
        unknown = SequenceSet(
            (hole.first_sequence, hole.last_sequence)
            for hole in self.missing_ranges
            if hole.why == UNKNOWN_RECORDS
        )
        known = [part for one in lost for part in unknown.gaps_between(*one)]
        doubtful = [part for one in lost for part in SequenceSet(known).gaps_between(*one)]
        return sorted([*((*part, False) for part in known), *((*part, True) for part in doubtful)])

    def read(self, sequence: int, max_bytes: int, upto: int) -> list[Batch]:
        """Read whole, checked batches from the one with `sequence` on, about `max_bytes`, none beyond `upto`.

        Returns at least one batch if there is one, and [] at the end. The first batch may start before
        `sequence`. When the records at `sequence` can't be read, the first batch starts after them, and
        `missing_ranges` has the range. A read never crosses a missing range. Raises JournalError
        bookmark_gone when `sequence` is older than the log.
        """
        return self._read(sequence, max_bytes, upto)[1]

    def may_contain_topic(self, topic: str, sequence: int) -> bool:
        """Return whether the log may have a record of this topic from `sequence` on.

        False is certain for durable records.
        """
        return self._log.may_contain_topic(topic, sequence)

    def next_sequence_of_topics(self, topics: Collection[str], sequence: int) -> int:
        """Return the first sequence, from `sequence` on, at which a record of these topics may be.

        Only sidecars of sealed segments are searched; the result is `sequence` itself where they are missing.
        Call it in the reader thread.
        """
        return self._log.next_sequence_of_topics(topics, sequence)

    def next_readable(self, sequence: int) -> int:
        """Return the first readable sequence from `sequence` on; `next_sequence` if there is none.

        Continue here when a read returns nothing although the log should have records.
        """
        batches = self._read(sequence, 1, self.next_sequence - 1)[1]
        return max(batches[0].first_sequence, sequence) if batches else self.next_sequence

    def read_with_positions(
        self, sequence: int, max_bytes: int, upto: int
    ) -> list[tuple[BatchPosition, Batch]]:
        """Read as `read` does, and return each batch with its position."""
        segment, batches, offsets = self._read(sequence, max_bytes, upto)
        return list(zip(map(BatchPosition, repeat(segment), offsets), batches, strict=False))

    def _read(self, sequence: int, max_bytes: int, upto: int) -> tuple[int, list[Batch], list[int]]:
        """Read as `read` does, with the segment's first sequence and the offsets.

        Raises JournalError bookmark_gone.
        """
        first = self.first_sequence
        if sequence < first and sequence < self.begins_at:
            raise JournalError(
                "bookmark_gone",
                f"Record {sequence} is no longer in the log; the oldest is {first}.",
                "Continue from the oldest record, or from now.",
                first=first,
                sequence=sequence,
            )
        if sequence > upto or sequence >= self.next_sequence:
            return 0, [], []
        return self._log.read(sequence, max_bytes, upto)

    def read_at(self, position: BatchPosition, length: int) -> Batch:
        """Read the batch of `length` bytes at a position that `write` returned.

        Raises JournalError if it was removed or is damaged.
        """
        return self._log.read_at(position, length)

    def read_span(self, position: BatchPosition, length: int) -> list[tuple[int, Batch]]:
        """Read the batches in `length` bytes at a position, as (offset, batch), up to the first damaged one.

        Returns at least one; raises JournalError if the first was removed or is damaged.
        """
        batches, offsets = self._log.read_span(position, length)
        return list(zip(offsets, batches, strict=True))

    def sequence_at(self, moment_ns: int) -> int:
        """Return the first sequence accepted at or after a moment (ns UTC); `next_sequence` if none is.

        Unreadable records just before it may have been accepted after the moment too, so their range counts.
        """
        found = self._log.sequence_at(moment_ns)
        if found is None:
            return self.next_sequence
        for hole in reversed(self._log.missing_ranges()):
            if hole.last_sequence + 1 == found:
                found = hole.first_sequence
        return found

    def segments(self) -> list[SegmentInfo]:
        """Return all segments, oldest first."""
        return [segment.info() for segment in self._log.segments]

    def bytes_pinned_from(self, sequence: int) -> int:
        """Return the bytes of the segments that can't be removed while the record `sequence` is needed."""
        return self._log.bytes_pinned_from(sequence)

    # ------------------------------------------------------------------------------------------------ keeping

    def pin(self, sequence: int, owner: str = "", holder: str = "") -> Pin:
        """Pin the log from `sequence` on until the pin moves or is released.

        `owner` describes the pin to operators. `holder` is the client name to which the pinned bytes count,
        "" for none.
        """
        return self._pins.add(sequence, owner, holder)

    def pins(self) -> list[Pin]:
        """Return all pins."""
        return self._pins.list_pins()

    def _withdraw_receipts(self) -> None:
        """Withdraw what an interrupted removal's receipt says about records that are still stored."""
        if self._log.segments:
            self._receipts.withdraw_from(self.first_sequence)

    def _pins_and_leases(self, now_ns: int) -> list[Pin]:
        """Return the pins of this process, and the valid leases of others."""
        return [*self._pins.list_pins(), *read_leases(self.directory, self.instance, now_ns)]

    def set_user_lookup(self, user_of: Callable[[str], str]) -> Callable[[str, str], None]:
        """Set the function that maps a client name to its user; return a callback for later changes.

        Call the callback with (name, user).
        """
        self._pins.set_user_lookup(user_of)
        return self._pins.set_user

    def bytes_pinned_by(self, user: str) -> int:
        """Return the bytes of the segments that the pins of a user's client names keep."""
        first = self._pins.first_pinned_by(user)
        return self.bytes_pinned_from(first) if first is not None else 0

    def archive_swap(self, name: str, prepared: Path) -> None:
        """Replace a sealed segment by its verified copy in the archive directory."""
        self._swaps.archive(name, prepared)

    def compress_swap(self, name: str, prepared: Path) -> None:
        """Replace a sealed or archived segment by its compressed form."""
        self._swaps.compress(name, prepared)

    def remove(self, names: Sequence[str], now_ns: int = 0) -> RemovalReply:
        """Remove the oldest segments; `names` lists all of them in order.

        None may be current, pinned or leased at `now_ns`, which is stored in the removal record. Raises
        OperatorError.
        """
        return self._swaps.remove(names, now_ns)
