"""Twenty clients with different fates at a real broker: their accounts are exact to the message and byte.

A model counts the records published to each client's topic, and raw sockets count those received. At every
moment

    matched = acknowledged + in flight + waiting + gone (by cause)

holds for every client and every subscription that the control socket lists. In the end the figures equal the
model's counts, the received records and the ledger's rows. At most 40 s.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from broker_core.batch import Batch
from broker_core.broker import Broker
from broker_core.config import PolicyDocument
from broker_core.config.instance import JournaledTopic
from broker_core.delivery.account import DiscardCause
from broker_core.protocols.native import COMMAND, DELIVER
from tests.support.brokers import ask, running_broker, until
from tests.support.raw import RawClient
from tests.support.rules import policy_with, rule

ROUNDS, EACH, BODY = 60, 12, 1_500
"""Publishes to each topic, messages in each, bytes of a body."""
TOPICS = ("t", "scratch.t", "discard", "cancel", "pause", "conflate", "drop")
RULES = (
    rule("discard_oldest", 40, topic="discard") | {"name": "discard"},
    rule("cancel_subscription", 60, topic="cancel") | {"name": "cancel"},
    rule("pause", 30, topic="pause", for_ms=300) | {"name": "pause"},
    rule("conflate", 30, topic="conflate") | {"name": "conflate"},
    rule("disconnect", 60, topic="drop") | {"name": "drop"},
)


def policy() -> PolicyDocument:
    """Return a policy with all rules, in which scratch topics are not journaled."""
    made = policy_with(*RULES)
    kept = tuple(JournaledTopic(topic) for topic in TOPICS if topic != "scratch.t")
    return replace(made, instance=replace(made.instance, journaled_topics=kept))


class ModelledClient:
    """A raw client, and what it really received."""

    def __init__(self, name: str, topic: str = "t", **asked: Any) -> None:
        self.name, self.topic, self.asked = name, topic, {"topic": topic, **asked}
        self.raw: RawClient
        self.got: list[bytes] = []
        self.sequences: list[int] = []
        self.commands: list[dict[str, Any]] = []
        self.gate = asyncio.Event()
        self.pause_s = 0.0
        self.task: asyncio.Task[None] | None = None

    async def begin(self, broker: Broker, reading: bool, **more: Any) -> None:
        """Connect with a small buffer, and subscribe."""
        raw = socket.socket()
        raw.setblocking(False)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        await asyncio.get_running_loop().sock_connect(
            raw, ("127.0.0.1", broker.statistics.transports[0]["port"])
        )
        self.raw = RawClient(*await asyncio.open_connection(sock=raw, limit=4_096))
        self.raw.name = self.name
        self.raw.send_command({"c": "logon", "name": self.name})
        await self.raw.read_until("processed")
        self.raw.send_command({"c": "subscribe", "id": "s", **self.asked, **more})
        await self.raw.read_until("processed")
        self.gate = asyncio.Event()
        if reading:
            self.gate.set()
        self.task = asyncio.create_task(self._read(self.raw))

    async def _read(self, raw: RawClient) -> None:
        while await self.gate.wait() and (frame := await raw.next_frame(3_600)) is not None:
            if frame.kind == COMMAND:
                self.commands.append(json.loads(bytes(frame.payload)))
            elif frame.kind == DELIVER:
                self._take(raw, Batch.parse(frame.payload))
            if self.pause_s:
                await asyncio.sleep(self.pause_s)

    def _take(self, raw: RawClient, batch: Batch) -> None:
        self.got += batch.bodies()
        self.sequences += batch.sequences().tolist() if batch.first_sequence else []
        word, upto = self.asked.get("ack"), len(self.got)
        if word == "client-individual":
            raw.send_command(
                {"c": "ack", "id": "s", "numbers": [[n, n] for n in range(upto, upto - batch.count, -1)]}
            )
        elif word is not None:
            raw.send_command({"c": "ack", "id": "s", "upto": upto})

    def first_command(self, what: str) -> dict[str, Any] | None:
        """Return the first command of this type that the broker sent, if any."""
        return next((one for one in self.commands if what in (one["c"], one.get("of"))), None)

    def kill(self) -> None:
        """Close the socket without a notice."""
        assert self.task is not None
        self.task.cancel()
        self.raw._writer.transport.abort()


def adds_up(entry: dict[str, Any]) -> None:
    """Check the account identity in messages, and in bytes where records have bytes of their own."""
    told = {
        key: value for key, value in entry.items() if key.endswith(("_messages", "_bytes")) or key == "gone"
    }
    parts = [
        told["acknowledged_messages"],
        told["in_flight_messages"],
        told["waiting_messages"],
        *told["gone"].values(),
    ]
    assert all(part >= 0 for part in parts), (entry.get("name", entry.get("id")), told)
    assert told["matched_messages"] == sum(parts), (entry.get("name", entry.get("id")), told)
    held = told["acknowledged_bytes"] + told["in_flight_bytes"] + told["waiting_bytes"]
    assert told["matched_bytes"] == held + told["gone_bytes"], told


async def read_clients(broker: Broker) -> dict[str, dict[str, Any]]:
    """Return all clients from the control socket, after checking that their accounts add up."""
    entries = await ask(broker, "clients")
    for entry in entries:
        adds_up(entry)
        for one in entry["subscriptions"]:
            adds_up(one)
        lags = [one["lag_messages"] for one in entry["subscriptions"]]
        assert entry["lag_messages"] == max(lags, default=0)
    return {entry["name"]: entry for entry in entries}


def make_clients() -> dict[str, ModelledClient]:
    """Return the twenty clients."""
    fates = [
        ModelledClient("reading"),
        ModelledClient("stopped"),
        ModelledClient("trickling"),
        ModelledClient("windowed", ack="client", prefetch=50),
        ModelledClient("individual", ack="client-individual", prefetch=50),
        ModelledClient("offlined"),
        ModelledClient("draining", "scratch.t"),
        ModelledClient("self-paused", bookmark="0|1|"),
        ModelledClient("held"),
        ModelledClient("policy-paused", "pause"),
        ModelledClient("cancelled", "cancel"),
        ModelledClient("leased", lease_ms=3_000),
        ModelledClient("unsubscribed"),
        ModelledClient("replaying", bookmark="0"),
        ModelledClient("rated", bookmark="0|1|", rate="300"),
        ModelledClient("conflated", bookmark="0|1|", conflation="50ms", conflation_key="topic"),
        ModelledClient("discarded", "discard"),
        ModelledClient("dropped", "drop"),
        ModelledClient("killed"),
        ModelledClient("durable", durable="d", ack="client", prefetch=40),
    ]
    return {fate.name: fate for fate in fates}


STILL = (
    "stopped",
    "offlined",
    "draining",
    "policy-paused",
    "cancelled",
    "leased",
    "unsubscribed",
    "discarded",
    "dropped",
    "killed",
)


@asynccontextmanager
async def twenty(home: Path) -> AsyncIterator[tuple[Broker, dict[str, ModelledClient], RawClient]]:
    """Connect and subscribe all twenty clients; yield the broker, the clients and a publisher."""
    async with running_broker(home, policy()) as broker:
        fates = make_clients()
        writer = await RawClient.connect(broker, "writer")
        for fate in fates.values():
            await fate.begin(broker, fate.name not in STILL)
        fates["trickling"].pause_s = 0.01
        yield broker, fates, writer
        for fate in fates.values():
            fate.kill()
        writer.close()


async def publish(writer: RawClient, rounds: Sequence[int]) -> None:
    """Publish rounds of records; return when all are stored or delivered."""
    for number in rounds:
        for topic in TOPICS:
            bodies = [b'{"n":%06d,"x":"%s"}' % (number * EACH + row, b"x" * BODY) for row in range(EACH)]
            await writer.publish(topic, bodies)
    writer.send_command({"c": "flush", "id": f"f{rounds[0]}"})
    await writer.read_until("completed")


async def test_the_sums_of_twenty_fates_are_exact(tmp_path: Path) -> None:
    async with twenty(tmp_path) as (broker, fates, writer):
        first, second = range(ROUNDS // 2), range(ROUNDS // 2, ROUNDS)
        await ask(broker, "pause", name="held")
        fates["self-paused"].raw.send_command({"c": "pause", "ids": ["s"]})
        await until(lambda: fates["self-paused"].first_command("pause"))
        await publish(writer, first)
        await read_clients(broker)
        # A client that reads nothing for CLOSE_AFTER_S is closed without an error message.
        await until(lambda: "dropped" not in broker.engine.roster.clients)
        fates["dropped"].gate.set()
        for name in ("offlined", "draining"):
            await ask(broker, "offline", name=name)
        fates["killed"].kill()
        fates["unsubscribed"].raw.send_command({"c": "unsubscribe", "id": "s"})
        await asyncio.sleep(0.2)
        await read_clients(broker)
        fates["draining"].gate.set()
        await publish(writer, second)
        await read_clients(broker)
        fates["self-paused"].raw.send_command({"c": "resume", "ids": ["s"]})
        await ask(broker, "resume", name="held")
        await until(lambda: not broker.engine.roster.clients["leased"].subscriptions)
        fates["trickling"].pause_s = 0
        for fate in fates.values():
            fate.gate.set()
        for _ in range(150):
            entries = await read_clients(broker)
            if all(
                not e["waiting_messages"] and not e["in_flight_messages"] and not e["lag_messages"]
                for e in entries.values()
            ):
                break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError(
                {
                    n: (e["delivery"], e["waiting_messages"], e["in_flight_messages"])
                    for n, e in entries.items()
                }
            )
        await asyncio.sleep(1.1)  # the ledger is written once a second
        await check(broker, fates, await read_clients(broker))


async def check(broker: Broker, fates: dict[str, ModelledClient], entries: dict[str, dict[str, Any]]) -> None:
    """Check each client's entry against the model and against what it received."""
    rows = Counter[str]()
    for row in await ask(broker, "ledger"):
        rows[row["client"]] += row["messages"]
    gone = broker.engine.roster.ended_account
    assert (
        gone.discarded_volume.messages == rows["killed"] + rows["dropped"] and not gone.outstanding.messages
    )
    published = ROUNDS * EACH
    size = published * len(b'{"n":%06d,"x":"%s"}' % (0, b"x" * BODY))
    for name, fate in fates.items():
        if name in ("killed", "dropped"):
            assert name not in entries and rows[name], name
            continue
        entry = entries[name]
        asked = entry["gone"].get("conflated_as_asked", 0)
        assert sum(entry["gone"].values()) - asked == rows[name], name
        lost = sum(count for cause, count in entry["gone"].items() if DiscardCause(cause).is_loss)
        assert entry["lost_messages"] == lost, name
        assert entry["delivered_messages"] == len(fate.got), name
        assert entry["delivered_bytes"] == sum(map(len, fate.got)), name
        if name in ("cancelled", "leased", "unsubscribed"):
            assert 0 < entry["matched_messages"] <= published and not entry["subscriptions"], name
            answer = fate.first_command("cancelled") or fate.first_command("unsubscribe")
            assert answer is not None and answer["kept"] == rows[name], (name, answer)
            await returns(broker, fate, answer["bookmark"], published)
            continue
        assert entry["matched_messages"] == published and entry["matched_bytes"] == size, (
            name,
            entry["matched_messages"],
        )
        assert entry["acknowledged_messages"] == len(fate.got), name
        if name not in ("conflated", "discarded"):
            assert len(fate.got) == published and not rows[name], name
            assert fate.sequences == sorted(set(fate.sequences)), name
    dropped = fates["dropped"].first_command("notice")
    assert dropped is not None and dropped["kept"] == rows["dropped"] and not dropped["lost"]
    await returns(broker, fates["dropped"], dropped["resume"], published)


async def returns(broker: Broker, fate: ModelledClient, bookmark: str, published: int) -> None:
    """Check that a new subscription after the reported bookmark delivers all remaining records, in order."""
    had = set(fate.got)
    again = ModelledClient(fate.name + "-again", fate.topic)
    await again.begin(broker, True, bookmark=bookmark)
    await until(lambda: len(had | set(again.got)) == published, 15)
    assert again.sequences == sorted(set(again.sequences))
    again.kill()
