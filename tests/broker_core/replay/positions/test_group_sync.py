"""Position updates between members of a group: each sends its changes, and updates that did not get into the
log again.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from broker_core.batch import Batch, build_single_topic_batch, stamp_header
from broker_core.journal.commit_log import PendingBatch
from broker_core.journal.open_segments import PinTable
from broker_core.replay.positions.file import DurableSubscriptionRecord, Entry, ManagedReplayRecord
from broker_core.replay.positions.group_sync import (
    IN_A_RECORD,
    RETRY_DELAY_S,
    GroupPositionSync,
    PositionUpdate,
)
from broker_core.replay.positions.store import PositionStore
from tests.broker_core.replay.positions.test_store import REPLAY

NUMBER = 2 * IN_A_RECORD


class CountingDict(PositionStore):
    """A dict that counts iterations over all positions."""

    walks = 0

    def __iter__(self) -> Iterator[Entry]:
        self.walks += 1
        return super().__iter__()


class SyncMember:
    """A member whose log accepts or refuses its updates."""

    def __init__(self, home: Path, name: str) -> None:
        self.kept = CountingDict(home / f"{name}.kept.json", PinTable().add)
        self.now, self.takes = 0.0, True
        self.said: list[bytes] = []
        self.common = GroupPositionSync(
            self.kept, self._publish, lambda replay: None, lambda: True, lambda: self.now, name
        )

    def _publish(self, topic: str, bodies: list[bytes]) -> list[PendingBatch[Any]]:
        buf = build_single_topic_batch("", topic, bodies)
        if self.takes:
            stamp_header(buf, origin=1, epoch=1, first_sequence=1, accepted_at=1)
            self.said += bodies
        return [PendingBatch(Batch.parse(buf), failed=not self.takes)]

    def publish_counts(self) -> tuple[int, int]:
        """Send the changes; return how many were sent as whole entries and how many as positions alone."""
        self.said.clear()
        self.common.publish_changes()
        told = [msgspec.json.decode(one, type=PositionUpdate) for one in self.said]
        return sum(len(one.kept) for one in told), sum(len(one.at) for one in told)


def durable(number: int) -> DurableSubscriptionRecord:
    return DurableSubscriptionRecord(
        name=f"d{number}", client="c", topic="t", filter=None, position=7, created_at=1, seen_at=1
    )


def test_each_tells_what_has_changed_without_going_through_all_that_is_kept(tmp_path: Path) -> None:
    a, b = SyncMember(tmp_path, "a"), SyncMember(tmp_path, "b")
    durables, replay = [durable(number) for number in range(NUMBER)], ManagedReplayRecord(**REPLAY)
    for one in (*durables, replay):
        a.kept.add(one)
    assert a.publish_counts() == (NUMBER + 1, 0)
    b.common.apply_updates(a.said)
    a.kept.walks = b.kept.walks = 0

    durables[3].position, replay.paused, replay.steered_at = 20, False, 20
    a.kept.record_disconnect(durables[3])
    a.kept.mark_changed(replay)
    assert a.publish_counts() == (1, 1)
    b.common.apply_updates(a.said)
    assert b.kept.durables["c", "d3"].position == 20
    assert not b.kept.replays["nightly"].paused
    b.kept.durables["c", "d3"].position = 30
    b.kept.mark_changed(b.kept.durables["c", "d3"])
    # What one knows from the other it doesn't tell back, and what nobody touched nobody tells.
    assert (b.publish_counts(), a.publish_counts()) == ((0, 1), (0, 0))

    a.kept.remove(durables[4])
    assert a.publish_counts() == (0, 0)
    b.common.apply_updates(a.said)
    assert ("c", "d4") not in b.kept.durables

    # What didn't get into the log is told anew, whole.
    a.takes, durables[5].position = False, 40
    a.kept.mark_changed(durables[5])
    a.common.publish_changes()
    a.takes = True
    assert (a.publish_counts(), a.publish_counts()) == ((1, 0), (0, 0))

    # And all of it after a day, some a second.
    a.now += RETRY_DELAY_S + 1
    assert [a.publish_counts() for _ in range(4)] == [(IN_A_RECORD, 0), (IN_A_RECORD, 0), (0, 0), (0, 0)]
    assert (a.kept.walks, b.kept.walks) == (0, 0)


def test_a_position_that_was_told_late_moves_no_later_one_of_that_name(tmp_path: Path) -> None:
    """One member reports a client's progress while the other deletes the subscription and creates another of
    that name.
    """
    a, b = SyncMember(tmp_path, "a"), SyncMember(tmp_path, "b")
    a.kept.add(durable(1))
    a.publish_counts()
    b.common.apply_updates(a.said)
    b.kept.remove(b.kept.durables["c", "d1"])
    b.kept.add(msgspec.structs.replace(durable(1), created_at=2))
    b.publish_counts()
    a.kept.durables["c", "d1"].position = 100
    a.kept.mark_changed(a.kept.durables["c", "d1"])
    deleted = [*b.said]
    a.publish_counts()
    b.common.apply_updates(a.said)
    a.common.apply_updates(deleted)
    assert [one.kept.durables["c", "d1"].position for one in (a, b)] == [7, 7]
