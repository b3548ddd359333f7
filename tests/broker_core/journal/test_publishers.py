"""Publisher sessions: which session may extend a name's sequences; every way of opening the journal
agrees.
"""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from broker_core.batch import PROVEN, Batch, build_single_topic_batch
from broker_core.journal.appender import JournalOptions
from broker_core.journal.journal import Journal
from broker_core.journal.publisher_sequences import publisher_sequences_path
from broker_core.journal.publishers import (
    MAX_SESSIONS,
    Publishers,
    Refusal,
    SessionNumber,
    judge,
    with_number,
)
from tests.broker_core.journal.support import INSTANCE

HELD = (SessionNumber(1, 10), SessionNumber(2, 4))


def test_the_holder_goes_on_and_its_repeats_are_known() -> None:
    assert judge(HELD, 1, 11, 12, claims=False) == 10
    assert judge(HELD, 1, 9, 12, claims=False) == 10
    assert judge(HELD, 1, 9, 10, claims=False) is Refusal.REPEATED


def test_another_session_takes_the_name_above_the_holders_number_with_its_first_batch_alone() -> None:
    assert judge(HELD, 3, 11, 12, claims=True) == 0
    assert judge(HELD, 3, 11, 12, claims=False) is Refusal.SUPERSEDED
    assert judge(HELD, 3, 10, 12, claims=True) is Refusal.SUPERSEDED
    assert judge((), 3, 5, 6, claims=False) == 0, "of a name that nobody has published as"


def test_a_session_that_lost_the_name_still_knows_what_is_stored() -> None:
    assert judge(HELD, 2, 3, 4, claims=False) is Refusal.REPEATED
    assert judge(HELD, 2, 3, 5, claims=True) is Refusal.SUPERSEDED
    assert judge(HELD, 2, 11, 12, claims=True) == 4


def test_numbers_of_somebody_unproven_do_not_bind_who_has_proven_to_be_a_user() -> None:
    raised = (SessionNumber(1, 1_000_000),)
    assert judge(raised, 2 | PROVEN, 1, 3, claims=True) == 0
    held = with_number(raised, 2 | PROVEN, 3)
    assert judge(held, 2 | PROVEN, 4, 4, claims=False) == 0 + 3
    assert judge(held, 1, 1_000_001, 1_000_001, claims=False) is Refusal.SUPERSEDED
    assert judge(held, 4 | PROVEN, 1, 1, claims=True) is Refusal.SUPERSEDED, (
        "of two that have, numbers decide"
    )


def test_a_sessions_number_never_goes_back() -> None:
    publishers = Publishers()
    for session, number in ((1, 5), (1, 3), (2, 6), (1, 4), (2, 2)):
        publishers.note("p", session, number)
    assert publishers == {"p": (SessionNumber(2, 6), SessionNumber(1, 5))}


NOTES = st.lists(
    st.tuples(st.sampled_from("pq"), st.integers(1, MAX_SESSIONS + 2), st.integers(1, 3)), max_size=30
)


@given(NOTES, st.integers(0, 30), st.integers(0, 30))
def test_what_is_found_behind_a_file_makes_what_was_there(
    notes: list[tuple[str, int, int]], begins: int, ends: int
) -> None:
    """A file is true up to `ends`; the segment that reaches beyond it begins at `begins`."""
    numbers: dict[tuple[str, int], int] = {}
    ascending: list[tuple[str, int, int]] = []
    for name, session, more in notes:
        numbers[name, session] = numbers.get((name, session), 0) + more
        ascending.append((name, session, numbers[name, session]))
    whole, kept, found = Publishers(), Publishers(), Publishers()
    for one in ascending:
        whole.note(*one)
    for one in ascending[:ends]:
        kept.note(*one)
    for one in ascending[min(begins, ends) :]:
        found.note(*one)
    for name, sessions in found.items():
        kept.merge_sessions(name, sessions)
    assert kept == whole


def test_a_journal_knows_its_publishers_sessions_with_and_without_their_file(tmp_path: Path) -> None:
    def opened() -> Journal:
        return Journal.open(tmp_path, INSTANCE, options=JournalOptions(1 << 16, 0))

    journal = opened()
    for session, number in ((1, 1), (2, 2), (1, 3), (2 | PROVEN, 1)):
        batch = Batch.parse(build_single_topic_batch("p", "t", [bytes(30_000)], number, session))
        batch.stamp(
            origin=journal.origin, epoch=journal.epoch, first_sequence=journal.next_sequence, accepted_at=1
        )
        journal.write([batch])
        if number == 1:
            journal.sync()
    journal.sync()
    expected = {"p": (SessionNumber(2 | PROVEN, 1), SessionNumber(1, 3), SessionNumber(2, 2))}
    assert journal.publishers == expected
    journal.close()
    for keep in (True, False):
        if not keep:
            publisher_sequences_path(tmp_path, INSTANCE).unlink()
        again = opened()
        assert again.publishers == expected
        again.close()
