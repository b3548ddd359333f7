"""A peer that closes its sending side gets the answers to its commands before the broker closes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from broker_core.access import hash_password
from broker_core.batch import build_single_topic_batch
from broker_core.broker import Broker
from broker_core.connections import connection as connections
from broker_core.protocols.native import COMMAND, PUBLISH, encode_command, encode_frame_header
from tests.broker_core.access.making import policy, user
from tests.support.brokers import running_broker, until
from tests.support.failpoints import SyncGate
from tests.support.frames import FedReader
from tests.support.stomp_client import port_of, stomp_policy

LOGON = encode_command({"c": "logon", "name": "feed", "session": 7})


async def begin(port: int, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send bytes and close the sending side."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    writer.write_eof()
    return reader, writer


async def read_answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> list[dict[str, Any]]:
    """Return the commands that the broker sends until it closes."""
    received = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    return [json.loads(frame.payload) for frame in FedReader().feed(received) if frame.kind == COMMAND]


def publish(first: int) -> bytes:
    built = build_single_topic_batch("feed", "t.a", [b"x"], first, 7)
    return encode_frame_header(PUBLISH, 0, len(built)) + built


def tcp_port(broker: Broker) -> int:
    port: int = broker.statistics.transports[0]["port"]
    return port


async def test_batches_that_wait_for_the_disk_are_answered(tmp_path: Path) -> None:
    gate = SyncGate()
    async with running_broker(tmp_path, files=gate) as broker:
        gate.block()
        flush = encode_command({"c": "flush", "id": "f"})
        reader, writer = await begin(tcp_port(broker), LOGON + publish(1) + publish(2) + flush)
        await until(gate.waiting.is_set)
        await asyncio.sleep(0.3)  # the broker has received the end of the input
        gate.release()
        answers = await read_answers(reader, writer)
        assert [one["ack"] for one in answers] == ["processed", "persisted", "completed"]
        assert answers[1]["sequence"] == 2
        await until(lambda: not broker.engine.roster.connections)


async def test_commands_behind_a_logon_that_is_checked_are_answered(tmp_path: Path) -> None:
    passwords = policy(
        user("maria", password=hash_password("right")), authentication="password", restricted=False
    )
    async with running_broker(tmp_path, passwords) as broker:
        logon = {"c": "logon", "name": "feed", "session": 7, "user": "maria", "password": "right"}
        subscribe = {"c": "subscribe", "id": "s", "topic": "t.>", "bookmark": "0"}
        data = encode_command(logon) + publish(1) + encode_command(subscribe)
        answers = await read_answers(*await begin(tcp_port(broker), data))
        assert {(one["ack"], one.get("id", "")) for one in answers if "ack" in one} >= {
            ("processed", ""),
            ("persisted", ""),
            ("processed", "s"),
        }


async def test_a_refused_logon_is_answered(tmp_path: Path) -> None:
    passwords = policy(user("maria", password=hash_password("right")), authentication="password")
    async with running_broker(tmp_path, passwords) as broker:
        logon = {"c": "logon", "name": "feed", "user": "maria", "password": "wrong"}
        answers = await read_answers(*await begin(tcp_port(broker), encode_command(logon)))
        assert answers[0]["code"] == "bad_logon"


async def test_receipts_of_stomp_are_sent(tmp_path: Path) -> None:
    gate = SyncGate()
    async with running_broker(tmp_path, stomp_policy(), files=gate) as broker:
        gate.block()
        sends = b"".join(b"SEND\ndestination:/topic/t\nreceipt:%d\n\nx\0" % number for number in range(3))
        reader, writer = await begin(port_of(broker), b"CONNECT\naccept-version:1.2\n\n\0" + sends)
        await until(gate.waiting.is_set)
        await asyncio.sleep(0.3)
        gate.release()
        received = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        assert [received.count(b"receipt-id:%d\n" % number) for number in range(3)] == [1, 1, 1]
        await until(lambda: not broker.engine.roster.connections)


async def test_the_wait_for_a_disk_that_stands_still_has_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "ANSWER_TIMEOUT_S", 0.5)
    gate = SyncGate()
    async with running_broker(tmp_path, files=gate) as broker:
        gate.block()
        answers = await read_answers(*await begin(tcp_port(broker), LOGON + publish(1)))
        assert [one["ack"] for one in answers] == ["processed"]
        await until(lambda: not broker.engine.roster.connections)
        gate.release()


async def test_a_peer_without_unanswered_commands_is_closed_at_once(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        answers = await read_answers(*await begin(tcp_port(broker), LOGON))
        assert [one["ack"] for one in answers] == ["processed"]
        assert await read_answers(*await begin(tcp_port(broker), b"")) == []
