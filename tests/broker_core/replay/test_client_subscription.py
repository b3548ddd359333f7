"""Resend position of a client: it covers the bytes that two kernels may hold, and little more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker_core.replay.client_subscription import BUFFER_BYTES, GRAIN_BYTES, SentHistory

sizes = st.one_of(st.integers(1, 2_000), st.integers(1, 4 * 1024 * 1024))


@given(st.lists(sizes, max_size=60))
def test_the_last_bytes_sent_are_covered(made: list[int]) -> None:
    trail, sent = SentHistory(), list(enumerate(made, 1))
    for number, nbytes in sent:
        trail.record_sent(number, nbytes)
    if not sent:
        assert trail.first == 0
        return
    assert trail.first > 0
    covered = sum(size for number, size in sent if number >= trail.first)
    assert covered >= min(sum(size for _, size in sent), BUFFER_BYTES - 3 * 4 * 1024 * 1024)
    assert len(trail._steps) <= 2 * BUFFER_BYTES // GRAIN_BYTES + 2


def test_without_interruptions_it_is_exact_to_a_grain() -> None:
    trail = SentHistory()
    for number in range(1, 100_001):
        trail.record_sent(number, 1_000)
    behind = (100_001 - trail.first) * 1_000
    assert BUFFER_BYTES <= behind <= BUFFER_BYTES + GRAIN_BYTES
