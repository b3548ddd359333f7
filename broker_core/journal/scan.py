"""One segment read from end to end: its index, its holes, its publishers, and what stands where the content ends.

Used at opening, to rebuild a sidecar, and by `verify`; it changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from broker_core.batch import Batch, hash64
from broker_core.errors import JournalError
from broker_core.journal.index import Hole, SegmentIndex
from broker_core.journal.publishers import Publishers
from broker_core.journal.reader import CHUNK, Source, next_batch, read_header, walk
from broker_core.journal.segment import HEADER_SIZE


@dataclass(slots=True)
class Scan:
    """What a segment holds. `torn` is (offset, end) of bytes behind the content that are no zeros, `header_problem`
    what is wrong with the first 4,096 bytes."""

    index: SegmentIndex
    publishers: Publishers = field(default_factory=Publishers)
    torn: tuple[int, int] | None = None
    torn_why: str = ""
    header_problem: str | None = None
    log: UUID | None = None
    """Whose it is, by its header."""


def scan(source: Source, instance: str, first_sequence: int, sealed: SegmentIndex | None = None) -> Scan:
    """Read the whole segment. Raises OSError only: damage is part of the answer.

    `sealed` is its sidecar, if there is one: it tells how far the content went, should its end be damaged.
    """
    made = Scan(SegmentIndex(instance, first_sequence, 0))
    try:
        header = read_header(source)
        made.index.epoch, made.log, made.index.header_crc = header.epoch, header.log, header.crc
        made.index.skipped_from = header.skipped_from
        if (header.instance, header.first_sequence) != (instance, first_sequence):
            made.header_problem = (
                f"it says {header.instance}.{header.first_sequence}, its name says otherwise"
            )
    except JournalError as error:
        made.header_problem = error.sentence
    offset, end, origin = HEADER_SIZE, source.length, hash64(instance)
    while offset < end:
        found = walk(source, offset, end, CHUNK)
        for at, batch in zip(found.offsets, found.batches, strict=True):
            _add(made, at, batch)
        offset = found.stopped_at
        if found.problem is None:
            continue
        following = next_batch(source, offset, end, origin, made.index.last_sequence)
        if following is None and sealed is not None and sealed.end > offset:
            index = made.index
            lost = Hole(
                first_sequence,
                offset,
                sealed.end - offset,
                index.last_sequence + 1,
                sealed.last_sequence,
                found.problem,
            )
            index.holes, index.end, index.last_sequence = (
                (*index.holes, lost),
                sealed.end,
                sealed.last_sequence,
            )
            break
        if following is None:
            _finish(made, source, offset, end, found.problem)
            break
        _add_hole(made.index, offset, following, source, found.problem)
        offset = following
    return made


def _add(made: Scan, at: int, batch: Batch) -> None:
    index = made.index
    expected = index.last_sequence + 1
    if batch.first_sequence > expected and not (index.holes and index.holes[-1].last_sequence >= expected):
        missing = Hole(
            index.first_sequence, at, 0, expected, batch.first_sequence - 1, "the records aren't there"
        )
        index.holes = (*index.holes, missing)
    index.add(at, batch)
    if batch.last_publisher_sequence:
        made.publishers.note(batch.publisher_name, batch.session, batch.last_publisher_sequence)


def _add_hole(index: SegmentIndex, offset: int, following: int, source: Source, why: str) -> None:
    after = walk(source, following, source.length, 1).batches[0]
    hole = Hole(
        index.first_sequence,
        offset,
        following - offset,
        index.last_sequence + 1,
        after.first_sequence - 1,
        why,
    )
    index.holes = (*index.holes, hole)


def _finish(made: Scan, source: Source, offset: int, end: int, why: str) -> None:
    """Behind the last whole batch: zeros end the content, anything else is a torn tail up to its last byte."""
    last = offset
    at = offset
    while at < end:
        try:
            raw = bytes(source.read(at, min(CHUNK, end - at)))
        except JournalError:
            raw = b""
            last = at = source.after_damage(at)
            continue
        if not raw:
            break
        kept = len(raw.rstrip(b"\0"))
        if kept:
            last = at + kept
        at += len(raw)
    made.index.end = offset
    if last > offset:
        made.torn = (offset, min(last + (-last % 8), end))
        made.torn_why = why
