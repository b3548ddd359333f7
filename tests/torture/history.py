"""Histories of runs as clients saw them, and the check that judges every run.

As in Elle, a log shows its own order, so that every read can be checked against it. Publishers number their
messages 1, 2, 3, …, over all of their topics. `body_of` defines the body of each message.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import NamedTuple


class FaultKind(Enum):
    """Types of faults in a history."""

    LOST = "lost"
    """Acknowledged, or read, and not in the log; or in the log, and passed over by a reader."""
    DOUBLED = "doubled"
    """Stored twice, or delivered twice to a reader without restarts."""
    REORDERED = "reordered"
    """A publisher's messages, or a reader's, out of their order."""
    UNEXPLAINED = "unexplained"
    """A record without a publisher or with other bytes, a sequence of two records, or a broker that ended
    without a named reason.
    """


class HistoryFault(NamedTuple):
    """A fault found in a history."""

    kind: FaultKind
    sentence: str


class Record(NamedTuple):
    """A message as a reader received it."""

    sequence: int
    publisher: str
    number: int
    accepted_at: int = 0


class Interval(NamedTuple):
    """Sequences from `first` to `last`, both included."""

    first: int
    last: int

    def contains(self, sequence: int) -> bool:
        return self.first <= sequence <= self.last


@dataclass
class ReaderHistory:
    """Records of one subscriber, in the order of delivery.

    `back` is how often it may restart at an earlier record: never with a bookmark of its own, once per
    connection if the broker stores the position. `missed` is how many intervals it may lack: none with a
    bookmark. `gaps` were reported to it. `complete` means that it waited for the end of the log.
    """

    name: str
    back: int = 0
    missed: int = 0
    complete: bool = True
    records: list[Record] = field(default_factory=list)
    gaps: list[Interval] = field(default_factory=list)


def topic_of(number: int) -> str:
    """Return the topic of a publisher's message by its number."""
    return f"t.{'abc'[number % 3]}"


def body_of(publisher: str, number: int) -> bytes:
    """Return the body of a message.

    Publisher and number determine every byte, so that each wrong byte is detected.
    """
    return f"{publisher} {number} ".encode().ljust(24 + number * 7_919 % 400, b"%d" % (number % 10))


@dataclass
class History:
    """History of one log over all restarts of its broker."""

    published: dict[str, int] = field(default_factory=dict)
    """The last number that a publisher has handed to its client."""
    acknowledged: dict[str, int] = field(default_factory=dict)
    """Last number that the publisher's client reported as acknowledged."""
    readers: list[ReaderHistory] = field(default_factory=list)
    log: list[Record] = field(default_factory=list)
    """Records of the log at the end, read from the beginning."""
    gaps: list[Interval] = field(default_factory=list)
    """Gaps reported while the log was read."""
    removed_upto: int = 0
    """Sequence up to which removal was requested; these records may be missing."""
    faults: list[HistoryFault] = field(default_factory=list)
    """Faults found during the run."""

    def reader(self, name: str, back: int = 0, missed: int = 0) -> ReaderHistory:
        """Add a reader and return its history."""
        self.readers.append(ReaderHistory(name, back, missed))
        return self.readers[-1]

    def record(self, sequence: int, topic: str, body: bytes, accepted_at: int = 0) -> Record | None:
        """Parse a message that a reader received; record a fault and return None if it was never
        published.
        """
        publisher, number, *_ = [*body.split(b" ", 2), b"", b""]
        if number.isdigit():
            name, n = publisher.decode(errors="replace"), int(number)
            if body == body_of(name, n) and topic == topic_of(n):
                return Record(sequence, name, n, accepted_at)
        self.faults.append(
            HistoryFault(FaultKind.UNEXPLAINED, f"record {sequence} of {topic} is {body[:60]!r}")
        )
        return None


def check(history: History) -> list[HistoryFault]:
    """Return all faults of a history, [] if it is correct."""
    found = list(history.faults)
    found += _one_log(history)
    found += _log_in_order(history.log)
    for publisher in sorted(history.published.keys() | history.acknowledged.keys()):
        found += _publisher(history, publisher)
    strangers = {one.publisher for one in history.log} - history.published.keys()
    found += [
        HistoryFault(FaultKind.UNEXPLAINED, f"nobody published as {name}") for name in sorted(strangers)
    ]
    for reader in history.readers:
        found += _reader(history, reader)
    return found


def _one_log(history: History) -> Iterable[HistoryFault]:
    """Return faults where one sequence names different records."""
    known: dict[int, tuple[str, int]] = {}
    for reads in (history.log, *(reader.records for reader in history.readers)):
        for one in reads:
            said = known.setdefault(one.sequence, (one.publisher, one.number))
            if said != (one.publisher, one.number):
                yield HistoryFault(
                    FaultKind.UNEXPLAINED,
                    f"record {one.sequence} was {_said(said)} and is {_said((one.publisher, one.number))}",
                )


def _log_in_order(log: Sequence[Record]) -> Iterable[HistoryFault]:
    for before, after in pairwise(log):
        if after.sequence == before.sequence:
            yield HistoryFault(FaultKind.DOUBLED, f"record {after.sequence} is in the log twice")
        elif after.sequence < before.sequence:
            yield HistoryFault(FaultKind.REORDERED, f"record {after.sequence} comes after {before.sequence}")
        if after.accepted_at < before.accepted_at:
            yield HistoryFault(
                FaultKind.REORDERED, f"record {after.sequence} was accepted before {before.sequence}"
            )


def _publisher(history: History, name: str) -> Iterable[HistoryFault]:
    mine = [one for one in history.log if one.publisher == name]
    numbers = [one.number for one in mine]
    published, acknowledged = history.published.get(name, 0), history.acknowledged.get(name, 0)
    if acknowledged > published:
        yield HistoryFault(
            FaultKind.UNEXPLAINED, f"{acknowledged} of {name} was acknowledged and {published} published"
        )
    seen: set[int] = set()
    highest = 0
    for number in numbers:
        if number in seen:
            yield HistoryFault(FaultKind.DOUBLED, f"{name} {number} is in the log twice")
        elif number < highest:
            yield HistoryFault(FaultKind.REORDERED, f"{name} {number} comes after {highest}")
        seen.add(number)
        highest = max(highest, number)
    if highest > published:
        yield HistoryFault(FaultKind.UNEXPLAINED, f"{name} {highest} is in the log and was never published")
    # If a message is in the log, the earlier ones must be too: the publisher stored them before.
    missing = sorted(set(range(1, max(highest, min(acknowledged, published)) + 1)) - seen)
    excused = _excused(history, mine, missing)
    for interval in _stretches(number for number in missing if number not in excused):
        known = "acknowledged" if interval.first <= acknowledged else "overtaken"
        yield HistoryFault(
            FaultKind.LOST, f"{name} {interval.first} to {interval.last} {known} and not in the log"
        )


def _excused(history: History, mine: Sequence[Record], missing: Iterable[int]) -> set[int]:
    """Return the missing numbers that a removal or a reported gap explains.

    Removed records come before all remaining records of their publisher; records in a gap lie within its
    interval.
    """
    intervals = [*history.gaps, *([Interval(1, history.removed_upto)] if history.removed_upto else [])]
    by_number = {one.number: one.sequence for one in mine}
    ordered = sorted(by_number)
    excused: set[int] = set()
    for number in missing:
        at = bisect_left(ordered, number)
        # The record's sequence lies between those of its neighbours.
        low = by_number[ordered[at - 1]] + 1 if at else 1
        high = by_number[ordered[at]] - 1 if at < len(ordered) else 2**63
        if any(interval.first <= high and interval.last >= low for interval in intervals):
            excused.add(number)
    return excused


def _reader(history: History, reader: ReaderHistory) -> Iterable[HistoryFault]:
    log = [one.sequence for one in history.log]
    there = set(log)
    read: set[int] = set()
    back, skipped = 0, list[Interval]()
    at = -1
    """Place in the log of the last one that was read."""
    last = 0
    for one in reader.records:
        if (
            one.sequence not in there
            and one.sequence > history.removed_upto
            and not _is_in_gap(history.gaps, one)
        ):
            yield HistoryFault(
                FaultKind.LOST, f"{reader.name} has read record {one.sequence}, which isn't in the log"
            )
        if one.sequence <= last:
            back += 1
            if back > reader.back:
                kind = FaultKind.DOUBLED if one.sequence in read else FaultKind.REORDERED
                yield HistoryFault(kind, f"{reader.name} gets record {one.sequence} after {last}")
        else:
            place = bisect_left(log, one.sequence)
            skipped += _skipped(reader, log[at + 1 : place], read)
        at = bisect_left(log, one.sequence)
        last = one.sequence
        read.add(one.sequence)
    if reader.complete:
        skipped += _skipped(reader, log[at + 1 :], read)
    for interval in skipped[reader.missed :]:
        yield HistoryFault(
            FaultKind.LOST, f"{reader.name} was never given records {interval.first} to {interval.last}"
        )


def _skipped(reader: ReaderHistory, between: Sequence[int], read: set[int]) -> list[Interval]:
    missed = [s for s in between if s not in read and not any(gap.contains(s) for gap in reader.gaps)]
    return [Interval(missed[0], missed[-1])] if missed else []


def _is_in_gap(gaps: Iterable[Interval], one: Record) -> bool:
    return any(gap.contains(one.sequence) for gap in gaps)


def _stretches(numbers: Iterable[int]) -> list[Interval]:
    found: list[Interval] = []
    for number in numbers:
        if found and found[-1].last + 1 == number:
            found[-1] = Interval(found[-1].first, number)
        else:
            found.append(Interval(number, number))
    return found


def _said(one: tuple[str, int]) -> str:
    return f"{one[0]} {one[1]}"
