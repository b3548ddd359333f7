"""Invalid content of the log service that a member must refuse: each has an error name, and no record is
lost.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

import pytest
from nats.aio.client import Client
from nats.js import api

from broker_core import broker as broker_module
from broker_core.bookmark import format_moment
from broker_core.client import NOW, AsyncClient
from broker_core.clock import SystemClock
from broker_core.group.jetstream import JetStreamLog
from broker_core.group.settings import GroupSettings
from tests.group.test_one_log import publish, read
from tests.group.test_states import HOLD_MS, refusal_of
from tests.support.brokers import until
from tests.support.certificates import Authority
from tests.support.groups import GROUP, RunningMember, running_members, start_member
from tests.support.nats_servers import running_nats_servers

HOUR_MS = 3_600_000
HOUR_NS = HOUR_MS * 1_000_000


async def without_the_log(url: str, instead: api.StreamConfig | None = None) -> None:
    """Delete the group's stream, and create another stream in its place."""
    client = Client()
    await client.connect(url)
    try:
        await client.jetstream().delete_stream(f"SLUICE_{GROUP}")
        if instead is not None:
            await client.jetstream().add_stream(instead)
    finally:
        await client.close()


async def serves_and_refuses(member: RunningMember, state: str, records: int) -> None:
    await until(lambda: member.state == state)
    assert len(await read(member.address, "reader", records)) == records
    assert await refusal_of(member, "refused") == "behind"


async def test_a_stream_that_can_not_be_the_log_and_one_of_another_log_are_named_and_left_alone(
    tmp_path: Path,
) -> None:
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a", hold_ms=HOLD_MS) as (a,):
            await publish(a.address, "p", 1, 20)
        other = api.StreamConfig(
            name=f"SLUICE_{GROUP}", subjects=[f"sluice.{GROUP}.log.*"], storage=api.StorageType.MEMORY
        )
        await without_the_log(engines.urls[0], other)
        async with running_members(tmp_path, engines.urls, "a", hold_ms=HOLD_MS) as (a,):
            await serves_and_refuses(a, "wrong_stream", 20)
        await without_the_log(engines.urls[0])
        engine = JetStreamLog(GroupSettings(GROUP, "x", engines.urls))
        made = await engine.attach(uuid4())
        try:
            async with running_members(tmp_path, engines.urls, "a", hold_ms=HOLD_MS) as (a,):
                await serves_and_refuses(a, "engine_lost", 20)
                said = a.member.status().why
                assert str(made.log) in said and str(a.journal.identity) in said
            assert (await engine.stream_info()).last == 0  # nobody appended there
        finally:
            await engine.close()


@pytest.mark.slow
async def test_an_engine_whose_disk_is_full_refuses_by_name_and_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a", "b", hold_ms=HOLD_MS) as (a, b):
            await publish(a.address, "p", 1, 20)
            engines.kill()
            engines.edit_config = lambda text: text.replace(
                "sync_interval", "max_file_store: 1, sync_interval"
            )
            engines.start()
            assert await refusal_of(a, "q") == "behind"
            engines.kill()
            engines.edit_config = lambda text: text
            engines.start()
            await publish(a.address, "p", 21, 40)
            assert sum(by == "p" for _, by, _ in await read(b.address, "reader", 40)) >= 39


async def test_a_member_whose_right_to_the_engine_is_taken_says_so_and_goes_on_when_it_has_one(
    tmp_path: Path,
) -> None:
    async with running_nats_servers(tmp_path, 1) as engines:
        engines.kill()
        engines.edit_config = lambda text: f"{text}authorization {{ token: first }}\n"
        engines.start()
        urls = [engines.urls[0].replace("nats://", "nats://first@")]
        async with running_members(tmp_path, urls, "a", hold_ms=HOLD_MS) as (a,):
            await publish(a.address, "p", 1, 20)
            engines.kill()
            engines.edit_config = lambda text: f"{text}authorization {{ token: second }}\n"
            engines.start()
            await until(lambda: "uthorization" in a.member.status().why)
            await serves_and_refuses(a, "away", 20)
            engines.kill()
            engines.edit_config = lambda text: f"{text}authorization {{ token: first }}\n"
            engines.start()
            await publish(a.address, "p", 21, 40)


class SequenceAhead(SystemClock):
    def now_ns(self) -> int:
        return super().now_ns() + HOUR_NS


class SequenceBehind(SystemClock):
    def now_ns(self) -> int:
        return super().now_ns() - HOUR_NS


async def test_members_whose_clocks_are_an_hour_off_move_nobodys_and_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_nats_servers(tmp_path, 1) as engines, AsyncExitStack() as there:
        (a,) = await there.enter_async_context(running_members(tmp_path, engines.urls, "a", hold_ms=HOLD_MS))
        await publish(a.address, "p", 1, 10)
        for name, clock, ahead_ms in (("b", SequenceAhead, HOUR_MS), ("c", SequenceBehind, -HOUR_MS)):
            monkeypatch.setattr(broker_module, "SystemClock", clock)
            one = await start_member(tmp_path, name, engines.urls, hold_ms=HOLD_MS)
            there.push_async_callback(one.stop)
            await publish(one.address, f"of-{name}", 1, 10)
            assert abs(one.member.status().clock_ahead_ms - ahead_ms) < HOUR_MS // 2
        await publish(a.address, "p", 11, 20)
        moments = [one.accepted_at for one in a.journal.read(1, 1 << 24, a.journal.durable_sequence)]
        assert moments == sorted(moments)
        assert moments[-1] - moments[0] < HOUR_NS // 2


@pytest.mark.parametrize("clock", [SequenceAhead, SequenceBehind])
async def test_clients_of_a_member_whose_clock_is_an_hour_off_are_served_as_at_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: type[SystemClock]
) -> None:
    begin = SystemClock().now_ns()
    async with running_nats_servers(tmp_path, 1) as engines, AsyncExitStack() as there:
        (a,) = await there.enter_async_context(running_members(tmp_path, engines.urls, "a", hold_ms=HOLD_MS))
        monkeypatch.setattr(broker_module, "SystemClock", clock)
        b = await start_member(tmp_path, "b", engines.urls, hold_ms=HOLD_MS)
        there.push_async_callback(b.stop)
        client = await there.enter_async_context(AsyncClient(b.address, "reader"))
        conflated = await client.subscribe("t", conflation="100ms", conflation_key="/by")
        await client.subscribe("t", id="waits", bookmark=NOW, durability="live", ack="client", prefetch=1)
        await publish(a.address, "p", 1, 10)
        async with asyncio.timeout(30):
            assert (await anext(aiter(conflated))).data["n"] <= 10
            # The moment was, whatever this member's clock says.
            since = await client.subscribe("t", id="since", bookmark=format_moment(begin))
            numbers = aiter(since)
            assert [(await anext(numbers)).data["n"] for _ in range(10)] == list(range(1, 11))
        engine = b.broker.engine
        backlog = engine.roster.clients["reader"].backlog
        assert backlog.queues.messages
        assert 0 <= engine.clock.now_ns() - backlog.queues.oldest_at < HOUR_NS // 2


async def test_an_engine_whose_certificate_is_not_to_be_believed_is_named_and_nothing_is_told_to_it(
    tmp_path: Path,
) -> None:
    ours, foreign = Authority(tmp_path, "ours"), Authority(tmp_path, "foreign")
    good, expired, other = ours.sign("good"), ours.sign("expired", days=(-9, -1)), foreign.sign("other")

    def proves_itself_with(pair: tuple[Path, Path]) -> None:
        engines.kill()
        engines.edit_config = lambda text: f'{text}tls {{ cert_file: "{pair[0]}", key_file: "{pair[1]}" }}\n'
        engines.start()

    async with running_nats_servers(tmp_path, 1) as engines:
        proves_itself_with(good)
        urls = [engines.urls[0].replace("nats://", "tls://")]
        ca = str(ours.certificate)
        async with running_members(tmp_path, urls, "a", hold_ms=HOLD_MS, ca=ca) as (a,):
            await publish(a.address, "p", 1, 20)
            for wrong, said in ((expired, "expired"), (other, "certificate")):
                proves_itself_with(wrong)
                await until(lambda said=said: said in a.member.status().why)  # type: ignore[misc]
                await serves_and_refuses(a, "away", 20)
            proves_itself_with(good)
            await until(a.is_taking_part)
            await publish(a.address, "p", 21, 40)
