"""Inspection of a journal without a broker: list, verify, dump records as JSON lines, repair.

All functions except `repair_journal` take no lock and change nothing: they may run beside a broker. A repair
is an opening of the journal, which needs the lock, with a check of every sealed segment; it returns its
findings and actions.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from broker_core.batch import HEADER_SIZE, ROW_SIZE, Batch, Rows
from broker_core.errors import OperatorError
from broker_core.journal import index_sidecar
from broker_core.journal.files import FileSystem, journal_error, lock_directory, replace_durably
from broker_core.journal.frontier_file import KnownLog, encode_mark, frontier_path, read_frontier, read_mark
from broker_core.journal.open_segments import Segment
from broker_core.journal.recovery import JournalRecovery
from broker_core.journal.segment import (
    SegmentFile,
    SegmentInfo,
    find_segment_files,
    index_path,
    parse_segment_path,
)
from broker_core.journal.segment_copies import VerifyReport, verify_segment
from broker_core.journal.segment_index import SegmentIndex
from broker_core.journal.segment_reader import iter_batches, open_source, scan_segment
from broker_core.safe_text import escape_json
from broker_core.subscriptions.subscription import TopicSubscription, select_rows
from broker_core.subscriptions.topics import TopicPattern

EVERY_TOPIC: Final = TopicPattern("every topic", None, lambda topic: True)
"""Pattern of every topic, including the broker's own, which `>` doesn't match."""


def record_lines(batch: Batch, rows: Rows, instance: str, segment: str | None = None) -> Iterator[bytes]:
    """Yield a JSON object for each of the given rows of a journaled batch, without decoding other rows.

    A body is `data` when it is JSON, `text` when it is UTF-8, `base64` otherwise; `headers` are base64, if
    any.
    """
    header, table, view = batch.header, batch.rows, memoryview(batch.buf)
    texts = HEADER_SIZE + header.dictionary_length + header.count * ROW_SIZE
    head_ends = texts + np.cumsum(table["headers"], dtype=np.int64)
    body_ends = texts + header.headers_length + np.cumsum(table["body"], dtype=np.int64)
    names, publisher = batch.topics, batch.publisher_name
    for row, head_end, body_end, chosen in zip(
        rows.tolist(), head_ends[rows].tolist(), body_ends[rows].tolist(), table[rows].tolist(), strict=True
    ):
        head_length, body_length, topic, _, delta = chosen
        line: dict[str, Any] = {
            "bookmark": f"{instance}|{header.first_sequence + row}|",
            "topic": names[topic - 1],
            "accepted_at": header.accepted_at,
            "publisher": publisher,
            "publisher_sequence": header.first_publisher_sequence and header.first_publisher_sequence + delta,
            **_body(bytes(view[body_end - body_length : body_end])),
        }
        if head_length:
            line["headers"] = base64.b64encode(view[head_end - head_length : head_end]).decode()
        if segment is not None:
            line["segment"] = segment
        yield escape_json(orjson.dumps(line))


def _body(body: bytes) -> dict[str, Any]:
    """Return the body under the name of its form: `data`, `text` or `base64`."""
    try:
        return {"data": orjson.Fragment(body) if orjson.loads(body) is not None else None}
    except orjson.JSONDecodeError:
        pass
    try:
        return {"text": body.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}


def list_segments(directory: Path, instance: str, archive_directory: Path | None = None) -> list[SegmentInfo]:
    """Return all segments, oldest first.

    A segment without a sidecar is scanned; the newest such segment that is neither archived nor compressed is
    `current`.
    """
    files = segment_files(directory, instance, archive_directory)
    made: list[SegmentInfo] = []
    for file in files:
        known = index_sidecar.load_summary(index_path(file.path), instance, file.first_sequence)
        live = known is None and file is files[-1] and not file.archived and not file.compressed
        index = known or scan_segment(open_source(file.path), instance, file.first_sequence).index
        made.append(Segment(file.path, file.archived, file.compressed, index, sealed=not live).info())
    return made


def segment_files(directory: Path, instance: str, archive_directory: Path | None = None) -> list[SegmentFile]:
    """Return one file per segment, oldest first.

    Raises OperatorError no_journal when the directory does not exist.
    """
    chosen: dict[int, SegmentFile] = {}
    for file in find_segment_files(directory, instance, archive_directory):
        chosen.setdefault(file.first_sequence, file)
    if not chosen and not directory.is_dir():
        raise OperatorError(
            "no_journal", f"The directory {directory} doesn't exist.", "Name the journal's directory."
        )
    return [chosen[first] for first in sorted(chosen)]


def verify_segments(
    directory: Path, instance: str, archive_directory: Path | None = None
) -> Iterator[VerifyReport]:
    """Yield a report per segment, oldest first, with every batch checked.

    Missing records between segments are a problem, as is a damaged header that leaves in doubt whether they
    existed; skipped sequences are not, because no record ever had them. A torn tail after the durable
    frontier is no problem: a running broker is writing it, or after a crash no client was told that it
    was persisted.
    """
    mark = read_mark(directory, instance)
    log = mark.log if mark is not None else None
    before: VerifyReport | None = None
    for file in segment_files(directory, instance, archive_directory):
        try:
            report = verify_segment(file.path, log)
        except OSError as error:
            raise journal_error(error, f"reading {file.path.name}") from error
        last_before = (report.skipped_from or report.first_sequence) - 1
        if before is not None and last_before > before.last_sequence:
            interval = f"records {before.last_sequence + 1} to {last_before}"
            missing = (
                f"it isn't known whether {interval} existed: this header, which said so, was damaged"
                if report.skips_unknown
                else f"{interval} before it are missing"
            )
            report = report._replace(problem=f"{report.problem} {missing}".strip())
        yield report._replace(unsynced=mark is not None and report.last_sequence >= mark.sequence)
        before = report


def dump_records(
    directory: Path,
    instance: str,
    archive_directory: Path | None = None,
    *,
    first: int = 1,
    last: int | None = None,
    topic: str | None = None,
) -> Iterator[bytes]:
    """Yield a JSON object per record from `first` to `last`, by default up to the durable frontier.

    `topic` is a pattern that selects records. Raises JournalError journal_damaged at unreadable bytes, after
    all records before them.
    """
    subscription = TopicSubscription(None, "dump", 0, TopicPattern.parse(topic) if topic else EVERY_TOPIC)
    frontier = read_frontier(directory, instance)
    limit = last if last is not None else frontier if frontier is not None else 2**63
    for file in segment_files(directory, instance, archive_directory):
        if file.first_sequence > limit:
            return
        index = index_sidecar.load_sidecar(index_path(file.path), instance, file.first_sequence)
        if index is not None and index.last_sequence < first:
            continue
        start = index.find(first)[0] if index is not None else SegmentIndex(instance, 1, 0).end
        for walked in iter_batches(file.path, start):
            for batch in walked.batches:
                if batch.first_sequence > limit:
                    return
                rows = select_rows(subscription, batch, first, upto=limit)
                yield from record_lines(batch, np.arange(batch.count) if rows is None else rows, instance)


def repair_journal(
    directory: Path,
    instance: str,
    archive_directory: Path | None = None,
    known: KnownLog | None = None,
    *,
    accept: bool = False,
) -> dict[str, Any]:
    """Open the journal as a broker does, check every sealed segment, and return the findings.

    Opening cuts a torn tail, saves its bytes, and rebuilds missing files. Sidecars that don't describe their
    segment are rewritten, so that readers know the damage found from then on. With `accept` the log becomes
    the instance's log with the records that it has, even if it isn't the one written last or lacks
    acknowledged records.

    Raises OperatorError journal_locked while a broker runs, no_journal, other_log, journal_other or
    journal_behind.
    """
    segment_files(directory, instance, archive_directory)
    files = FileSystem()
    try:
        with closing(lock_directory(directory / f"{instance}.lock")):
            found = JournalRecovery(files, directory, instance, archive_directory, known, accept=accept)
            found.run()
            if accept:
                mark = found.mark._replace(epoch=found.epoch - 1)
                replace_durably(files, frontier_path(directory, instance), encode_mark(mark))
            rebuilt = [one.path.name for one in found.segments if one.sealed and _renew(files, one.path)]
    except OSError as error:
        raise journal_error(error, "the repair") from error
    return {
        **found.report.as_dict(),
        "log": str(found.log),
        "settled": found.last_stored,
        "next_sequence": found.next_sequence,
        "rebuilt_indexes": rebuilt,
    }


def _renew(files: FileSystem, path: Path) -> bool:
    """Scan a sealed segment and rewrite its sidecar if it differs; return whether it did."""
    instance, first = parse_segment_path(path)
    known = index_sidecar.load_sidecar(index_path(path), instance, first)
    fresh = scan_segment(open_source(path), instance, first, known).index
    if known is not None and index_sidecar.encode_sidecar(known) == index_sidecar.encode_sidecar(fresh):
        return False
    replace_durably(files, index_path(path), index_sidecar.encode_sidecar(fresh))
    return True
