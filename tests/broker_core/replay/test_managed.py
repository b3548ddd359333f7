"""Progress, states and the time left of a managed replay."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from broker_core.bookmark import MAX_SEQUENCE
from broker_core.replay.managed_replays import ReplaySpeed
from broker_core.replay.positions.file import ManagedReplayRecord
from broker_core.replay.span import NEVER

S = 1_000_000_000


def make_replay(**changed: object) -> ManagedReplayRecord:
    whole = ManagedReplayRecord(
        name="nightly",
        client="auditor",
        topic="orders.>",
        filter=None,
        bookmark="0",
        rate=None,
        rate_max_gap=None,
        conflation=None,
        conflation_key=None,
        paused=False,
        first=101,
        not_before=0,
        last=MAX_SEQUENCE,
        not_after=NEVER,
        position=101,
        begun=True,
        created_at=S,
    )
    return replace(whole, **changed)


def test_progress_counts_from_where_it_began_to_the_end_of_the_log_or_of_its_range() -> None:
    replay = make_replay()
    assert replay.progress(newest=200) == 0.0
    assert replay.advance(151)
    assert not replay.advance(140), "a position never moves back"
    assert replay.progress(newest=200) == 0.5
    assert replace(replay, last=175).progress(newest=200) == pytest.approx(2 / 3)
    assert make_replay(position=201).progress(newest=200) == 1.0


def test_one_whose_end_is_to_come_has_not_done_anything_yet() -> None:
    assert make_replay(not_after=9 * S, position=201).progress(newest=200) == 0.0
    assert make_replay(ended="completed").progress(newest=10_000) == 1.0


@pytest.mark.parametrize(
    ("changed", "connected", "state"),
    [
        ({}, False, "waiting"),
        ({}, True, "running"),
        ({"caught_up": True}, True, "following"),
        ({"paused": True}, False, "paused"),
        ({"paused": True}, True, "paused"),
        ({"ended": "cancelled", "paused": True}, False, "cancelled"),
        ({"ended": "completed"}, True, "completed"),
    ],
)
def test_a_state_in_a_word(changed: dict[str, object], connected: bool, state: str) -> None:
    assert make_replay(**changed).state(connected) == state


def test_the_remaining_time_follows_the_speed_of_the_last_seconds() -> None:
    replay, speed = make_replay(), ReplaySpeed(101, 0)
    assert speed.estimate_remaining_s(replay, 1_100, 0) is None
    for second in range(1, 4):
        replay.advance(101 + 100 * second)
        speed.update(replay.position, second * S)
    assert speed.per_second == pytest.approx(100)
    assert speed.estimate_remaining_s(replay, 1_100, 0) == pytest.approx(7.0)
    replay.advance(1_101)
    assert speed.estimate_remaining_s(replay, 1_100, 0) == 0.0


def test_at_a_multiple_the_remaining_time_follows_the_recorded_timeline() -> None:
    replay, speed = make_replay(recorded_at=100 * S, rate="4X"), ReplaySpeed(101, 0)
    assert speed.estimate_remaining_s(replay, 1_000, 300 * S) == 50.0
    assert speed.estimate_remaining_s(replace(replay, not_after=120 * S), 1_000, 300 * S) == 5.0


def test_what_is_stored_comes_back_and_fields_of_a_later_version_are_passed_over() -> None:
    replay = make_replay(rate="2X", rate_max_gap="10s", position=150, ended="cancelled", ended_at=5)
    stored = msgspec.to_builtins(replay) | {"later": 1}
    assert msgspec.to_builtins(msgspec.convert(stored, ManagedReplayRecord)) == msgspec.to_builtins(replay)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"kind": "managed", "name": "x"}, ManagedReplayRecord)
