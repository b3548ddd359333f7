"""Power loss at each call in turn, which undoes renames without a directory sync: no durable record is
lost.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from broker_core.errors import JournalError, OperatorError
from broker_core.journal.journal import Journal
from tests.broker_core.journal.test_segment_replacer import archive, compress
from tests.support.lost_renames import LostRenames

from .support import fill, open_journal, read_all
from .test_journal import kill

MOST_CALLS = 400


def each_call(
    tmp_path: Path, ready: Callable[[Journal], object], work: Callable[[Journal, Path], object]
) -> tuple[int, int]:
    """Do the work with a power loss at each call in turn, until it completes; return (cuts, lost renames)."""
    cuts = lost = 0
    for at in range(1, MOST_CALLS):
        home = tmp_path / str(at)
        home.mkdir()
        files = LostRenames(home)
        journal = open_journal(home, files=files)
        ready(journal)
        files.calls, files.power_goes_at = 0, at
        try:
            work(journal, home)
        except (JournalError, OperatorError, OSError):
            cuts += 1
        met, durable = files.calls >= at, journal.durable_sequence
        files.power_goes_at = 0
        kill(journal)
        lost += files.power_on()
        again = open_journal(home)
        found = read_all(again)
        assert found == list(range(1, len(found) + 1)) and len(found) >= durable > 0, f"cut at call {at}"
        assert again.next_sequence > durable
        again.close()
        if not met:
            return cuts, lost
    raise AssertionError(f"it takes more than {MOST_CALLS} calls")


def test_what_is_durable_stays_when_the_name_of_a_new_segment_is_lost(tmp_path: Path) -> None:
    def begin(journal: Journal) -> None:
        fill(journal, 2, size=4_000)
        journal.preallocate()

    def roll(journal: Journal, _: Path) -> None:
        for _ in range(8):
            fill(journal, 1, size=4_000)
        journal.finish_sealed()

    cuts, lost = each_call(tmp_path, begin, roll)
    assert cuts > 10 and lost > 0, "a segment's name was lost"


@pytest.mark.parametrize("action", [archive, compress])
def test_what_is_durable_stays_when_the_new_name_of_a_swap_is_lost(
    tmp_path: Path, action: Callable[[Journal, Path, str], object]
) -> None:
    def begin(journal: Journal) -> None:
        fill(journal, 10, size=4_000)
        journal.finish_sealed()

    cuts, lost = each_call(
        tmp_path, begin, lambda journal, home: action(journal, home, journal.segments()[0].name)
    )
    assert cuts > 3 and lost > 0, "the name that the swap gave was lost"
