"""Order of the log: a member that ended anywhere in an entry builds the same log as the others."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_core.batch import CLAIM, Batch, build_single_topic_batch, stamp_header, write_flags
from broker_core.errors import ClientError, OperatorError
from broker_core.group.engine_log import (
    EntrySender,
    LogEntry,
    StreamInfo,
    pack_entry,
    unpack_entry,
    unpacked_size,
)
from broker_core.group.hash_chain import chain_path, load_chain, read_chain, write_chain
from broker_core.group.settings import read_settings
from broker_core.group.state_machine import (
    MAX_SKEW_NS,
    LogStateMachine,
    applied_position,
    decode_batches,
    journal_end,
)
from broker_core.journal.appender import JournalOptions
from broker_core.journal.files import FileSystem
from broker_core.journal.frontier_file import KnownLog
from broker_core.journal.journal import Journal
from tests.support.groups import hash_log

LOG = UUID("0b9c5f1e-0000-4000-8000-000000000001")
FIRST = StreamInfo(LOG, generation=1, first=1, last=0, leader="", servers=1, current=1)


class UnsyncedDisk(FileSystem):
    """A disk without syncs; no power is cut here."""

    def fdatasync(self, fd: int) -> None: ...

    def fsync(self, fd: int) -> None: ...

    def sync_directory(self, directory: Path) -> None: ...


def open_journal(directory: Path) -> Journal:
    return Journal.open(
        directory, "group", options=JournalOptions(1 << 16, 0), known=KnownLog(LOG, 0), files=UnsyncedDisk()
    )


Published = tuple[str, int, int, int, int]
"""A batch: publisher, first number (0: none), records, the moment that its broker took it, and its
publisher session. A negative
session is the first batch of a connection."""


def entry_of(number: int, at: int, batches: Sequence[Published]) -> LogEntry:
    """An entry as a member appends it."""
    content = bytearray()
    for name, first, count, accepted_at, session in batches:
        bodies = [b"%s %d" % (name.encode(), n) for n in range(count)]
        built = build_single_topic_batch(name, "t", bodies, first, abs(session))
        write_flags(built, CLAIM if session < 0 else 0)
        stamp_header(built, origin=1, epoch=0, first_sequence=0, accepted_at=accepted_at)
        content += built
    return LogEntry(number, at, EntrySender("a", "run", number), bytes(content), 0)


def apply(journal: Journal, entries: Sequence[LogEntry], upto: int | None = None) -> LogStateMachine:
    """Apply log entries as a member does; stop after `upto` batches were written."""
    chain = load_chain(journal)
    order = LogStateMachine(journal, 1, applied_position(journal_end(journal), FIRST, chain.value), chain)
    written = 0
    for entry in entries[order.applied_entry :]:
        for number, batch in enumerate(decode_batches(entry)):
            if written == upto:
                return order
            fresh = order.apply_batch(entry, number, batch)
            if isinstance(fresh, Batch):
                journal.write([fresh])
                journal.sync()
                written += 1
        order.mark_applied(entry)
    return order


BATCH = st.tuples(
    st.sampled_from(["p", "q"]),
    st.integers(0, 12),
    st.integers(1, 5),
    st.integers(1, 10 * MAX_SKEW_NS),
    st.sampled_from([-2, -1, 1, 2]),
)
LOGS = st.lists(
    st.tuples(st.integers(1, 5 * MAX_SKEW_NS), st.lists(BATCH, max_size=4)), min_size=1, max_size=8
)


@settings(max_examples=25)
@given(log=LOGS, ends=st.lists(st.integers(0, 4), max_size=4))
def test_members_make_the_same_of_any_log_whatever_they_had_applied_before(
    log: list[tuple[int, list[Published]]], ends: list[int]
) -> None:
    entries = [entry_of(number, at, batches) for number, (at, batches) in enumerate(log, 1)]
    with tempfile.TemporaryDirectory() as place:
        one, other = Path(place) / "one", Path(place) / "other"
        journal = open_journal(one)
        order = apply(journal, entries)
        contents, chain = hash_log(journal), order.chain.value
        moments: list[int] = []
        numbers: dict[str, list[int]] = {"p": [], "q": []}
        for batch in journal.read(1, 1 << 20, journal.next_sequence - 1) if journal.next_sequence > 1 else []:
            moments.append(batch.accepted_at)
            if batch.first_publisher_sequence:
                numbers[batch.publisher_name] += batch.publisher_sequences().tolist()
        journal.close()
        for end in ends:
            journal = open_journal(other)
            apply(journal, entries, end)
            journal.close()
        journal = open_journal(other)
        order = apply(journal, entries)
        assert (hash_log(journal), order.chain.value) == (contents, chain)
        journal.close()
    assert all(before <= after for before, after in pairwise(moments))
    assert max(moments, default=0) <= max(entry.at for entry in entries) + MAX_SKEW_NS
    assert all(found == sorted(set(found)) for found in numbers.values())


def test_a_stored_hash_chain_is_continued_and_a_damaged_one_rebuilt(tmp_path: Path) -> None:
    entries = [entry_of(number, number, [("p", 0, 3, number, 1)]) for number in range(1, 6)]
    journal = open_journal(tmp_path)
    first = apply(journal, entries[:2]).chain
    assert first.value is not None
    path = chain_path(tmp_path, "group")
    write_chain(FileSystem(), path, first.sequence, first.value)
    whole = apply(journal, entries).chain.value
    assert load_chain(journal).value == whole
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert read_chain(path) is None
    assert load_chain(journal).value == whole
    journal.close()


def test_an_entry_with_a_flipped_bit_is_refused() -> None:
    entry = entry_of(1, 1, [("p", 1, 3, 1, 1)])
    flipped = bytearray(entry.content)
    flipped[-9] ^= 1
    with pytest.raises(ClientError):
        list(decode_batches(entry._replace(content=bytes(flipped))))


def test_a_packed_entry_is_the_same_entry_and_one_that_was_changed_is_refused() -> None:
    entry = entry_of(1, 1, [("p", 1, 900, 1, 1)])
    short = pack_entry(entry.content)
    assert len(short) < len(entry.content) / 2 and unpacked_size(short) == len(entry.content)
    assert [one.buf for one in decode_batches(entry._replace(content=short))] == [
        one.buf for one in decode_batches(entry)
    ]
    for wrong in (
        short[:4],
        short[:20],
        short[:-1],
        short[:4] + b"\xff" + short[5:],
        short[:7] + b"\xff" + short[8:],
    ):
        with pytest.raises(ClientError):
            list(decode_batches(entry._replace(content=wrong)))
    for plain in (b"", b"x" * 100, bytes(Random(1).randbytes(10_000))):
        assert pack_entry(plain) == plain == unpack_entry(plain)


def test_settings_that_can_not_be_used_are_refused_by_name() -> None:
    assert read_settings("orders", "a", []) is None
    good = read_settings("orders", "a", ["nats://a:4222", "nats://b:4222", "nats://c:4222"])
    assert good is not None and good.replicas == 3
    for wrong in (
        ("or.ders", "a", ["nats://a:1"]),
        ("orders", "a b", ["nats://a:1"]),
        ("orders", "a", ["http://a:1"]),
        ("orders", "a", ["nats://a:1"], 2),
        ("orders", "a", ["nats://a:1"], 1, 5),
    ):
        with pytest.raises(OperatorError) as told:
            read_settings(*wrong)
        assert told.value.code == "bad_group"
