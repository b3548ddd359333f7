"""Each command as docs/protocol.md defines it, sent to a running broker, and its replies."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker_core.broker import Broker
from broker_core.protocols import commands
from broker_core.protocols.native import COMMAND
from tests.support.brokers import ask, running_broker, tcp_policy
from tests.support.raw import RawClient

SUBSCRIBED = {"c": "subscribe", "id": "s", "topic": "a", "bookmark": "0"}
ACKED = {**SUBSCRIBED, "ack": "client"}
LEASED = {"c": "subscribe", "id": "s", "topic": "a", "lease_ms": 60_000}
DONE = {"c": "ack", "ack": "processed"}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    policy = tcp_policy()
    policy = replace(policy, instance=replace(policy.instance, unjournaled_topics=("scratch.>",)))
    async with running_broker(tmp_path / "home", policy) as running:
        yield running


@pytest.fixture
async def raw(broker: Broker) -> AsyncIterator[RawClient]:
    client = await RawClient.connect(broker, "me")
    yield client
    client.close()


async def read_replies(raw: RawClient, *words: dict[str, Any]) -> list[dict[str, Any]]:
    """Send commands and return their replies, up to the reply to a flush after them."""
    for command in words:
        raw.send_command(command)
    return await read_reply(raw)


async def read_reply(raw: RawClient) -> list[dict[str, Any]]:
    raw.send_command({"c": "flush", "id": "end"})
    heard: list[dict[str, Any]] = []
    while (frame := await raw.next_frame()) is not None:
        if frame.kind == COMMAND:
            reply = json.loads(bytes(frame.payload))
            if (reply.get("of"), reply.get("id")) == ("flush", "end"):
                return heard
            heard.append(reply)
    return heard


EXAMPLES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    "logon": (
        [{"c": "logon", "name": "me", "id": "x"}],
        [{"c": "error", "code": "bad_logon", "of": "logon", "id": "x"}],
    ),
    "publish": (
        [{"c": "publish", "topic": "a", "data": 1, "ack": ["processed", "persisted"], "id": "x"}],
        [{**DONE, "of": "publish", "id": "x"}, {"c": "ack", "ack": "persisted", "of": "publish", "id": "x"}],
    ),
    "subscribe": (
        [SUBSCRIBED],
        [
            {
                **DONE,
                "of": "subscribe",
                "id": "s",
                "stream": 1,
                "bookmark": "test-1|0|",
                "durability": "persisted",
            },
            {"c": "ack", "ack": "completed", "of": "subscribe", "id": "s"},
        ],
    ),
    "unsubscribe": ([{"c": "unsubscribe", "id": "s"}], [{**DONE, "of": "unsubscribe", "id": "s"}]),
    "heartbeat": ([{"c": "heartbeat"}], [{"c": "heartbeat"}]),
    "flush": ([{"c": "flush", "id": "f"}], [{"c": "ack", "ack": "completed", "of": "flush", "id": "f"}]),
    "pause": ([{"c": "pause", "ids": ["s", "s"]}], [{**DONE, "of": "pause", "id": "s"}]),
    "resume": ([{"c": "resume", "ids": ["s"]}], [{**DONE, "of": "resume", "id": "s"}]),
    "rate": (
        [{"c": "rate", "ids": ["s"], "rate": "2X", "rate_max_gap": "5s"}],
        [{**DONE, "of": "rate", "id": "s"}],
    ),
    "ack": (
        [{"c": "ack", "id": "s", "upto": 1}],
        [{"c": "error", "code": "bad_ack", "of": "ack", "id": "s"}],
    ),
    "told": ([{"c": "told", "decision": "nobody's"}], []),
    "renew": ([{"c": "renew", "id": "s"}], [{**DONE, "of": "renew", "id": "s"}]),
    "credit": ([{"c": "credit", "id": "s", "upto": 1}], []),
    "skip": ([{"c": "skip", "sequence": 1}], []),
}
FIRST = {
    "unsubscribe": SUBSCRIBED,
    "pause": SUBSCRIBED,
    "resume": SUBSCRIBED,
    "rate": SUBSCRIBED,
    "ack": ACKED,
    "renew": LEASED,
    "credit": {**SUBSCRIBED, "credit": 0},
}
"""Commands that must precede an example."""
WRONG: dict[str, list[tuple[dict[str, Any], str]]] = {
    "logon": [],
    "publish": [
        ({"topic": "$SLUICE.x", "data": 1, "id": "x"}, "bad_topic"),
        ({"topic": "a", "data": 1, "text": "x"}, "bad_command"),
    ],
    "subscribe": [
        ({"id": "t", "topic": "a.>.b"}, "bad_pattern"),
        ({"id": "t", "topic": "~"}, "bad_pattern"),
        ({"id": "t", "topic": "~$SLUICE.clients"}, "bad_pattern"),
        ({"id": "t", "topic": "a", "filter": "/x >"}, "bad_filter"),
        ({"id": "t", "topic": "a", "bookmark": "x"}, "bad_bookmark"),
        ({"id": "t", "topic": "scratch.>", "bookmark": "0"}, "not_journaled"),
        ({"id": "t", "topic": "a", "on_gap": "error"}, "bad_command"),
        ({"id": "t", "topic": "a", "prefetch": 9}, "bad_command"),
        ({"id": "t", "topic": "a", "bookmark": "0", "rate": "fast"}, "bad_rate"),
        ({"id": "t", "topic": "a", "bookmark": "0", "rate": "2X", "rate_max_gap": "9"}, "bad_interval"),
        ({"id": "t", "topic": "a", "conflation": "1s"}, "bad_conflation"),
        ({"id": "t", "topic": "a", "conflation": "1s", "conflation_key": "zz"}, "bad_conflation"),
        ({"id": "t", "topic": "a", "conflation": "25h", "conflation_key": "/x"}, "bad_interval"),
        ({"id": "t", "topic": "a", "conflation_key": "/x"}, "bad_command"),
        ({"id": "t", "topic": "a", "received": "0"}, "bad_command"),
        ({"id": "t", "topic": "a", "snapshot_key": "zz"}, "bad_key"),
        ({"id": "t", "topic": "a", "resume": "x"}, "bad_resume_token"),
        ({"id": "t", "topic": "a", "durable": "d", "bookmark": "[0:0|1|]"}, "bad_command"),
        ({"id": "t", "topic": "a", "bookmark": "[0:0|1|]", "durability": "live"}, "bad_command"),
        ({"id": "t", "topic": "a", "bookmark": "0", "paused": True, "durability": "live"}, "bad_command"),
    ],
    "unsubscribe": [({"id": "t"}, "unknown_subscription")],
    "heartbeat": [],
    "flush": [({}, "bad_command")],
    "pause": [({"ids": ["t"]}, "unknown_subscription"), ({"ids": []}, "bad_command")],
    "resume": [({"ids": ["t"]}, "unknown_subscription")],
    "rate": [
        ({"ids": ["t"], "rate": "1"}, "unknown_subscription"),
        ({"ids": ["t"], "rate_max_gap": "1s"}, "bad_command"),
    ],
    "ack": [
        ({"id": "t", "upto": 1}, "unknown_subscription"),
        ({"id": "t"}, "bad_command"),
        ({"id": "t", "upto": 1, "bookmark": "0"}, "bad_command"),
    ],
    "told": [({}, "bad_command")],
    "renew": [({"id": "t"}, "unknown_subscription")],
    "credit": [({"id": "t", "upto": 1}, "unknown_subscription"), ({"id": "t"}, "bad_command")],
    "skip": [({}, "bad_command")],
}


@pytest.mark.parametrize("name", commands.NAMES)
async def test_a_command_is_answered_as_documented(raw: RawClient, name: str) -> None:
    if name in FIRST:
        await read_replies(raw, FIRST[name])
    words, wanted = EXAMPLES[name]
    heard = await read_replies(raw, *words)
    assert len(heard) == len(wanted), heard
    for reply, fields in zip(heard, wanted, strict=True):
        assert fields.items() <= reply.items()


@pytest.mark.parametrize(
    ("name", "fields", "code"),
    [(name, fields, code) for name, cases in WRONG.items() for fields, code in cases],
)
async def test_what_cannot_be_done_is_an_error_that_names_its_command_and_loses_nothing(
    raw: RawClient, name: str, fields: dict[str, Any], code: str
) -> None:
    raw.send_command({"c": name, **fields})
    reply = await raw.read_until("error")
    assert (reply["code"], reply["of"]) == (code, name)
    assert reply["message"] and reply["fix"]
    assert reply.get("id") == (fields.get("id") or ("t" if code == "unknown_subscription" else None))
    assert await read_replies(raw, {"c": "heartbeat"}) == [{"c": "heartbeat"}]


@pytest.mark.parametrize("name", [name for name in commands.NAMES if name != "logon"])
async def test_before_a_logon_every_other_command_ends_the_connection(broker: Broker, name: str) -> None:
    words, _ = EXAMPLES[name]
    raw = await RawClient.open(broker)
    raw.send_command(words[0])
    assert [(await raw.read_until(what))["code"] for what in ("error", "closing")] == ["not_logged_on"] * 2
    assert await raw.next_frame() is None


async def test_a_repeat_is_not_called_persisted_before_what_it_repeats(raw: RawClient) -> None:
    """Both batches arrive in one write, so that the second meets the first on its way to the disk."""
    publish = {"c": "publish", "topic": "a", "data": 1, "sequence": 1, "ack": ["processed", "persisted"]}
    heard = await read_replies(raw, {**publish, "id": "first"}, {**publish, "id": "repeat"})
    told = [(reply["ack"], reply.get("id")) for reply in heard]
    assert told.index(("persisted", "first")) < told.index(("persisted", "repeat"))
    assert told.index(("processed", "repeat")) < told.index(("persisted", "first"))
    later = await read_replies(raw, {**publish, "id": "later"})
    assert [(reply["ack"], reply.get("id")) for reply in later] == [
        ("persisted", None),
        ("processed", "later"),
        ("persisted", "later"),
    ]


async def test_what_no_journal_keeps_is_processed_and_never_persisted(raw: RawClient) -> None:
    publish = {
        "c": "publish",
        "topic": "scratch.a",
        "data": 1,
        "sequence": 1,
        "ack": ["processed", "persisted"],
        "id": "x",
    }
    processed = {**DONE, "of": "publish", "id": "x"}
    assert await read_replies(raw, publish) == [processed, {**DONE, "first": 1, "sequence": 1}]
    assert await read_replies(raw, publish) == [processed], "a repeat"


async def test_a_command_for_many_is_done_for_all_or_for_none(raw: RawClient) -> None:
    await read_replies(raw, SUBSCRIBED)
    refused = await read_replies(raw, {"c": "pause", "ids": ["s", "nobody"]})
    assert [(reply["c"], reply.get("id")) for reply in refused] == [("error", "nobody")]
    raw.send_command({"c": "publish", "topic": "a", "data": 1})
    assert await raw.deliveries(1) == [b"1"], "it wasn't paused"


@pytest.mark.parametrize(
    ("bookmark", "bodies"), [("20200101T000000", [b"1", b"2", b"3"]), ("20990101T000000", [b"3"])]
)
async def test_a_durable_subscription_starts_at_a_moment_and_one_to_come_is_now(
    raw: RawClient, bookmark: str, bodies: list[bytes]
) -> None:
    await read_replies(raw, *({"c": "publish", "topic": "a", "data": number} for number in (1, 2)))
    raw.send_command({"c": "subscribe", "id": "d", "topic": "a", "durable": "kept", "bookmark": bookmark})
    await raw.read_until("processed")
    raw.send_command({"c": "publish", "topic": "a", "data": 3})
    assert await raw.deliveries(len(bodies)) == bodies


async def test_the_broker_speaks_as_often_as_it_was_asked_to(broker: Broker, raw: RawClient) -> None:
    """The broker checks once a second, so it sends a heartbeat up to a second early rather than late."""
    other = await RawClient.open(broker)
    other.send_command({"c": "logon", "name": "other", "heartbeat_ms": 1_500})
    await other.read_until("processed")
    connection = broker.engine.roster.clients["other"]
    connection.last_sent_at = broker.engine.clock.monotonic_ms() - 600
    broker.engine.tick()
    assert (await other.read_until("heartbeat")) == {"c": "heartbeat"}
    listed = {one["name"]: one["heartbeat_ms"] for one in await ask(broker, "clients")}
    assert listed == {"other": 1_500, raw.name: None}


def test_there_is_an_example_and_a_mistake_for_every_command() -> None:
    assert set(EXAMPLES) == set(WRONG) == set(commands.NAMES)
