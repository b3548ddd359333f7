"""Client entries of the status: built in slices, reused while a client is idle, paged for ten thousand
clients.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.clients import crowd, page
from broker_core.broker import Broker
from broker_core.control import status
from broker_core.control.status import (
    IDLE_REBUILD_PASSES,
    MAX_CLIENTS_PER_SLICE,
    MAX_PAUSE_S,
    MAX_SUBSCRIPTIONS_PER_SLICE,
    PAUSE_FACTOR,
)
from broker_core.delivery.scheduling import ITERATION_BUDGET_NS
from broker_core.documents.clients import ClientEntry
from broker_core.documents.instance import Snapshot
from broker_core.engine.enforcement import pause_subscription
from tests.support.brokers import running_broker, until
from tests.support.call_counts import counting_calls

AGES = {
    "lag_ms",
    "seconds_behind",
    "caught_up_in_s",
    "health",
    "write_blocked_ms",
    "forecast",
    "why_slow",
    "subscriptions",
}


def by_name(clients: list[ClientEntry]) -> dict[str, ClientEntry]:
    return {one.name: one for one in clients}


def stop_ticks(broker: Broker) -> None:
    """Stop the broker's own ticks, so that only the test's calls make a second pass."""
    assert broker._ticking is not None
    broker._ticking.cancel()


async def test_an_idle_client_keeps_its_entry_until_its_next_refresh(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        stop_ticks(broker)
        crowd(broker, 1, 0)
        await broker.statistics.sample_second()
        made = [(await broker.statistics.sample_second()).clients[0] for _ in range(2 * IDLE_REBUILD_PASSES)]
    assert len({id(one) for one in made}) <= 3
    assert all(one == made[0] for one in made)


async def test_client_of_which_anything_changes_is_as_one_looked_at_now(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        stop_ticks(broker)
        crowd(broker, 3, 1)
        rested, behind = (
            broker.engine.roster.clients["client-00001"],
            broker.engine.roster.clients["client-00000"],
        )
        publish = '{"c":"publish","topic":"%s","data":1}'
        changes = (
            lambda: rested.receive((publish % "busy.1",)),
            lambda: rested.receive((publish % "quiet.2",)),
            lambda: rested.receive(('{"c":"subscribe","id":"t","topic":"more"}',)),
            lambda: rested.receive(('{"c":"unsubscribe","id":"t"}',)),
            lambda: None,
        )
        for change in changes:
            await broker.statistics.sample_second()
            change()
            await asyncio.sleep(0.1)
            second = by_name((await broker.statistics.sample_second()).clients)
            for name, fresh in by_name(broker.statistics.list_clients()).items():
                for key in set(fresh.__struct_fields__) - AGES:
                    assert getattr(second[name], key) == getattr(fresh, key), key
        assert second["client-00000"].lag_messages == 1
        assert behind.backlog.messages == 1


async def test_client_that_leaves_between_two_slices_is_in_no_snapshot(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        stop_ticks(broker)
        crowd(broker, 3 * MAX_CLIENTS_PER_SLICE, 0)
        making = asyncio.create_task(broker.statistics.sample_second())
        await asyncio.sleep(0)
        gone = [
            f"client-{number:05d}" for number in (0, MAX_CLIENTS_PER_SLICE + 1, 3 * MAX_CLIENTS_PER_SLICE - 1)
        ]
        for name in gone:
            broker.engine.roster.clients[name].close("operator_disconnect", "gone")
        await until(lambda: not set(gone) & set(broker.engine.roster.clients))
        made = by_name((await making).clients)
        assert len(made) == 3 * MAX_CLIENTS_PER_SLICE - len(gone)
        assert not set(gone) & set(made)
        await broker.statistics.sample_second()
        assert not set(gone) & (set(broker.statistics._entries) | set(broker.statistics._sample_keys))


async def test_loop_has_a_turn_after_each_slice(tmp_path: Path) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with running_broker(tmp_path) as broker:
        stop_ticks(broker)
        crowd(broker, 5 * MAX_CLIENTS_PER_SLICE, 0)
        counting = asyncio.create_task(count())
        await asyncio.sleep(0)
        before = turns
        await broker.statistics.sample_second()
        counting.cancel()
    assert turns - before >= 4


async def test_each_pass_checks_some_of_a_clients_many_subscriptions(tmp_path: Path) -> None:
    number = 5 * MAX_SUBSCRIPTIONS_PER_SLICE
    async with running_broker(tmp_path) as broker:
        stop_ticks(broker)
        crowd(broker, 1, 0)
        client = broker.engine.roster.clients["client-00000"]
        client.receive(f'{{"c":"subscribe","id":"m{n}","topic":"many.{n}"}}' for n in range(number))
        await until(lambda: len(client.subscriptions) > number)
        ends = ["m0", f"m{number - 1}"]
        for id in ends:
            pause_subscription(
                client, client.subscriptions[id]
            )  # something waits for it, which has to be explained
        client.receive([f'{{"c":"publish","topic":"many.{n}","data":{n}}}' for n in (0, number - 1)])
        await until(lambda: client.account.matched.messages == 2)
        making = asyncio.create_task(broker.statistics.sample_second())
        await asyncio.sleep(0)
        client.receive([f'{{"c":"unsubscribe","id":"{id}"}}' for id in ends])
        await until(lambda: len(client.subscriptions) == number - 1)
        assert not making.done()
        (entry,) = (await making).clients
        assert not {one.id for one in entry.subscriptions} & set(ends)
        assert len(entry.subscriptions) == number - 1
        assert entry.matched_messages == 2  # those of what has ended meanwhile, once
        (after,) = (await broker.statistics.sample_second()).clients
        assert entry.subscriptions == after.subscriptions


async def test_a_page_of_ten_thousand_clients_costs_less_than_building_all_entries(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path, on_tick=_ignore_snapshot) as broker:
        crowd(broker, 10_000, 50)
        await until(lambda: len(broker.statistics._recent) == 10_000)
        spent = []
        for turn in range(5):
            with counting_calls() as number:
                found = await page(broker, sort="-lag_ms", search="client-0", offset=turn * 100, limit=100)
            spent.append(number())
            assert (found["total"], len(found["clients"])) == (10_000, 100)
    # The least: a second's work may fall into the others. Each client is looked at a few times, not described
    # anew.
    assert min(spent) < 10 * 10_000


async def _ignore_snapshot(snapshot: Snapshot) -> None:
    """Ignore a snapshot."""


async def test_after_a_slice_the_loop_is_free_for_longer_and_all_pauses_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spent, slept = 0.0, list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(status, "thread_cpu_seconds", lambda: spent)
    monkeypatch.setattr(status, "asyncio", SimpleNamespace(sleep=sleep))
    slices = status._TimeSlices()
    assert not slices.is_over_budget
    spent += ITERATION_BUDGET_NS / 1e9
    assert slices.is_over_budget
    await slices.yield_to_loop()
    assert slept == [PAUSE_FACTOR * ITERATION_BUDGET_NS / 1e9] and not slices.is_over_budget
    for _ in range(1_000):
        spent += 0.01
        await slices.yield_to_loop()
    assert sum(slept) == pytest.approx(MAX_PAUSE_S) and slept[-1] == 0
