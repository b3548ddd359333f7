"""Replay rates as clients write them, and a property test: within 2 % of the rate over any ten seconds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_core.errors import ClientError
from broker_core.replay.rate_limit import GRAIN_NS, ReplayPacer, parse_rate

S = 1_000_000_000
TEN_SECONDS = 10 * S


@pytest.mark.parametrize(
    ("text", "unit", "amount"),
    [
        ("1000", "messages", 1_000),
        ("0.5", "messages", 0.5),
        ("500KB", "bytes", 500_000),
        ("1.5mb", "bytes", 1.5e6),
        ("4KiB", "bytes", 4_096),
        ("2X", "recorded", 2),
        (".5x", "recorded", 0.5),
        (" 10 ", "messages", 10),
    ],
)
def test_a_rate_is_messages_bytes_or_a_multiple(text: str, unit: str, amount: float) -> None:
    rate = parse_rate(text)
    assert (rate.unit, rate.amount, rate.text) == (unit, amount, text)


@pytest.mark.parametrize(
    "text",
    ["", "fast", "-1", "0", "0X", "1e3", "5 KB s", "X", "٣", "1.2.3", "10K", "1,5KB", "10TBX", "9" * 19],
)
def test_anything_else_is_refused_by_name(text: str) -> None:
    with pytest.raises(ClientError) as refused:
        parse_rate(text)
    assert refused.value.code == "bad_rate"


def test_a_longest_gap_belongs_to_a_multiple() -> None:
    assert parse_rate("5X", "10s").max_gap_ns == 10 * S
    for rate, gap, code in (
        ("1000", "10s", "bad_rate"),
        ("5X", "soon", "bad_interval"),
        ("5X", "0s", "bad_interval"),
    ):
        with pytest.raises(ClientError) as refused:
            parse_rate(rate, gap)
        assert refused.value.code == code


class PacedReplay:
    """A replay of batches through a pacer on a manual clock; `gone` has (time, batch, row, bytes)."""

    def __init__(self, pacer: ReplayPacer, now: int) -> None:
        self.pacer, self.now = pacer, now
        self.gone: list[tuple[int, int, int, int]] = []

    def replay(self, batches: list[tuple[int, list[int]]], delays: list[int], until: int) -> None:
        """Replay batches of (recorded at, sizes); each wake-up is late by the next of `delays`."""
        turn = 0
        for number, (recorded_at, sizes) in enumerate(batches):
            sent = 0
            while sent < len(sizes):
                left = np.array(sizes[sent:], np.int64)
                granted = self.pacer.allowed_now(self.now, recorded_at, left)
                self.gone += [(self.now, number, sent + row, sizes[sent + row]) for row in range(granted)]
                sent += granted
                if sent < len(sizes):
                    wake = self.pacer.next_allowed_at(self.now, recorded_at)
                    assert wake > self.now
                    self.now = wake + delays[turn % len(delays)]
                    turn += 1
                if self.now > until:
                    return


def amounts_in_ten_seconds(gone: list[tuple[int, int]]) -> list[int]:
    """The sum of the amounts in every window of ten seconds that starts with something and is whole."""
    moments = np.array([moment for moment, _ in gone])
    sums = np.concatenate(([0], np.cumsum([amount for _, amount in gone])))
    starts = np.unique(moments)
    starts = starts[starts + TEN_SECONDS <= moments[-1]]
    left, right = np.searchsorted(moments, starts), np.searchsorted(moments, starts + TEN_SECONDS)
    return (sums[right] - sums[left]).tolist()  # type: ignore[no-any-return]


delays = st.lists(st.integers(0, 30_000_000), min_size=1, max_size=20)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 600), delays, st.lists(st.integers(1, 5_000), min_size=1, max_size=10))
def test_messages_per_second_hold_over_any_ten_seconds(rate: int, late: list[int], counts: list[int]) -> None:
    start = 1_790_000_000 * S
    run = PacedReplay(ReplayPacer(parse_rate(str(rate)), start), start)
    total, batches = 0, []
    while total < rate * 26:
        batches += [(start, [100] * count) for count in counts]
        total += sum(counts)
    run.replay(batches, late, start + 25 * S)
    for count in amounts_in_ten_seconds([(moment, 1) for moment, *_ in run.gone]):
        assert abs(count - 10 * rate) <= 0.02 * 10 * rate + 1


@settings(max_examples=25, deadline=None)
@given(st.integers(20, 300), delays, st.lists(st.integers(0, 5_000), min_size=2, max_size=50))
def test_bytes_per_second_hold_over_any_ten_seconds(
    kilobytes: int, late: list[int], sizes: list[int]
) -> None:
    sizes = [*sizes, 5_000]
    run = PacedReplay(ReplayPacer(parse_rate(f"{kilobytes}KB"), 0), 0)
    enough = kilobytes * 1_000 * 26 // sum(sizes) + 1
    run.replay([(0, sizes * enough)], late, 25 * S)
    for nbytes in amounts_in_ten_seconds([(moment, size) for moment, *_, size in run.gone]):
        assert abs(nbytes - 10_000 * kilobytes) <= 0.02 * 10_000 * kilobytes + 5_000


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from(["2X", ".5X", "1X", "10X"]),
    delays,
    st.lists(st.integers(0, 3 * S), min_size=20, max_size=60),
)
def test_a_multiple_follows_the_recorded_pace(text: str, late: list[int], gaps: list[int]) -> None:
    recorded = np.cumsum([1_790_000_000 * S, *gaps]).tolist()
    multiple = parse_rate(text).amount
    run = PacedReplay(ReplayPacer(parse_rate(text), 0), 0)
    run.replay([(at, [10]) for at in recorded], late, 1_000 * S)
    assert len(run.gone) == len(recorded)
    for (moment, number, _, _), at in zip(run.gone, recorded, strict=True):
        ahead = moment - (at - recorded[0]) / multiple
        # Never early; late by a wake-up and its delay, which the records after it make up.
        assert -1_000 <= ahead <= GRAIN_NS + max(late) + 1_000, number


def test_recorded_pauses_are_shortened_to_the_longest_gap() -> None:
    pacer = ReplayPacer(parse_rate("5X", "10s"), 0)
    run = PacedReplay(pacer, 0)
    run.replay([(0, [1]), (50 * S, [1]), (24 * 3_600 * S, [1]), (24 * 3_600 * S + 5 * S, [1])], [0], 10**15)
    assert [round(moment / S, 3) for moment, *_ in run.gone] == [0, 10, 20, 21]


def test_a_client_that_did_not_read_gets_no_burst_afterwards() -> None:
    pacer, many = ReplayPacer(parse_rate("1000"), 0), np.full(100_000, 100)
    assert pacer.allowed_now(0, 0, many) == 1
    assert pacer.allowed_now(60 * S, 0, many) == 101  # 100 ms are made up, and not 60 s
    assert pacer.allowed_now(60 * S, 0, many) == 0


def test_a_rate_changed_while_it_waits_holds_at_once() -> None:
    pacer, many = ReplayPacer(parse_rate("0.01"), 0), np.full(10_000, 100)
    assert pacer.allowed_now(0, 0, many) == 1
    assert pacer.allowed_now(5 * S, 0, many) == 0  # the next was due after 100 s
    pacer.set_rate(parse_rate("100"), 5 * S)
    assert pacer.allowed_now(5 * S, 0, many) == 1
    assert pacer.allowed_now(6 * S, 0, many) == 11
    pacer.set_rate(parse_rate("10KB"), 6 * S)
    assert pacer.allowed_now(6 * S + S // 20, 0, many) == 6


def test_a_recording_whose_clock_was_set_back_waits_for_nothing() -> None:
    run = PacedReplay(ReplayPacer(parse_rate("1X"), 0), 0)
    run.replay([(10 * S, [1]), (4 * S, [1]), (11 * S, [1])], [0], 100 * S)
    assert [round(moment / S, 2) for moment, *_ in run.gone] == [0, 0, 1]
