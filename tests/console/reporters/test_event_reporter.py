"""Events of a running broker start runs of actions, through the reporter in the broker's process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from asgiref.sync import sync_to_async

from broker_core.broker import Broker
from console.access.rights import EffectiveAccess, GrantedRight
from console.choices import ActorKind, Permission
from console.models import ActionRun, Instance
from console.reporters.event_reporter import EventReporter
from console.services import policies
from console.services.actions import editor, executor
from console.services.actors import Actor
from tests.support.brokers import running_broker
from tests.support.raw import RawClient

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_url")]
MARIA = Actor(ActorKind.PERSON, "maria", 7, access=EffectiveAccess((GrantedRight(frozenset(Permission)),)))


@sync_to_async
def make(when: list[dict[str, str]]) -> None:
    instance = policies.ensure_instance("test-1")
    editor.create(MARIA, instance, {"name": "one", "when": when, "steps": [{"do": "event", "name": "x"}]})


@sync_to_async
def runs() -> list[tuple[str, dict[str, str]]]:
    return [
        (run.trigger["on"], run.parameters["variables"]) for run in ActionRun.objects.order_by("created_at")
    ]


@asynccontextmanager
async def reported(home: Path) -> AsyncIterator[tuple[Broker, EventReporter]]:
    """Run a broker and report its events every 100 ms, ten times as often as in production."""
    async with running_broker(home) as broker:
        events = EventReporter(broker)
        await events.on_broker_started()

        async def tick() -> None:
            while True:
                events.tick()
                await asyncio.sleep(0.1)

        ticking = asyncio.create_task(tick())
        try:
            yield broker, events
        finally:
            ticking.cancel()
    await events.close()


async def until_runs(count: int) -> list[tuple[str, dict[str, str]]]:
    async with asyncio.timeout(15):
        while len(found := await runs()) < count:
            await asyncio.sleep(0.05)
    return found


async def test_start_logon_message_and_end_become_runs(tmp_path: Path) -> None:
    await make(
        [
            {"on": "startup"},
            {"on": "logon", "client": "fee*"},
            {"on": "publish", "topic": "flights.>", "filter": "/delay > 10"},
            {"on": "shutdown"},
        ]
    )
    async with reported(tmp_path) as (broker, _):
        client = await RawClient.connect(broker, "feed")
        await client.publish("flights.AA", [b'{"delay": 5}', b'{"delay": 15}'], 1)
        await client.read_until("persisted")
        await until_runs(3)
        other = await RawClient.connect(broker, "board")
        other.close()
        client.close()
    found = await until_runs(4)
    assert found[0][0] == "startup"
    assert sorted(on for on, _ in found) == ["logon", "publish", "shutdown", "startup"], found
    variables = dict(found)["publish"]
    assert (variables["AMPS_DATA"], variables["AMPS_CLIENT_NAME"]) == ('{"delay": 15}', "feed")
    assert (await sync_to_async(Instance.objects.get)(name="test-1")).started_at is not None


async def test_an_action_made_while_the_broker_runs_is_heard(tmp_path: Path) -> None:
    await sync_to_async(policies.ensure_instance)("test-1")
    async with reported(tmp_path) as (broker, _):
        await make([{"on": "disconnect", "client": ""}])
        async with asyncio.timeout(15):
            while len(broker.engine.subscriptions.registry) == 0:
                await asyncio.sleep(0.05)
        client = await RawClient.connect(broker, "feed")
        client.close()
        ((on, variables),) = await until_runs(1)
    assert (on, variables["AMPS_CLIENT_NAME"]) == ("disconnect", "feed")


async def test_a_file_system_that_fills_up_fires_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = 50.0
    monkeypatch.setattr("console.services.actions.event_interest.percent_used", lambda place: used)
    await make([{"on": "file_system", "place": "spool", "above": "85"}])
    async with reported(tmp_path) as _:
        used = 90.0
        ((on, variables),) = await until_runs(1)
        await asyncio.sleep(1.2)  # two more checks
    assert (on, variables["SLUICE_PLACE"], variables["SLUICE_PERCENT"]) == ("file_system", "spool", "90.0")
    assert len(await runs()) == 1


def test_how_full_a_file_system_is() -> None:
    assert 0 < executor.percent_used("home") < 100
