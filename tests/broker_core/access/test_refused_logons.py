from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker_core.access.logon_attempts import (
    MAX_NAMES,
    MAX_PENDING_ENTRIES,
    MAX_REMOTES,
    SHARED_ENTRY_REMOTE,
    RefusedLogonLog,
)


def test_one_address_is_one_entry_a_minute_with_why_and_who() -> None:
    refusals = RefusedLogonLog()
    refusals.add(7, "10.0.0.1", "tcp", "bad_logon", "maria", "desk-1")
    refusals.add(7, "10.0.0.1", "ws", "bad_logon", "root", "desk-1")
    refusals.add(7, "10.0.0.1", "tcp", "too_many_attempts", "", "desk-2")
    assert refusals.take(7) == []
    (entry,) = refusals.take(8)
    assert (entry.minute, entry.remote, entry.count) == (7, "10.0.0.1", 3)
    assert entry.codes == {"bad_logon": 2, "too_many_attempts": 1}
    assert (entry.users, entry.clients, entry.transports) == (
        ["maria", "root"],
        ["desk-1", "desk-2"],
        {"tcp", "ws"},
    )
    assert refusals.take(9) == []


def test_names_that_would_deceive_or_break_the_database_are_made_harmless() -> None:
    refusals = RefusedLogonLog()
    refusals.add(1, "r", "tcp", "bad_logon", "a\0b\x1b[2J" + "x" * 10_000, "")
    (entry,) = refusals.take(2)
    assert entry.users == ["a?b?[2J" + "x" * 57]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60), st.text(max_size=3)), max_size=300))
def test_every_refusal_is_counted_once_in_few_entries(tried: list[tuple[int, int, str]]) -> None:
    refusals = RefusedLogonLog()
    for minute, remote, name in sorted(tried):
        refusals.add(minute, f"r{remote}", "tcp", "bad_logon", name, name)
    taken = refusals.take(6)
    assert sum(entry.count for entry in taken) == len(tried)
    assert len({(entry.minute, entry.remote) for entry in taken}) == len(taken) <= 6 * (MAX_REMOTES + 1)
    assert all(len(entry.users) <= MAX_NAMES for entry in taken)
    assert (
        SHARED_ENTRY_REMOTE in {entry.remote for entry in taken}
        or len({remote for _, remote, _ in tried}) <= 6 * MAX_REMOTES
    )


def test_what_nobody_stores_is_bounded_and_keeps_the_newest_in_order() -> None:
    refusals = RefusedLogonLog()
    for minute in range(100):
        for remote in range(30):
            refusals.add(minute, f"r{remote}", "tcp", "bad_logon", "", "")
    taken = refusals.take(100)
    assert (len(taken), refusals.dropped) == (
        MAX_PENDING_ENTRIES,
        100 * (MAX_REMOTES + 1) - MAX_PENDING_ENTRIES,
    )
    refusals.restore(taken[:3])
    refusals.add(100, "new", "tcp", "bad_logon", "", "")
    assert [entry.minute for entry in refusals.take(101)] == [*(one.minute for one in taken[:3]), 100]
