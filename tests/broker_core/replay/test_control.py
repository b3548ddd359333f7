"""Pause, resume and rates of bookmark subscriptions, through a real broker and raw commands."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker_core.replay import replay
from broker_core.replay.rate_limit import ReplayRateLimiter
from tests.support.brokers import ask, running_broker, until
from tests.support.raw import RawClient
from tests.support.recording_client import RecordingClient


async def publish(writer: RawClient, topic: str, first: int, number: int) -> None:
    await writer.publish(topic, [b'{"n":%d}' % n for n in range(first, first + number)])


async def test_a_subscription_that_starts_paused_delivers_nothing_until_it_is_resumed(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        writer, reader = await RawClient.connect(broker, "writer"), await RecordingClient.connect(broker)
        await publish(writer, "a", 0, 100)
        await until(lambda: broker.engine.frontier.durable >= 100)
        await reader.request(c="subscribe", id="s", topic="a", bookmark="0", paused=True)
        await publish(writer, "a", 100, 100)
        await until(lambda: broker.engine.frontier.durable >= 200)
        (client,) = [one for one in await ask(broker, "clients") if one["name"] == "reader"]
        assert client["subscriptions"][0]["delivery"] == "paused"
        assert (reader.deliveries, reader.completed_ids()) == ([], [])
        assert any(
            "paused subscription s of reader" in segment["pinned_by"]
            for segment in await ask(broker, "journals")
        )
        (ack,) = await reader.request(c="resume", ids=["s"])
        assert (ack["ack"], ack["id"], ack["bookmark"]) == ("processed", "s", "test-1|0|")
        await until(lambda: len(reader.deliveries) == 200)
        assert reader.sequences_of() == list(range(1, 201))
        await until(lambda: reader.completed_ids() == ["s"])
        await until(lambda: broker.engine.roster.clients["reader"].subscriptions["s"].serving_replay is None)
        assert not any(segment["pinned_by"] for segment in await ask(broker, "journals"))
        reader.close()


async def test_a_live_subscription_is_paused_and_goes_on_from_the_log(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        writer, reader = await RawClient.connect(broker, "writer"), await RecordingClient.connect(broker)
        await reader.request(c="subscribe", id="s", topic="a", bookmark="0|1|")
        await publish(writer, "a", 0, 10)
        await until(lambda: len(reader.deliveries) == 10)
        (ack,) = await reader.request(c="pause", ids=["s"])
        assert ack["bookmark"] == "test-1|10|"
        await publish(writer, "a", 10, 10)
        await until(lambda: broker.engine.frontier.durable >= 20)
        assert len(reader.deliveries) == 10
        await reader.request(c="pause", ids=["s"])  # again: no change
        await reader.request(c="resume", ids=["s"])
        await until(lambda: len(reader.deliveries) == 20)
        await publish(writer, "a", 20, 10)
        await until(lambda: len(reader.deliveries) == 30)
        assert reader.sequences_of() == list(range(1, 31))
        assert reader.completed_ids() == ["s"], "said when it was subscribed, and not again"
        reader.close()


async def test_subscriptions_resumed_together_share_one_replay_in_the_order_of_the_log(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as broker:
        writer, reader = await RawClient.connect(broker, "writer"), await RecordingClient.connect(broker)
        for start in range(0, 300, 3):
            for topic in "abc":
                await publish(writer, topic, start, 3)
        await until(lambda: broker.engine.frontier.durable >= 900)
        for topic in ("a", "b", ">"):
            await reader.request(c="subscribe", id=topic, topic=topic, bookmark="0", paused=True)
        await reader.request(c="resume", ids=["a", "b", ">"])
        connection = broker.engine.roster.clients["reader"]
        replays = {target.serving_replay for target in connection.subscriptions.values()}
        assert len(replays) == 1
        await until(lambda: len(reader.deliveries) == 300 + 300 + 900)
        order = [sequence for _, sequence, _ in reader.deliveries]
        assert order == sorted(order)
        assert reader.sequences_of(3) == list(range(1, 901))
        await until(lambda: sorted(reader.completed_ids()) == [">", "a", "b"])
        reader.close()


async def test_one_of_several_leaves_a_shared_replay_and_the_others_go_on(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        writer, reader = await RawClient.connect(broker, "writer"), await RecordingClient.connect(broker)
        await publish(writer, "a", 0, 500)
        await until(lambda: broker.engine.frontier.durable >= 500)
        for name in ("one", "two", "three"):
            await reader.request(c="subscribe", id=name, topic="a", bookmark="0", paused=True, rate="1000")
        await reader.request(c="resume", ids=["one", "two", "three"])
        await until(lambda: len(reader.deliveries) > 30)
        await reader.request(c="pause", ids=["two"])
        reader.raw.send_command({"c": "unsubscribe", "id": "three"})
        await reader.request(c="rate", ids=["one"])
        await until(lambda: len(reader.sequences_of(1)) == 500)
        assert 0 < len(reader.sequences_of(2)) < 500
        await reader.request(c="rate", ids=["two"])
        await reader.request(c="resume", ids=["two"])
        await until(lambda: len(reader.sequences_of(2)) == 500)
        assert reader.sequences_of(1) == reader.sequences_of(2) == list(range(1, 501))
        reader.close()


class PacedClock:
    """The clock that paces replays; it advances when the test says so."""

    def __init__(self, patched: pytest.MonkeyPatch) -> None:
        self.now = 0
        patched.setattr(
            replay, "ReplayRateLimiter", lambda rate, now: ReplayRateLimiter(rate, lambda: self.now)
        )

    async def passes(self, seconds: float, reader: RecordingClient, due: Callable[[], float]) -> None:
        """Advance in steps of 50 ms.

        After each step at least `due()` records must have arrived.
        """
        for _ in range(round(seconds / 0.05)):
            self.now += 50_000_000
            wanted = due()
            await until(lambda: len(reader.deliveries) >= wanted, 60)  # noqa: B023


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> PacedClock:
    return PacedClock(monkeypatch)


async def wait_until_quiet(reader: RecordingClient) -> None:
    """Wait until no delivery arrives between two replies."""
    before = -1
    while before != len(reader.deliveries):
        before = len(reader.deliveries)
        await reader.request(c="unsubscribe", id="nobody")
        await asyncio.sleep(0.03)


async def test_a_rate_holds_and_can_be_changed_while_it_runs(tmp_path: Path, clock: PacedClock) -> None:
    async with running_broker(tmp_path) as broker:
        writer, reader = await RawClient.connect(broker, "writer"), await RecordingClient.connect(broker)
        await publish(writer, "a", 0, 5_000)
        await until(lambda: broker.engine.frontier.durable >= 5_000)
        await reader.request(c="subscribe", id="s", topic="a", bookmark="0", rate="1000")
        await until(lambda: reader.deliveries)
        began = clock.now
        await clock.passes(1, reader, lambda: (clock.now - began) / 1e6 - 20)
        await wait_until_quiet(reader)
        assert 980 <= len(reader.deliveries) <= 1_020
        await reader.request(c="rate", ids=["s"], rate="50KB")
        began, at = clock.now, len(reader.deliveries)
        each = len(reader.deliveries[-1][2])
        await clock.passes(0.5, reader, lambda: at + (clock.now - began) / 1e9 * 50_000 / each - 150)
        await wait_until_quiet(reader)
        nbytes = sum(len(body) for _, _, body in reader.deliveries[at:])
        assert 25_000 * 0.94 <= nbytes <= 25_000 * 1.04
        await reader.request(c="rate", ids=["s"])
        await until(lambda: len(reader.deliveries) == 5_000, 60)
        await until(lambda: not broker.engine.roster.clients["reader"].subscriptions["s"].cursor.is_behind)
        assert reader.sequences_of() == list(range(1, 5_001))
        reader.close()


async def test_a_rate_holds_for_what_is_new_as_well(tmp_path: Path, clock: PacedClock) -> None:
    async with running_broker(tmp_path) as broker:
        writer, reader = await RawClient.connect(broker, "writer"), await RecordingClient.connect(broker)
        await reader.request(c="subscribe", id="s", topic="a", bookmark="0|1|", rate="200")
        await until(lambda: reader.completed_ids() == ["s"])
        await publish(writer, "a", 0, 1_000)
        await until(lambda: broker.engine.frontier.durable >= 1_000)
        began = clock.now
        await clock.passes(0.5, reader, lambda: (clock.now - began) / 1e9 * 200 - 5)
        await wait_until_quiet(reader)
        assert 95 <= len(reader.deliveries) <= 105
        await reader.request(c="rate", ids=["s"])
        await until(lambda: len(reader.deliveries) == 1_000)
        await publish(writer, "a", 1_000, 10)
        await until(lambda: len(reader.deliveries) == 1_010)
        assert reader.sequences_of() == list(range(1, 1_011))
        reader.close()


async def test_a_multiple_of_the_recorded_pace_replays_the_recorded_pauses(
    tmp_path: Path, clock: PacedClock
) -> None:
    async with running_broker(tmp_path) as broker:
        writer, reader = await RawClient.connect(broker, "writer"), await RecordingClient.connect(broker)
        for number in range(4):
            await publish(writer, "a", number, 1)
            await until(lambda: broker.engine.frontier.durable > number)  # noqa: B023
            await asyncio.sleep(0.1)
        at = [batch.accepted_at for batch in broker.engine.journal.read(1, 1 << 20, 4)]
        await reader.request(c="subscribe", id="s", topic="a", bookmark="0", rate="2X")
        await until(lambda: len(reader.deliveries) == 1)
        for number in range(1, 4):
            pause = (at[number] - at[number - 1]) // 2
            clock.now += pause - 5_000_000
            await wait_until_quiet(reader)
            assert len(reader.deliveries) == number
            clock.now += 5_000_001
            await until(lambda: len(reader.deliveries) == number + 1)  # noqa: B023
        await reader.request(c="subscribe", id="t", topic="a", bookmark="0", rate=".1X", rate_max_gap="20ms")
        for number in range(4):
            await until(lambda: len(reader.deliveries) == 5 + number)  # noqa: B023
            clock.now += 20_000_000
        reader.close()


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ({"c": "pause", "ids": ["s", "nobody"]}, "unknown_subscription"),
        ({"c": "pause", "ids": ["s", "plain"]}, "not_steerable"),
        ({"c": "rate", "ids": ["s", "early"], "rate": "10"}, "not_steerable"),
        ({"c": "rate", "ids": ["s"], "rate": "fast"}, "bad_rate"),
        ({"c": "rate", "ids": ["s"], "rate_max_gap": "10s"}, "bad_command"),
        ({"c": "resume", "ids": []}, "bad_command"),
        ({"c": "subscribe", "id": "x", "topic": "a", "rate": "10"}, "bad_command"),
        ({"c": "subscribe", "id": "x", "topic": "a", "paused": True}, "bad_command"),
        (
            {"c": "subscribe", "id": "x", "topic": "a", "bookmark": "0", "rate": "10", "durability": "live"},
            "bad_command",
        ),
        (
            {
                "c": "subscribe",
                "id": "x",
                "topic": "a",
                "bookmark": "0",
                "paused": True,
                "durability": "live",
            },
            "bad_command",
        ),
        ({"c": "subscribe", "id": "x", "topic": "a", "conflation": "1s"}, "bad_conflation"),
        ({"c": "subscribe", "id": "x", "topic": "a", "conflation_key": "/id"}, "bad_command"),
    ],
)
async def test_what_cannot_be_done_is_refused_and_nothing_of_it_done(
    tmp_path: Path, command: dict[str, Any], code: str
) -> None:
    async with running_broker(tmp_path) as broker:
        reader = await RecordingClient.connect(broker)
        await reader.request(c="subscribe", id="s", topic="a", bookmark="0|1|")
        await reader.request(c="subscribe", id="plain", topic="a")
        await reader.request(c="subscribe", id="early", topic="a", bookmark="0|1|", durability="live")
        (error,) = await reader.request(**command)
        assert (error["c"], error["code"]) == ("error", code)
        target = broker.engine.roster.clients["reader"].subscriptions["s"]
        assert (target.cursor.is_paused, target.rate) == (False, None)
        reader.close()


steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 400)),
        st.tuples(st.just("pause"), st.sets(st.sampled_from("xyz"), min_size=1)),
        st.tuples(st.just("resume"), st.sets(st.sampled_from("xyz"), min_size=1)),
        st.tuples(
            st.just("rate"),
            st.sets(st.sampled_from("xyz"), min_size=1),
            st.sampled_from(["3000", "1MB", "9X", None]),
        ),
        st.tuples(st.just("turn"), st.integers(0, 8)),
    ),
    max_size=15,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps, st.booleans())
def test_pauses_and_rates_at_any_point_lose_and_repeat_nothing(made: list[Any], paused: bool) -> None:
    asyncio.run(_steered(made, paused))


async def _steered(made: list[Any], paused: bool) -> None:
    with tempfile.TemporaryDirectory() as home:
        async with running_broker(Path(home)) as broker:
            writer, reader = await RawClient.connect(broker, "writer"), await RecordingClient.connect(broker)
            published = 300
            await publish(writer, "a", 0, published)
            await until(lambda: broker.engine.frontier.durable >= published)
            for id in "xyz":
                options = {"filter": "/n % 3 = 1"} if id == "z" else {}
                await reader.request(c="subscribe", id=id, topic="a", bookmark="0", paused=paused, **options)
            for step in made:
                match step:
                    case ("publish", number):
                        await publish(writer, "a", published, number)
                        published += number
                    case ("pause" | "resume" as word, ids):
                        await reader.request(c=word, ids=sorted(ids))
                    case ("rate", ids, rate):
                        await reader.request(c="rate", ids=sorted(ids), **({"rate": rate} if rate else {}))
                    case ("turn", number):
                        await asyncio.sleep(number / 1_000)
            await reader.request(c="rate", ids=["x", "y", "z"])
            await reader.request(c="resume", ids=["x", "y", "z"])
            third = len([n for n in range(published) if n % 3 == 1])
            await until(lambda: len(reader.deliveries) >= 2 * published + third)
            # By what they say: the broker's own records come between them when a second has gone by.
            came = {
                stream: [json.loads(body)["n"] for of, _, body in reader.deliveries if of == stream]
                for stream in (1, 2, 3)
            }
            assert came[1] == came[2] == list(range(published))
            assert came[3] == [n for n in range(published) if n % 3 == 1]
            reader.close()
