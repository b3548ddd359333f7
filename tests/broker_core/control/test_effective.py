"""The settings in force for a client and its subscriptions, each with where it is set."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from broker_core.config import PolicyDocument
from broker_core.documents.clients import EffectiveSetting
from tests.support.brokers import ask, running_broker, tcp_policy
from tests.support.raw import RawClient


def policy() -> PolicyDocument:
    plain = tcp_policy(message_memory_limit=1_000_000)
    document = plain.to_dict() | {
        "rules": [
            {
                "name": "late",
                "scope": {"client": "desk-*"},
                "signal": "oldest_age",
                "limit": 5_000,
                "mode": "shadow",
                "ladder": [{"action": "notify"}],
            }
        ],
        "qpid": [{"topic": "orders.>", "depth": 4_096}],
    }
    document["transports"][0]["client_policy"] = {"client_max_capacity": 20}
    return replace(PolicyDocument.from_dict(document), revision=1)


async def test_each_value_has_its_unit_and_where_it_is_set(tmp_path: Path) -> None:
    async with running_broker(tmp_path, policy()) as broker:
        desk = await RawClient.connect(broker, "desk-1")
        desk.send_command({"c": "subscribe", "id": "s", "topic": "orders.new"})
        desk.send_command({"c": "subscribe", "id": "other", "topic": "trades"})
        await desk.read_until("processed")
        await desk.read_until("processed")
        found = [EffectiveSetting(**one) for one in await ask(broker, "effective", name="desk-1")]
        desk.close()
    said = {(one.subscription, one.setting): (one.value, one.unit, one.origin) for one in found}
    assert len(said) == len(found)
    assert said["", "amps.message_memory_limit"] == (1_000_000, "bytes", "instance")
    assert said["", "amps.client_max_capacity"] == (20, "%", "transport tcp")
    assert said["", "amps.client_message_age_limit_ms"] == (None, "ms", "default")
    value, unit, origin = said["", "late.limit"]
    assert (value, unit) == (5_000, "ms") and "late" in origin and "desk-*" in origin
    assert said["s", "qpid.depth"] == (4_096, "bytes", "qpid orders.>")
    assert not [setting for subscription, setting in said if subscription == "other"]


async def test_a_rule_for_others_is_not_in_force(tmp_path: Path) -> None:
    async with running_broker(tmp_path, policy()) as broker:
        board = await RawClient.connect(broker, "board")
        found = await ask(broker, "effective", name="board")
        board.close()
    assert not [one for one in found if one["setting"].startswith("late.")]


async def test_a_staged_revision_is_in_force_for_those_it_covers(tmp_path: Path) -> None:
    async with running_broker(tmp_path, policy()) as broker:
        clients = [await RawClient.connect(broker, name) for name in ("desk-1", "board")]
        staged = policy().to_dict() | {"revision": 2}
        staged["transports"][0]["client_policy"] = {"client_max_capacity": 30}
        await ask(broker, "apply", policy=policy().to_dict(), staged={"policy": staged, "client": "desk-*"})
        found = {name: await ask(broker, "effective", name=name) for name in ("desk-1", "board")}
        for client in clients:
            client.close()
    capacity = {
        name: next(one["value"] for one in settings if one["setting"] == "amps.client_max_capacity")
        for name, settings in found.items()
    }
    assert capacity == {"desk-1": 30, "board": 20}
