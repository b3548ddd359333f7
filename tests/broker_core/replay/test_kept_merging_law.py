"""Property tests of position updates between members: no position moves back, and all members converge."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from broker_core.batch import Batch, build_single_topic_batch, stamp_header
from broker_core.journal.commit_log import PendingBatch
from broker_core.journal.open_segments import PinTable
from broker_core.replay.positions.file import (
    DestinationSetBack,
    DurableSubscriptionRecord,
    ManagedReplayRecord,
)
from broker_core.replay.positions.group_sync import GroupPositionSync
from broker_core.replay.positions.store import PositionStore
from tests.broker_core.replay.positions.test_store import REPLAY

NAMES = ("a", "b", "c")


class MergingMember:
    """A member whose updates wait until the log accepts or refuses them."""

    def __init__(self, home: Path, name: str) -> None:
        self.kept = PositionStore(home / f"{name}.json", PinTable().add)
        self.waiting: list[tuple[PendingBatch[Any], bytes]] = []
        self.taken = 0
        self.common = GroupPositionSync(
            self.kept, self._publish, lambda replay: None, lambda: True, lambda: 0.0, name
        )

    def _publish(self, topic: str, bodies: list[bytes]) -> list[PendingBatch[Any]]:
        made = [
            PendingBatch[Any](Batch.parse(build_single_topic_batch("", topic, [body]))) for body in bodies
        ]
        self.waiting += zip(made, bodies, strict=True)
        return made

    def append(self, log: list[bytes]) -> None:
        """Append the waiting updates to the log."""
        for pending, body in self.waiting:
            assert isinstance(pending.batch.buf, bytearray)
            stamp_header(pending.batch.buf, origin=1, epoch=1, first_sequence=len(log) + 1, accepted_at=1)
            pending.batch = Batch.parse(pending.batch.buf)
            log.append(body)
        self.waiting.clear()

    def refuse(self) -> None:
        """Refuse all waiting updates, as for a member that is cut off."""
        for pending, _ in self.waiting:
            pending.failed = True
        self.waiting.clear()

    def take(self, log: list[bytes], number: int) -> None:
        """Read `number` more records of the log."""
        self.common.apply_updates(log[self.taken : self.taken + number])
        self.taken = min(self.taken + number, len(log))

    @property
    def durable(self) -> DurableSubscriptionRecord:
        return self.kept.durables["c", "d"]

    @property
    def replay(self) -> ManagedReplayRecord:
        return self.kept.replays["nightly"]

    @property
    def positions(self) -> tuple[int, ...]:
        """Return all figures that must only grow."""
        replay = self.replay
        return (
            self.durable.position,
            replay.position,
            replay.expires_from,
            replay.recorded_at,
            replay.delivered_messages,
            replay.ended_at,
            replay.steered_at,
        )

    @property
    def state(self) -> tuple[int, bytes]:
        return self.durable.position, msgspec.json.encode(self.replay)


def member(home: Path, name: str) -> MergingMember:
    made = MergingMember(home, name)
    made.kept.add(
        DurableSubscriptionRecord(
            name="d", client="c", topic="t", filter=None, position=7, created_at=1, seen_at=1
        )
    )
    made.kept.add(ManagedReplayRecord(**REPLAY))
    return made


places = st.integers(1, 60)
steps = st.one_of(
    st.tuples(st.just("acknowledge"), st.sampled_from(NAMES), places, places),
    st.tuples(st.just("steer"), st.sampled_from(NAMES), st.booleans(), st.integers(16, 40)),
    st.tuples(st.just("end"), st.sampled_from(NAMES), st.sampled_from(["completed", "cancelled"]), places),
    st.tuples(st.sampled_from(["tell", "append", "refuse"]), st.sampled_from(NAMES)),
    st.tuples(st.just("take"), st.sampled_from(NAMES), st.integers(1, 5)),
)


def do(made: MergingMember, log: list[bytes], step: tuple[Any, ...]) -> None:
    match step:
        case ("acknowledge", _, position, certain):
            made.durable.position = max(made.durable.position, position)
            made.replay.note_progress(position, min(certain, position))
            made.kept.mark_changed(made.durable)
            made.kept.mark_changed(made.replay)
        case ("steer", _, paused, at):
            if at > made.replay.steered_at:
                made.replay.paused, made.replay.steered_at = paused, at
                made.kept.mark_changed(made.replay)
        case ("end", _, how, at):
            if not made.replay.ended:
                made.replay.ended, made.replay.ended_at = how, at
                made.kept.mark_changed(made.replay)
        case ("tell", _):
            made.common.publish_changes()
        case ("append", _):
            made.append(log)
        case ("refuse", _):
            made.refuse()
        case ("take", _, number):
            made.take(log, number)


@given(st.lists(steps, max_size=60))
def test_no_position_moves_back_and_in_the_end_all_members_have_the_same(
    taken: list[tuple[Any, ...]],
) -> None:
    with tempfile.TemporaryDirectory() as home:
        members, log = {name: member(Path(home), name) for name in NAMES}, list[bytes]()
        for step in taken:
            before = {name: one.positions for name, one in members.items()}
            do(members[step[1]], log, step)
            for name, one in members.items():
                assert all(now >= was for now, was in zip(one.positions, before[name], strict=True)), step
        greatest = [max(one.positions[of] for one in members.values()) for of in range(7)]
        for one in members.values():
            one.refuse()  # the cut heals: what didn't get into the log is told again
        rounds = 0
        while any(one.waiting or one.taken < len(log) for one in members.values()) or rounds < 2:
            rounds += 1
            assert rounds < 10, "they tell each other for ever"
            for one in members.values():
                one.common.publish_changes()
                one.append(log)
            for one in members.values():
                one.take(log, len(log))
        assert len({one.state for one in members.values()}) == 1
        assert list(members["a"].positions) == greatest


managed = st.builds(
    lambda position, certain, begun, at, paused, steered, ended, ended_at, lost: ManagedReplayRecord(
        **REPLAY
        | {
            "position": position,
            "certain": min(certain, position),
            "begun": begun,
            "recorded_at": at,
            "paused": paused,
            "steered_at": steered,
            "ended": ended,
            "ended_at": ended_at if ended else 0,
            "set_back": lost,
        }
    ),
    places,
    st.integers(0, 60),
    st.booleans(),
    places,
    st.booleans(),
    st.integers(0, 3),
    st.sampled_from(["", "completed", "cancelled"]),
    st.integers(1, 3),
    st.none() | st.builds(DestinationSetBack, st.integers(1, 3), st.integers(1, 3), st.integers(0, 1)),
)


def merged(*replays: ManagedReplayRecord) -> ManagedReplayRecord:
    found = msgspec.structs.replace(replays[0])
    for one in replays[1:]:
        found.merge(one)
    return found


def shown(replay: ManagedReplayRecord) -> dict[str, Any]:
    """Return the fields of a replay, with the two representations of `certain` made equal."""
    return msgspec.structs.asdict(replay) | {"certain": replay.expires_from}


@given(managed, managed, managed)
def test_a_merge_only_adds_and_its_order_makes_no_difference(
    one: ManagedReplayRecord, two: ManagedReplayRecord, three: ManagedReplayRecord
) -> None:
    both = merged(one, two)
    assert both.position == max(one.position, two.position)
    assert both.expires_from == max(one.expires_from, two.expires_from)
    assert shown(both) == shown(merged(two, one))
    assert shown(merged(both, three)) == shown(merged(one, merged(two, three)))
    assert shown(merged(both, one)) == shown(both)
