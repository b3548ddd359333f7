"""Delivery latency of the last ten seconds: percentiles that are never too small."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from broker_core.client import AsyncClient
from broker_core.delivery.latency import WINDOW_S, LatencyPercentiles, LatencyTracker
from tests.support.broker_simulation import START, outbox_entry
from tests.support.brokers import address_of, ask, running_broker, until

US = 1_000


def recorded_delays(delays: LatencyTracker, microseconds: int, messages: int = 1) -> None:
    one = outbox_entry(1, at=START)
    one.batch.header = one.batch.header._replace(accepted_at=START)
    delays.record_handover(one, messages, START + US * microseconds)


def percentile(sorted_delays: list[int], part: float) -> int:
    """Return the delay within which the fraction `part` of the delays lies."""
    return next(one for rank, one in enumerate(sorted_delays, 1) if rank >= part * len(sorted_delays))


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=300))
def test_a_percentile_is_never_too_small_and_too_great_by_a_quarter_at_most(every: list[int]) -> None:
    delays = LatencyTracker()
    for one in every:
        recorded_delays(delays, one)
    found = delays.sample_second()
    assert found is not None and found.messages == len(every)
    for said, part in ((found.p50_ms, 0.5), (found.p99_ms, 0.99)):
        true = percentile(sorted(every), part)
        assert true < 1_000 * said <= 1.25 * true + 1


def test_what_was_handed_over_counts_for_ten_seconds_by_its_messages() -> None:
    delays = LatencyTracker()
    assert delays.sample_second() is None
    recorded_delays(delays, 900, messages=99)
    recorded_delays(delays, 70_000)
    assert delays.sample_second() == LatencyPercentiles(1.024, 1.024, 100)
    recorded_delays(delays, 70_000)
    assert delays.sample_second() == LatencyPercentiles(1.024, 81.92, 101)
    for _ in range(WINDOW_S - 2):
        assert delays.sample_second() == LatencyPercentiles(1.024, 81.92, 101)
    assert delays.sample_second() == LatencyPercentiles(81.92, 81.92, 1)
    assert delays.sample_second() is None


def test_a_clock_that_was_set_back_counts_as_no_time() -> None:
    delays = LatencyTracker()
    recorded_delays(delays, -5_000_000)
    assert delays.sample_second() == LatencyPercentiles(0.001, 0.001, 1)


async def test_a_broker_says_how_long_live_messages_took_and_leaves_replays_out(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        assert broker._ticking is not None
        broker._ticking.cancel()  # what is called here alone makes seconds
        async with (
            AsyncClient(address_of(broker), "writer") as writer,
            AsyncClient(address_of(broker), "reader") as reader,
        ):
            for number in range(3):
                await writer.publish("t", {"n": number})
            await until(lambda: broker.engine.frontier.durable == 3)
            got = aiter(await reader.subscribe("t", bookmark="0"))
            for _ in range(3):
                await anext(got)
            [subscription] = broker.engine.roster.clients["reader"].subscriptions.values()
            await until(lambda: not subscription.cursor.is_behind)
            await broker.statistics.sample_second()
            assert (await ask(broker, "status"))["delay"] is None
            await writer.publish("t", {"n": 3})
            await anext(got)
            await broker.statistics.sample_second()
            delay = (await ask(broker, "status"))["delay"]
    assert delay["messages"] == 1 and 0 < delay["p50_ms"] == delay["p99_ms"]
