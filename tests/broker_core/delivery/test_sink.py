"""Detection of peers that don't read, from their receive window: with a simulated receiver, and a property
test.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker_core.delivery.sink import (
    MIN_OBSERVED_BYTES,
    OBSERVATION_NS,
    UNKNOWN,
    ReadDetector,
    ReceiveWindowSample,
)

ROOM = 60_000


class SimulatedKernel:
    """A peer's kernel with a receive buffer of `room` bytes."""

    def __init__(self, room: int = ROOM) -> None:
        self.came = self.read = self.now = 0
        self.room, self.unread = room, ReadDetector()
        self.sample_after(0)

    def sample_after(self, after_ns: int, came: int = 0, read: int = 0) -> bool:
        """Let bytes arrive and be read, then sample the window."""
        self.now += after_ns
        self.came += came
        self.read += read
        return self.unread.update(ReceiveWindowSample(self.came, self.read + self.room), self.now)


def test_a_peer_that_reads_none_of_enough_bytes_for_long_enough_is_not_reading() -> None:
    assert SimulatedKernel().sample_after(OBSERVATION_NS, MIN_OBSERVED_BYTES)
    assert not SimulatedKernel().sample_after(OBSERVATION_NS, MIN_OBSERVED_BYTES - 1)
    assert not SimulatedKernel().sample_after(OBSERVATION_NS - 1, MIN_OBSERVED_BYTES)


def test_little_that_comes_seldom_is_enough_in_the_end() -> None:
    peer = SimulatedKernel()
    assert [peer.sample_after(OBSERVATION_NS, MIN_OBSERVED_BYTES // 4) for _ in range(4)] == [
        False,
        False,
        False,
        True,
    ]


def test_half_of_what_comes_is_reading_and_less_is_not() -> None:
    assert not SimulatedKernel().sample_after(OBSERVATION_NS, 40_000, 20_000)
    assert SimulatedKernel().sample_after(OBSERVATION_NS, 40_000, 19_999)


def test_it_ends_at_the_first_look_that_sees_it_read_however_soon() -> None:
    peer = SimulatedKernel()
    assert peer.sample_after(OBSERVATION_NS, 30_000)
    assert peer.sample_after(1) and peer.sample_after(1, 1_000, 499)  # nothing moved, then too little
    assert not peer.sample_after(1, 0, 1)
    assert not peer.sample_after(OBSERVATION_NS, MIN_OBSERVED_BYTES, MIN_OBSERVED_BYTES)


def test_what_was_before_is_not_held_against_it() -> None:
    peer = SimulatedKernel()
    assert peer.sample_after(OBSERVATION_NS, 40_000)
    assert not peer.sample_after(OBSERVATION_NS, 20_000, 60_000)
    assert not peer.sample_after(OBSERVATION_NS - 1, 20_000)  # a moment's
    assert peer.sample_after(1)


def test_a_window_that_becomes_narrow_while_all_is_read_says_nothing() -> None:
    peer = SimulatedKernel()
    peer.room //= 2
    assert not peer.sample_after(OBSERVATION_NS, 100_000, 100_000)
    assert not any(peer.sample_after(OBSERVATION_NS, 20_000, 20_000) for _ in range(9))


def test_where_nobody_tells_nobody_is_said_to_leave_anything() -> None:
    unread = ReadDetector()
    assert not any(unread.update(UNKNOWN, now * OBSERVATION_NS) for now in range(9))


@given(st.lists(st.tuples(st.integers(0, 2 * OBSERVATION_NS), st.integers(0, 50_000)), max_size=30))
def test_a_peer_that_reads_everything_is_always_reading(steps: list[tuple[int, int]]) -> None:
    peer = SimulatedKernel()
    assert not any(peer.sample_after(after, came, came) for after, came in steps)


@given(st.lists(st.tuples(st.integers(0, 2 * OBSERVATION_NS), st.integers(0, 50_000)), max_size=30))
def test_a_peer_that_reads_nothing_is_found_at_the_first_check_and_stays_so(
    steps: list[tuple[int, int]],
) -> None:
    peer = SimulatedKernel()
    for after, came in steps:
        found = peer.sample_after(after, came)
        assert found == (peer.unread.is_not_reading) and found >= (
            peer.came >= 2 * MIN_OBSERVED_BYTES and after >= OBSERVATION_NS
        )
