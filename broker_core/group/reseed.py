"""Repairs of a member by an operator, while its broker is stopped.

init     makes a new log that begins with this member's journal: for a broker that had no group, or if the log
         service lost its log
join     gives a member without a journal another member's journal, or lets it begin with the log's first
         entry
reseed   the same for a member whose journal differs, or is too far behind: its files are moved aside first,
         and never removed

Each repair is planned first (`ReseedPlan`), and reports afterwards (`ReseedReceipt`). The source's journal
is copied to a directory beside the member's own. There every batch is checked, and the hash chain is
computed from the beginning. Only then is the copy moved into place.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from typing import Literal, NamedTuple
from uuid import UUID, uuid4

from msgspec import Struct, json

from broker_core.batch import Batch
from broker_core.errors import JournalError, OperatorError
from broker_core.group.engine_log import LogServiceUnavailableError, SharedLog, StreamInfo, StreamOrigin
from broker_core.group.hash_chain import DIGEST, HashChain, chain_path, load_chain, read_chain, write_chain
from broker_core.group.state_machine import (
    JournalEnd,
    applied_position,
    is_batch_of_entry,
    journal_end,
)
from broker_core.journal.files import FileSystem, journal_error, lock_directory, replace_durably
from broker_core.journal.frontier_file import KnownLog
from broker_core.journal.journal import Journal
from broker_core.journal.recovery import RESEEDING_SUFFIX
from broker_core.journal.segment import HEADER_SIZE, SegmentFile, find_segment_files
from broker_core.journal.segment_reader import iter_batches, open_source, read_header
from broker_core.journal.tools.inspect import segment_files, verify_segments

ReportProgress = Callable[[str], None]
_READ_BYTES = 8 * 1024 * 1024
"""Bytes of one read of the journal."""
_COPIED_SUFFIXES = (".clients.ack", ".owners", ".removed.json", ".chain", ".durable")
"""Endings of the files copied with the segments, the durable mark last.

Positions and leases aren't copied: they belong to the source member. The names of users belong to the
group.
"""
_STAGING_PREFIX = "reseed-"
"""Prefix of the directory that receives the copy."""
_MAX_COPY_ATTEMPTS = 3
"""Attempts to copy a journal whose files change meanwhile."""


class SegmentDirectories(NamedTuple):
    """The directories of a member's segments."""

    journal: Path
    archive: Path | None = None


class JournalExtent(Struct, frozen=True):
    """First and last record of a journal, and the newest entry of the group's log that it has applied.

    `entry` is a position in `generation`; both are 0 if a broker without a group wrote the newest record.
    """

    log: str
    first: int
    last: int
    entry: int
    generation: int


class ReseedPlan(Struct, frozen=True):
    """Steps of a repair, to be confirmed by the operator. `own` is None for a member without records."""

    act: Literal["init", "join", "reseed"]
    instance: str
    member: str
    directory: str
    own: JournalExtent | None
    log: str
    generation: int
    first: int
    last: int
    source: str
    source_has: JournalExtent | None
    aside: str
    steps: list[str]


class ReseedReceipt(Struct, frozen=True):
    """Result of a repair: the plan, and the contents of the member's journal. `chain`: its hash, hex."""

    plan: ReseedPlan
    done_at: str
    generation: int
    records: int
    entry: int
    chain: str


async def find_stream(log_service: SharedLog) -> StreamInfo | None:
    """Return the group's log at the log service; None if there is none.

    Closes `log_service`. Raises OperatorError engine_away, wrong_stream.
    """
    try:
        return await log_service.attach(None)
    except LogServiceUnavailableError as problem:
        raise OperatorError(
            "engine_away",
            f"The log service isn't reachable: {problem}.",
            "Nothing was changed. Start the servers of the log service, or check SLUICE_GROUP_ENGINES.",
        ) from None
    except OperatorError as problem:
        if problem.code != "engine_lost":
            raise
        return None
    finally:
        await log_service.close()


def read_extent(directories: SegmentDirectories, instance: str) -> JournalExtent | None:
    """Read the contents of a journal without its lock; None without records.

    Raises OperatorError no_journal; JournalError.
    """
    files = segment_files(directories.journal, instance, directories.archive)
    found = _find_newest_batch(files)
    if found is None:
        return None
    file, newest = found
    end = JournalEnd.from_newest_batch(newest)
    log = read_header(open_source(file.path)).log
    return JournalExtent(str(log), files[0].first_sequence, end.sequence, end.position.entry, end.generation)


def _find_newest_batch(files: list[SegmentFile]) -> tuple[SegmentFile, Batch] | None:
    """Return the newest batch of a journal and its segment; None when there are no records."""
    for file in reversed(files):
        newest: Batch | None = None
        for walked in iter_batches(file.path, HEADER_SIZE):
            newest = walked.batches[-1] if walked.batches else newest
        if newest is not None:
            return file, newest
    return None


async def has_other_entries(
    log_service: SharedLog, stream: StreamInfo | None, directories: SegmentDirectories, instance: str
) -> bool:
    """Return whether the log has another entry in the place of the one that a journal's newest batch is of.

    Raises OperatorError engine_away, wrong_stream.
    """
    newest = _find_newest_batch(segment_files(directories.journal, instance, directories.archive))
    if stream is None or newest is None:
        return False
    end = JournalEnd.from_newest_batch(newest[1])
    if end.generation != stream.generation or not stream.first <= end.position.entry <= stream.last:
        return False
    try:
        await log_service.attach(None)
        await log_service.read_from(end.position.entry)
        entries = await log_service.next_entry(1)
    except LogServiceUnavailableError as problem:
        raise OperatorError(
            "engine_away",
            f"The log can't be read: {problem}.",
            "Nothing was changed. Start the servers of the log service.",
        ) from None
    finally:
        await log_service.close()
    return not is_batch_of_entry(newest[1], entries[0])


# init


def plan_empty(
    directories: SegmentDirectories, instance: str, member: str, stream: StreamInfo | None, known_records: int
) -> ReseedPlan:
    """Plan a log that begins with record 1, for a group that lost all its journals.

    `known_records`: records of the group that the control plane knows. Raises OperatorError log_exists,
    journal_there.
    """
    directories.journal.mkdir(parents=True, exist_ok=True)
    extent = read_extent(directories, instance)
    if extent is not None or find_segment_files(directories.journal, instance, directories.archive):
        raise OperatorError(
            "journal_there",
            f"{directories.journal} has segments of {instance}.",
            "Omit --empty, and the new log continues after them.",
        )
    if stream is not None:
        raise OperatorError(
            "log_exists",
            f"The log service already has a log of {instance}: log {stream.log}, with {stream.last} entries.",
            "To join it: `replication join`.",
            log=str(stream.log),
        )
    log = uuid4()
    return ReseedPlan(
        "init",
        instance,
        member,
        str(directories.journal),
        None,
        str(log),
        1,
        0,
        0,
        "",
        None,
        "",
        [
            f"give up {known_records} records that the control plane knows of {instance}: no member has them",
            f"make a log {log} in the log service that begins with record 1",
            "bookmarks from before will refer to other records",
        ],
    )


async def begin_empty(
    plan: ReseedPlan, log_service: SharedLog, now: str, report_progress: ReportProgress
) -> ReseedReceipt:
    """Create the log as planned. Closes `log_service`.

    Raises OperatorError log_exists if another member created it meanwhile, and engine_away.
    """
    try:
        stream = await log_service.create_stream(StreamOrigin(UUID(plan.log), plan.generation))
    except LogServiceUnavailableError as problem:
        raise OperatorError(
            "engine_away", f"The log couldn't be made: {problem}.", "Nothing was changed. Try again."
        ) from None
    finally:
        await log_service.close()
    report_progress(f"the log service has log {stream.log}, generation {stream.generation}")
    return ReseedReceipt(plan, now, stream.generation, 0, 0, "")


def plan_init(
    directories: SegmentDirectories,
    instance: str,
    member: str,
    stream: StreamInfo | None,
    *,
    replace: bool = False,
    other_entries: bool = False,
) -> ReseedPlan:
    """Plan a new log that begins with this member's journal.

    `replace`: also if the log service has a log, unless that log is complete and this journal's own.
    `other_entries`: as `has_other_entries` returns. Raises OperatorError log_exists, no_journal.
    """
    extent = read_extent(directories, instance)
    if extent is None:
        raise OperatorError(
            "no_journal",
            f"{directories.journal} has no record of {instance}.",
            "The first member of a group creates the log automatically: start its broker.",
        )
    steps = []
    if stream is not None:
        if not other_entries:
            _check_replaceable(extent, stream)
        description = f"log {stream.log}, generation {stream.generation}, with {stream.last} entries"
        if not replace:
            raise OperatorError(
                "log_exists",
                f"The log service already has a log of {instance}: {description}.",
                "To join it: `replication reseed`. To set it aside, and continue with this journal "
                "instead: `replication init --replace`.",
                log=str(stream.log),
            )
        steps = [
            f"set the log service's {description} aside: it is retained, and no member appends to it again"
        ]
    return ReseedPlan(
        "init",
        instance,
        member,
        str(directories.journal),
        extent,
        extent.log,
        extent.generation + 1,
        stream.first if stream is not None else 0,
        stream.last if stream is not None else 0,
        "",
        None,
        "",
        [
            f"open the journal in {directories.journal}: records {extent.first} to {extent.last}, "
            f"log {extent.log}",
            "compute its hash",
            *steps,
            f"make a log in the log service that continues after record {extent.last}, in a new generation",
        ],
    )


def _check_replaceable(extent: JournalExtent, stream: StreamInfo) -> None:
    """Raise OperatorError log_exists if the log service's log is complete and this journal's own.

    It is complete if it has all that the journal has applied, or has continued in a later generation. Then
    the journal may be wrong, not the log.
    """
    if extent.log != str(stream.log) or not extent.generation or extent.generation > stream.generation:
        return
    if extent.generation < stream.generation or extent.entry <= stream.last:
        raise OperatorError(
            "log_exists",
            f"The log service's log is this journal's own, in generation {stream.generation}, with "
            f"{stream.last} entries; the journal has applied {extent.entry} of generation "
            f"{extent.generation}.",
            "No replacement is needed. Start the broker; if it can't join: `replication reseed`.",
            log=str(stream.log),
        )


async def init_group(
    plan: ReseedPlan,
    directories: SegmentDirectories,
    stream: StreamInfo | None,
    log_service: SharedLog,
    now: str,
    report_progress: ReportProgress,
) -> ReseedReceipt:
    """Create the log as planned. Closes `log_service`.

    Raises OperatorError log_exists if another member was faster, engine_away; journal_locked while the
    broker runs.
    """
    journal = Journal.open(directories.journal, plan.instance, directories.archive)
    try:
        report_progress(f"opened: records {journal.first_sequence} to {journal.next_sequence - 1}")
        chain, end = load_chain(journal), journal_end(journal)
        if chain.value is None:
            # The journal's beginning was removed, and no hash of it is stored: members are compared from
            # here on.
            start = blake2b(journal.identity.bytes + b"%d" % chain.sequence, digest_size=DIGEST)
            chain = HashChain(chain.sequence, start.digest())
        assert chain.value is not None
        _store_chain(journal.files, directories.journal, plan.instance, chain)
        report_progress(f"hash at record {chain.sequence}: {chain.value.hex()}")
        # The epoch counts the journal's openings, so no earlier generation of it had this number.
        generation = max(journal.epoch, end.generation, stream.generation if stream is not None else 0) + 1
        beginning = StreamOrigin(journal.identity, generation, chain.sequence, chain.value)
        try:
            if stream is not None:
                report_progress(f"the log service's log is set aside as {await log_service.retire_stream()}")
            created = await log_service.create_stream(beginning)
        except LogServiceUnavailableError as problem:
            raise OperatorError(
                "engine_away",
                f"The log couldn't be made: {problem}.",
                "Nothing of the journal was changed. Try again.",
            ) from None
        finally:
            await log_service.close()
        report_progress(f"the log service has log {created.log}, generation {created.generation}")
        return ReseedReceipt(plan, now, created.generation, chain.sequence, 0, chain.value.hex())
    finally:
        journal.close()


# join, reseed


def plan_reseed(
    act: Literal["join", "reseed"],
    directories: SegmentDirectories,
    source: SegmentDirectories | None,
    instance: str,
    member: str,
    stream: StreamInfo | None,
    stamp: str,
) -> ReseedPlan:
    """Plan how a member without a usable journal gets one.

    `source`: a journal to copy; None if the member can begin with the log's first entry. Raises
    OperatorError engine_lost, journal_there, no_source, journal_other.
    """
    if stream is None:
        raise OperatorError(
            "engine_lost",
            f"The log service has no log of {instance}.",
            "`replication init` on the member with the most records creates a log from its journal.",
        )
    directories.journal.mkdir(parents=True, exist_ok=True)
    extent = read_extent(directories, instance)
    if act == "join" and extent is not None:
        raise OperatorError(
            "journal_there",
            f"This member has records {extent.first} to {extent.last} of {instance} already.",
            "Start its broker: what the log service has, the broker applies automatically. If it "
            "can't: `replication reseed`.",
        )
    source_has = None if source is None else _check_source(source, instance, stream)
    if source is None and (stream.first > 1 or stream.base):
        raise OperatorError(
            "no_source",
            f"The log service's log begins with entry {stream.first}, behind record {stream.base}: "
            "only members have the earlier entries.",
            "Name the journal directory of a healthy member, or a copy of it: `--from DIRECTORY`.",
        )
    has_files = extent is not None or bool(find_segment_files(directories.journal, instance))
    interrupted = _reseeding_path(directories.journal, instance).exists()
    aside = f"aside-{stamp}" if has_files or interrupted else ""
    steps = []
    if source is not None and source_has is not None:
        steps += [
            f"copy records {source_has.first} to {source_has.last} from {source.journal}",
            "check every batch of the copy, and its hash from the beginning on",
        ]
    if aside:
        steps.append(
            f"move everything of {instance} that is in {directories.journal}"
            + (f" and {directories.archive}" if directories.archive is not None else "")
            + f" into {aside}/ there, with the positions that durable subscriptions have at this member"
        )
    if source_has is not None:
        steps.append("put the copy in place")
    start_entry = (
        source_has.entry if source_has is not None and source_has.generation == stream.generation else 0
    )
    steps.append(
        f"the broker, when it is started, continues after entry {start_entry} of the log "
        f"service's log, which ends with {stream.last} now"
    )
    return ReseedPlan(
        act,
        instance,
        member,
        str(directories.journal),
        extent,
        str(stream.log),
        stream.generation,
        stream.first,
        stream.last,
        str(source.journal) if source is not None else "",
        source_has,
        aside,
        steps,
    )


def _reseeding_path(directory: Path, instance: str) -> Path:
    """Return the path of the file that is there while the journal is replaced."""
    return directory / f"{instance}{RESEEDING_SUFFIX}"


def _check_source(source: SegmentDirectories, instance: str, stream: StreamInfo) -> JournalExtent:
    """Return the contents of a source journal.

    Raises OperatorError no_source, journal_other if it doesn't suit.
    """
    try:
        extent = read_extent(source, instance)
    except (JournalError, OSError) as problem:
        raise _no_source_error(source, f"it can't be read: {problem}") from None
    except OperatorError as problem:
        raise _no_source_error(source, problem.sentence) from None
    if extent is None:
        raise _no_source_error(source, f"it has no record of {instance}")
    if extent.log != str(stream.log):
        raise OperatorError(
            "journal_other",
            f"The journal in {source.journal} is of log {extent.log}, and the log service's is {stream.log}.",
            "Use a member of this group. Nothing was changed.",
            logs=[extent.log, str(stream.log)],
        )
    entry = extent.entry if extent.generation == stream.generation else 0
    if stream.first > entry + 1:
        raise _no_source_error(
            source, f"it has applied entry {entry}, and the log service's log begins with {stream.first}"
        )
    return extent


def _no_source_error(source: SegmentDirectories, reason: str) -> OperatorError:
    return OperatorError(
        "no_source",
        f"{source.journal} isn't a healthy source: {reason}.",
        "Nothing was changed. Use another member's journal directory.",
    )


def reseed(
    plan: ReseedPlan,
    directories: SegmentDirectories,
    source: SegmentDirectories | None,
    stream: StreamInfo,
    now: str,
    report_progress: ReportProgress,
) -> ReseedReceipt:
    """Replace the member's journal as planned.

    An error before the copy is verified leaves the member unchanged. Raises OperatorError journal_locked
    while the broker runs, no_source if the copy isn't valid; JournalError.
    """
    files = FileSystem()
    try:
        with closing(lock_directory(directories.journal / f"{plan.instance}.lock")):
            staging = directories.journal / f"{_STAGING_PREFIX}{plan.aside.removeprefix('aside-') or 'new'}"
            receipt = ReseedReceipt(plan, now, stream.generation, 0, 0, "")
            if source is not None:
                for stale in directories.journal.glob(f"{_STAGING_PREFIX}*"):
                    shutil.rmtree(stale)  # left by an interrupted attempt: the new copy needs the space
                _copy_journal(files, source, staging, plan.instance, report_progress)
                records, entry, chain = _verify_copy(staging, plan.instance, stream, source, report_progress)
                receipt = ReseedReceipt(plan, now, stream.generation, records, entry, chain)
            # Until the file is removed, no broker starts with a part of either journal.
            reseeding = _reseeding_path(directories.journal, plan.instance)
            reseeding.touch()
            files.sync_directory(directories.journal)
            if plan.aside:
                _move_aside(files, directories, plan, receipt, report_progress)
            if source is not None:
                for path in sorted(staging.iterdir()):
                    files.rename(path, directories.journal / path.name)
                staging.rmdir()
                files.sync_directory(directories.journal)
                report_progress("the copy is in place")
            files.unlink(reseeding)
            files.sync_directory(directories.journal)
            return receipt
    except OSError as error:
        raise journal_error(error, f"the {plan.act}") from error


def _copy_journal(
    files: FileSystem,
    source: SegmentDirectories,
    staging: Path,
    instance: str,
    report_progress: ReportProgress,
) -> None:
    """Copy the source's files, while its broker may run.

    The durable mark is copied first, so that it isn't ahead of the copied records. Copying starts again if
    the source archives, compresses or removes a file meanwhile.
    """
    for remaining_attempts in range(_MAX_COPY_ATTEMPTS - 1, -1, -1):
        staging.mkdir()
        try:
            mark = source.journal / f"{instance}.durable"
            if mark.exists():
                _copy_file(files, mark, staging)
            chosen = segment_files(source.journal, instance, source.archive)
            for number, file in enumerate(chosen, 1):
                _copy_file(files, file.path, staging)
                report_progress(f"copied {file.path.name}, {number} of {len(chosen)}")
            for ending in _COPIED_SUFFIXES[:-1]:
                path = source.journal / f"{instance}{ending}"
                if path.exists():
                    _copy_file(files, path, staging)
            files.sync_directory(staging)
            return
        except FileNotFoundError:
            # The source archived, compressed or removed a file.
            shutil.rmtree(staging)
            if not remaining_attempts:
                raise _no_source_error(source, "its files change faster than they are copied") from None


def _copy_file(files: FileSystem, path: Path, target: Path) -> None:
    copy = Path(shutil.copyfile(path, target / path.name))
    with copy.open("rb") as copied_file:
        files.fsync(copied_file.fileno())


def _verify_copy(
    staging: Path,
    instance: str,
    stream: StreamInfo,
    source: SegmentDirectories,
    report_progress: ReportProgress,
) -> tuple[int, int, str]:
    """Verify a copy: every batch, its hash chain, and that the log continues behind it.

    Returns its newest record, its newest entry and its hash (hex, "" if unknown). Stores the hash. Raises
    OperatorError no_source.
    """
    for report in verify_segments(staging, instance):
        if report.problem and not report.unsynced:
            raise _no_source_error(source, f"{report.path.name}: {report.problem}")
    report_progress("every batch of it is whole")
    stored_chain = read_chain(chain_path(staging, instance))
    journal = Journal.open(staging, instance, known=KnownLog(stream.log, 0))
    try:
        chain = _compute_chain(journal, stored_chain, source, stream)
        position = applied_position(journal_end(journal), stream, chain.value)
        if stream.first > position.entry + 1:
            raise _no_source_error(
                source,
                f"it ends with entry {position.entry}, and the log service's log begins with {stream.first}",
            )
        if chain.value is not None:
            _store_chain(journal.files, staging, instance, chain)
        value = chain.value.hex() if chain.value is not None else ""
        report_progress(
            f"hash at record {chain.sequence}: {value or 'unknown, because its beginning was removed'}"
        )
        last = journal.next_sequence - 1
    finally:
        journal.close()
    (staging / f"{instance}.lock").unlink()
    return last, position.entry, value


def _compute_chain(
    journal: Journal, stored_chain: HashChain | None, source: SegmentDirectories, stream: StreamInfo
) -> HashChain:
    """Return the hash chain, computed from the batches.

    Raises OperatorError no_source if it differs from the value that the source had stored, or if the
    journal can't be read to its end.
    """
    if journal.first_sequence != 1:
        return load_chain(journal)
    chain = HashChain(0, journal.identity.bytes)
    for batch in _read_batches(journal, stream.base):
        if journal.lacks(chain.sequence + 1, batch.first_sequence - 1):
            chain = HashChain(stream.base, stream.base_chain)
        chain.add(batch)
        if (
            stored_chain is not None
            and chain.sequence == stored_chain.sequence
            and chain.value != stored_chain.value
        ):
            raise _no_source_error(
                source, f"its hash at record {stored_chain.sequence} isn't that of its batches"
            )
    if chain.sequence < stream.base == journal.next_sequence - 1:
        chain = HashChain(stream.base, stream.base_chain)
    if chain.sequence != journal.next_sequence - 1:
        raise _no_source_error(source, f"it can't be read behind record {chain.sequence}")
    return chain


def _read_batches(journal: Journal, base: int) -> Iterator[Batch]:
    """Yield all batches of a journal, up to the first missing range.

    A missing range that ends at `base` is skipped, because all members lack it: a restored journal had lost
    it, and the log began behind it.
    """
    sequence, last = 1, journal.next_sequence - 1
    while sequence <= last:
        if journal.next_readable(sequence) > base >= sequence:
            sequence = base + 1
            continue
        batches = journal.read(sequence, _READ_BYTES, last)
        if not batches or journal.lacks(sequence, batches[0].first_sequence - 1):
            return
        yield from batches
        sequence = batches[-1].last_sequence + 1


def _store_chain(files: FileSystem, directory: Path, instance: str, chain: HashChain) -> None:
    """Write the chain file of a copy or journal."""
    assert chain.value is not None
    write_chain(files, chain_path(directory, instance), chain.sequence, chain.value)


def _move_aside(
    files: FileSystem,
    directories: SegmentDirectories,
    plan: ReseedPlan,
    receipt: ReseedReceipt,
    report_progress: ReportProgress,
) -> None:
    """Move all files of the instance except its lock into the directory `plan.aside`.

    The receipt is stored there.
    """
    staying = (".lock", RESEEDING_SUFFIX)
    for directory in (directories.journal, directories.archive):
        if directory is None or not directory.is_dir():
            continue
        paths = [
            path
            for path in directory.glob(f"{plan.instance}.*")
            if path.is_file() and path.suffix not in staying
        ]
        if not paths:
            continue
        aside = directory / plan.aside
        aside.mkdir()
        for path in paths:
            files.rename(path, aside / path.name)
        files.sync_directory(directory)
        report_progress(f"{len(paths)} files are in {aside} now")
    if (directories.journal / plan.aside).is_dir():
        replace_durably(files, directories.journal / plan.aside / "receipt.json", json.encode(receipt))
