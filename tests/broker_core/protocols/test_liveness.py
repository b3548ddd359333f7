"""Detection of dead peers: silence, and frames that do not end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.protocols.liveness import (
    FRAME_GRACE_MS,
    MIN_FRAME_RATE,
    TOLERATED_LATENESS_MS,
    Liveness,
    ReadProgress,
)
from broker_core.protocols.native import COMMAND, encode_frame_header
from broker_core.protocols.stomp.frames import StompFrameReader as StompReader
from tests.support.frames import FedReader

INTERVAL_MS = 1_000


def test_any_byte_is_a_sign_of_life_and_silence_is_two_intervals_and_the_slack() -> None:
    life = Liveness(0)
    for second in range(1, 60):
        life.note_read(second * INTERVAL_MS, ReadProgress(second, second, 0))
        assert not life.is_silent(second * INTERVAL_MS, INTERVAL_MS)
    end = life.last_alive_at
    assert not life.is_silent(end + 2 * INTERVAL_MS, INTERVAL_MS)
    assert life.is_silent(end + 2 * INTERVAL_MS + 1, INTERVAL_MS)
    assert not life.is_silent(end + 2 * INTERVAL_MS + 500, INTERVAL_MS, slack_ms=500)


def test_bytes_that_the_peer_acknowledges_are_a_sign_of_life_while_older_ones_wait() -> None:
    life = Liveness(0)
    life.note_written(1_000, handed_bytes=100_000, acknowledged_bytes=0)
    life.note_written(2_000, handed_bytes=100_000, acknowledged_bytes=20_000)
    assert life.last_alive_at == 2_000
    life.note_written(3_000, handed_bytes=100_000, acknowledged_bytes=20_000)
    assert life.last_alive_at == 2_000, "nothing moved"


def test_heartbeats_that_a_kernel_acknowledges_for_a_process_that_stands_still_are_none() -> None:
    life = Liveness(0)
    for second in range(1, 10):
        life.note_written(second * 1_000, handed_bytes=25 * second, acknowledged_bytes=25 * second)
    assert life.last_alive_at == 0


@pytest.mark.parametrize(
    ("rate", "overdue"), [(1, True), (MIN_FRAME_RATE // 2, True), (2 * MIN_FRAME_RATE, False)]
)
def test_a_frame_that_does_not_end_is_overdue_unless_it_keeps_the_slowest_rate(
    rate: int, overdue: bool
) -> None:
    life = Liveness(0)
    found = False
    for second in range(1, 16 * FRAME_GRACE_MS // 1_000):
        life.note_read(second * 1_000, ReadProgress(100 + second * rate, second * rate, 100))
        found = found or life.is_frame_overdue(second * 1_000)
        assert not found or second * 1_000 > FRAME_GRACE_MS
    assert found == overdue


def test_frames_that_end_and_idle_connections_are_never_overdue() -> None:
    life = Liveness(0)
    for second in range(1, 10 * FRAME_GRACE_MS // 1_000):
        # Each look finds a part of another frame.
        life.note_read(second * 1_000, ReadProgress(second * 10, 7, second * 10 - 7))
        assert not life.is_frame_overdue(second * 1_000)
    life.note_read(second * 1_000, ReadProgress(10_000, 0, 10_000))
    assert not life.is_frame_overdue(100 * FRAME_GRACE_MS)


def test_time_in_which_nothing_was_read_does_not_count() -> None:
    life = Liveness(0)
    life.note_read(1_000, ReadProgress(10, 10, 0))
    life.restart(10 * FRAME_GRACE_MS)
    now = 10 * FRAME_GRACE_MS + 1_000
    assert not life.is_frame_overdue(now) and not life.is_silent(now, INTERVAL_MS)


@given(st.lists(st.integers(0, 120_000), max_size=20))
def test_pauses_of_the_checking_process_are_no_silence_of_the_peer(pauses: list[int]) -> None:
    life, now, silent_ms = Liveness(0), 0, 0
    for pause in pauses:
        now += INTERVAL_MS + pause
        life.note_check(now, INTERVAL_MS)
        silent_ms += INTERVAL_MS + (pause if pause <= TOLERATED_LATENESS_MS else 0)
        assert life.last_alive_at == now - silent_ms
        assert life.is_silent(now, INTERVAL_MS) == (silent_ms > 2 * INTERVAL_MS)


def test_readers_say_what_is_unfinished() -> None:
    frame = encode_frame_header(COMMAND, 0, 4) + b"1234"
    native = FedReader()
    native.feed(frame + frame[:5])
    assert native.progress == ReadProgress(17, 5, 12)
    native.feed(frame[5:])
    assert native.progress == ReadProgress(24, 0, 24)
    stomp = StompReader()
    stomp.feed(b"CONNECT\naccept-version:1.2\nhost:h\n\n\0")
    size = stomp.progress.received_bytes
    assert stomp.progress == ReadProgress(size, 0, size)
    stomp.feed(b"\n\n")
    assert stomp.progress == ReadProgress(size + 2, 0, size + 2), "heart-beats are no frames"
    stomp.feed(b"SEND\ndest")
    assert stomp.progress == ReadProgress(size + 11, 9, size + 2)
