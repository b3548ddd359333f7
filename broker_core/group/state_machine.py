"""Application of the common log's entries.

It is a pure function of all entries before, so that every member gets the same result.

For records with publisher sequences the log's order decides, wherever they were accepted. Within a session
the sequences count; among sessions of one name their claims count (`journal.publishers`). Repeated records
are dropped. The rest get the next sequences, the instance's origin, the log's generation as their epoch,
and a time. The time is that of the broker that accepted them. It is never before the record in front, and
never more than SKEW_NS after the log service's time for the entry. So one member whose clock is ahead
doesn't shift the times of all.

`log_position` in a batch's header combines the entry's position and the batch's index in it. So a journal
shows how far it has applied the log, whatever a crash left of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from broker_core.batch import CLAIM, Batch, read_batch_header, write_flags, write_log_position
from broker_core.errors import ClientError, OperatorError
from broker_core.group.engine_log import LogEntry, StreamInfo, unpack_entry
from broker_core.group.hash_chain import HashChain
from broker_core.journal.journal import Journal
from broker_core.journal.publishers import Publishers, Refusal, judge, number_of

MAX_SKEW_NS = 2_000_000_000
_BATCH_BITS = 16
MAX_BATCHES = 1 << _BATCH_BITS


class LogPosition(NamedTuple):
    """A batch's entry, and its index in the entry from 0. (0, 0) is before everything."""

    entry: int
    batch: int

    @property
    def encode(self) -> int:
        return self.entry << _BATCH_BITS | self.batch


START_POSITION = LogPosition(0, MAX_BATCHES)
"""Position before the first entry."""


def decode_position(log_position: int) -> LogPosition:
    """Decode the `log_position` of a batch's header."""
    return LogPosition(log_position >> _BATCH_BITS, log_position & (MAX_BATCHES - 1))


class JournalEnd(NamedTuple):
    """End of a journal: its newest record, and that record's generation and position in the group's log.

    The generation is 0 and the position START for a record that a broker without a group wrote.
    """

    sequence: int
    generation: int
    position: LogPosition

    @classmethod
    def from_newest_batch(cls, newest: Batch) -> JournalEnd:
        """Return the end of a journal whose last batch is `newest`."""
        position = newest.header.log_position
        if not position:
            return cls(newest.last_sequence, 0, START_POSITION)
        return cls(newest.last_sequence, newest.header.epoch, decode_position(position))


def newest_batch(journal: Journal) -> Batch | None:
    """Return a journal's newest batch; None where it has none, or none that can be read."""
    last = journal.next_sequence - 1
    found = journal.read(last, 1, last) if last else []
    return found[-1] if found and found[-1].last_sequence == last else None


def journal_end(journal: Journal) -> JournalEnd:
    """Return the end of a journal."""
    newest = newest_batch(journal)
    if newest is None:
        return JournalEnd(journal.next_sequence - 1, 0, START_POSITION)
    return JournalEnd.from_newest_batch(newest)


def is_batch_of_entry(newest: Batch, entry: LogEntry) -> bool:
    """Return whether a journal's newest batch was made of this entry of the log.

    A log that lost its end may have other entries there by now.
    """
    try:
        found = next(
            islice(decode_batches(entry), decode_position(newest.header.log_position).batch, None), None
        )
    except ClientError:
        return False
    if found is None or found.publisher_name != newest.publisher_name:
        return False
    if found.count > newest.count:  # the other rows were stored already
        rows = np.nonzero(found.publisher_sequences() >= newest.first_publisher_sequence)[0]
        if len(rows) != newest.count:
            return False
        found = found.select(rows, explicit=False)
    return found.header.payload_crc == newest.header.payload_crc


def applied_position(end: JournalEnd, log: StreamInfo, chain: bytes | None) -> LogPosition:
    """Return how far a journal has applied a log.

    `chain`: hash at the journal's end. Raises OperatorError not_the_groups, member_behind or
    replica_diverged if the journal belongs neither to this generation nor to the records that the
    generation began with.
    """
    if end.generation and end.generation == log.generation:
        return end.position
    last = end.sequence
    if last < log.base:
        raise OperatorError(
            "member_behind",
            f"The group's log continues after record {log.base}, but this member ends with {last}.",
            "Stop it, and give it another member's: `manage.py replication reseed --from DIRECTORY`.",
            engine=log.base,
            applied=last,
        )
    if last == log.base and (chain is None or not log.base_chain or chain == log.base_chain):
        return START_POSITION
    if end.generation == 0 and last > log.base:
        raise not_group_journal_error(last)
    raise OperatorError(
        "replica_diverged",
        f"This journal ends with record {last} of generation {end.generation}, and isn't "
        f"what generation {log.generation}"
        f" began with, behind record {log.base}.",
        "The files are retained. `manage.py replication reseed --from DIRECTORY` moves them "
        "aside and copies another member's.",
        entry=0,
    )


def not_group_journal_error(last: int) -> OperatorError:
    """Return the error for a journal that ends with a record written by a broker without a group."""
    return OperatorError(
        "not_the_groups",
        f"The journal ends with record {last}, which isn't of a group's log.",
        "To make a new group of it: `manage.py replication init`. To join an existing group: "
        "`manage.py replication reseed`, which moves its files aside. Or start the broker "
        "without SLUICE_GROUP_ENGINES.",
        last=last,
    )


def decode_batches(entry: LogEntry) -> Iterator[Batch]:
    """Yield the batches of an entry, checked. Raises ClientError bad_batch if its bytes are damaged."""
    content, at = memoryview(unpack_entry(entry.content)), 0
    while at < len(content):
        size = read_batch_header(content, at).size
        yield Batch.parse(bytearray(content[at : at + size]))
        at += size


class LogStateMachine:
    """State of the log at one member, changed by each entry.

    The state is: publishers, next sequence, latest time, hash chain and applied position.
    """

    def __init__(self, journal: Journal, generation: int, position: LogPosition, chain: HashChain) -> None:
        self._origin, self._generation = journal.origin, generation
        self._publishers = Publishers(journal.publishers)
        self._next_sequence = journal.next_sequence
        self._newest_time = _newest_time(journal)
        self._position = position
        self.chain = chain

    @property
    def applied_entry(self) -> int:
        """The newest entry that is surely applied whole. Reading continues behind it."""
        return self._position.entry if self._position.batch == MAX_BATCHES else self._position.entry - 1

    def apply_batch(self, entry: LogEntry, number: int, batch: Batch) -> Batch | Refusal:
        """Return the new records of a batch, stamped; or the reason why none of it is stored.

        A refusal changes no state: later decisions follow from the journal alone, also after a restart.
        """
        if LogPosition(entry.number, number) <= self._position:
            return self._judge_applied(batch)
        fresh = self._select_new(batch)
        if isinstance(fresh, Refusal):
            return fresh
        assert isinstance(fresh.buf, bytearray)
        self._newest_time = max(self._newest_time, min(batch.accepted_at, entry.at + MAX_SKEW_NS))
        write_flags(fresh.buf, 0)
        write_log_position(fresh.buf, LogPosition(entry.number, number).encode)
        fresh.stamp(
            origin=self._origin,
            epoch=self._generation,
            first_sequence=self._next_sequence,
            accepted_at=self._newest_time,
        )
        self._next_sequence += fresh.count
        self.chain.add(fresh)
        return fresh

    def mark_applied(self, entry: LogEntry) -> None:
        """Record that all batches of an entry were applied."""
        self._position = max(self._position, LogPosition(entry.number, MAX_BATCHES))
        self.chain.mark_entry_applied(entry.number)

    def _judge_applied(self, batch: Batch) -> Refusal:
        """Return the outcome of a batch that was applied before this object was created."""
        last = batch.last_publisher_sequence
        known = number_of(self._publishers.get(batch.publisher_name, ()), batch.session)
        return Refusal.REPEATED if last <= known else Refusal.SUPERSEDED

    def _select_new(self, batch: Batch) -> Batch | Refusal:
        first = batch.first_publisher_sequence
        if first == 0:
            return batch
        name, session, last = batch.publisher_name, batch.session, batch.last_publisher_sequence
        sessions = self._publishers.get(name, ())
        above = judge(sessions, session, first, last, claims=bool(batch.flags & CLAIM))
        if isinstance(above, Refusal):
            return above
        self._publishers.note(name, session, last)
        if first > above:
            return batch
        return batch.select(np.nonzero(batch.publisher_sequences() > above)[0], explicit=False)


def _newest_time(journal: Journal) -> int:
    """Return the time of the newest record, ns UTC.

    `journal.last_at` alone isn't enough: it dates from the opening of the journal.
    """
    last = journal.next_sequence - 1
    found = journal.read(last, 1, last) if last else []
    return max(journal.last_at, found[-1].accepted_at) if found else journal.last_at


def damaged_entry_error(entry: LogEntry, problem: ClientError) -> OperatorError:
    """Return the error for an entry whose bytes differ from those that were sent."""
    return OperatorError(
        "engine_damaged",
        f"Entry {entry.number} of the group's log is damaged: {problem.sentence}",
        "Check the disks of the log service's servers. Nothing behind it is applied or acknowledged.",
        entry=entry.number,
    )
