"""A policy's preview equals what happens when it comes into force, on topics without traffic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from broker_core.broker import Broker
from broker_core.config import PolicyDocument, TransportSettings
from tests.support.brokers import ask, running_broker, until
from tests.support.raw import RawClient
from tests.support.rules import policy_with, rule
from tests.support.stalled import StalledSubscriber

BODY = b"x" * 1_000
ABORT = {"topic": ">", "abort_slow_consumer_strategy": True, "max_slow_duration": 300, "check_period": 60_000}
AMONG = {"who": ["*"], "transports": [], "publish": [">"], "subscribe": [">"]}


def two_transports(*rules: dict[str, Any], **presets: Any) -> PolicyDocument:
    policy = policy_with(*rules, **presets)
    return replace(policy, transports=(*policy.transports, TransportSettings("side", "tcp", 0)))


def without(policy: PolicyDocument) -> PolicyDocument:
    return replace(policy, transports=policy.transports[:1])


def moved(policy: PolicyDocument) -> PolicyDocument:
    return replace(policy, transports=(policy.transports[0], replace(policy.transports[1], host="127.0.0.2")))


def disabled(policy: PolicyDocument) -> PolicyDocument:
    return replace(policy, transports=(policy.transports[0], replace(policy.transports[1], enabled=False)))


def restricted(policy: PolicyDocument) -> PolicyDocument:
    document = policy.to_dict()
    document["transports"][1]["restricted"] = True
    document["access"] = {"users": [], "entitlements": [AMONG]}
    return PolicyDocument.from_dict(document)


def unjournaled(policy: PolicyDocument) -> PolicyDocument:
    return replace(policy, instance=replace(policy.instance, unjournaled_topics=("t",)))


COUNT = rule("notify", 20)
CASES: dict[str, Callable[[], PolicyDocument]] = {
    "messages that wait": lambda: two_transports(rule("notify", 3, signal="outbound_messages")),
    "bytes that wait": lambda: two_transports(rule("notify", 3_000, signal="outbound_bytes")),
    "pending messages": lambda: two_transports(
        activemq=[{"topic": ">", "constant_pending_message_limit_strategy": 3}]
    ),
    "age": lambda: two_transports(rule("notify", 300, signal="oldest_age")),
    "stopped": lambda: two_transports(activemq=[ABORT]),
    "depth": lambda: two_transports(qpid=[{"topic": "#", "depth": 20_000}]),
    "shadow": lambda: two_transports({**COUNT, "mode": "shadow"}),
    "limits of a pool": lambda: two_transports(pool={"message_memory_limit": 250_000}),
    "limits, and a transport taken away": lambda: without(
        two_transports(pool={"message_memory_limit": 250_000})
    ),
    "a rule, and a transport taken away": lambda: without(two_transports(COUNT)),
    "a rule, and a transport moved": lambda: moved(two_transports(COUNT)),
    "a rule, and a transport disabled": lambda: disabled(two_transports(COUNT)),
    "a rule, and other rights": lambda: restricted(two_transports(COUNT)),
    "a rule, and topics no longer journaled": lambda: unjournaled(two_transports(COUNT)),
    "a rule to go on from the journal": lambda: two_transports(rule("continue_from_journal", 20)),
}


async def behind(broker: Broker) -> tuple[Any, ...]:
    """Connect two stalled clients, one on each transport, and one with a full window; then no record is
    published.
    """
    ports = {one["name"]: one["port"] for one in broker.statistics.transports}
    first = await StalledSubscriber.connect(broker, "first", "t")
    broker.statistics.transports.reverse()
    second = await StalledSubscriber.connect(broker, "second", "t")
    broker.statistics.transports.reverse()
    assert broker.engine.roster.clients["second"].transport == "side" and len(ports) == 2
    window = await RawClient.connect(broker, "window")
    window.send_command({"c": "subscribe", "id": "s", "topic": "t", "ack": "client", "prefetch": 2})
    await window.read_until("processed")
    feed = await RawClient.connect(broker, "feed")
    for _ in range(15):
        await feed.publish("t", [BODY] * 20)
    await until(
        lambda: all(
            broker.engine.roster.clients[name].account.waiting.messages for name in ("first", "second")
        )
    )
    return first, second, window, feed


def client_actions(decisions: list[dict[str, Any]]) -> set[tuple[str, ...]]:
    """Return client, rule, action and mode of each decision."""
    return {
        (one["client"], one["subscription"], one["rule"], one["action"], one["mode"]) for one in decisions
    }


async def come_true(home: Path, policy: PolicyDocument) -> tuple[object, object]:
    """Return the preview and the outcome: actions on clients, and close codes by client."""
    async with running_broker(home, two_transports()) as broker:
        clients = await behind(broker)
        # The broker checks once a second whether peers read data. Afterwards every duration is clearly above
        # or below its limit.
        await asyncio.sleep(1.6)
        effect = await ask(broker, "preview", policy=replace(policy, revision=2).to_dict())
        said = client_actions(effect["acted_on"]), {one["client"]: one["code"] for one in effect["cut_off"]}
        assert (effect["acted_on_in_all"], effect["cut_off_in_all"]) == (
            len(effect["acted_on"]),
            len(effect["cut_off"]),
        )
        closed: dict[str, str] = {}
        for name, connection in broker.engine.roster.clients.items():
            connection.close = noting(closed, name, connection.close)  # type: ignore[method-assign]
        await ask(broker, "apply", policy=replace(policy, revision=2).to_dict())
        await asyncio.sleep(2.8)  # the time that disconnected clients have to confirm the notice
        happened = client_actions(msgspec.to_builtins(list(broker.engine.decisions.recent))), closed
        del clients
        return said, happened


def noting(closed: dict[str, str], name: str, close: Callable[..., None]) -> Callable[..., None]:
    def note(code: str, *args: Any, **more: Any) -> None:
        if code in ("transport_closed", "access_changed"):
            closed.setdefault(name, code)
        close(code, *args, **more)

    return note


async def test_whom_a_preview_names_is_acted_on_or_cut_off_at_once_and_nobody_else(tmp_path: Path) -> None:
    found = await asyncio.gather(
        *(come_true(tmp_path / str(place), make()) for place, make in enumerate(CASES.values()))
    )
    wrong = {
        name: (said, happened)
        for name, (said, happened) in zip(CASES, found, strict=True)
        if said != happened
    }
    assert not wrong
    assert all(said != (set(), {}) for said, _ in found), "each case must affect some client"


async def test_a_rollout_acts_at_once_on_those_it_covers_whose_topic_is_quiet(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(running_broker(tmp_path, two_transports()))
        clients = await behind(broker)
        staged = replace(two_transports(rule("notify", 3, signal="outbound_messages")), revision=2).to_dict()
        await ask(
            broker,
            "apply",
            policy=two_transports().to_dict(),
            staged={"policy": staged, "client": "fir*", "share": None},
        )
        assert {one.client for one in broker.engine.decisions.recent} == {"first"}
        forecasts = await ask(broker, "forecasts", name="first")
        assert [(one["rule"], one["why_none"] != "") for one in forecasts if one["rule"] == "test"] == [
            ("test", True)
        ]
        del clients
