"""Every report of a loss agrees: notices, status, the client's account and the loss ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker_core.broker import Broker
from broker_core.client import AsyncClient
from broker_core.delivery.account import DiscardCause
from tests.support.brokers import address_of, ask, running_broker, until
from tests.support.raw import RawClient
from tests.support.rules import policy_with, rule

EACH = 6
"""Messages that are published to each of the journaled and the unjournaled topic."""
BODY = b"x" * 10


async def publish(broker: Broker, *topics: str) -> None:
    async with AsyncClient(address_of(broker), "writer") as writer:
        for topic in topics:
            await writer.publish_many(topic, [BODY] * EACH)
        await writer.flush()


async def ledger_rows(broker: Broker) -> dict[str, int]:
    """Messages in the loss ledger by cause, once its current second is over."""
    await until(lambda: broker.engine.ledger.recent)
    rows: dict[str, int] = {}
    for row in await ask(broker, "ledger", client="slow"):
        rows[row["cause"]] = rows.get(row["cause"], 0) + row["messages"]
    return rows


@pytest.mark.parametrize(
    ("options", "rules", "unjournaled_cause"),
    [
        ({"lease_ms": 1_500}, [], DiscardCause.CANCELLED),
        ({}, [rule("cancel_subscription", 2 * EACH - 1, topic=">")], DiscardCause.CANCELLED),
        ({}, [], DiscardCause.UNSUBSCRIBED),
    ],
    ids=["lease", "policy", "unsubscribe"],
)
async def test_no_report_calls_messages_lost_that_the_log_keeps_for_the_client(
    tmp_path: Path, options: dict[str, Any], rules: list[dict[str, Any]], unjournaled_cause: DiscardCause
) -> None:
    async with running_broker(tmp_path, policy_with(*rules)) as broker:
        raw = await RawClient.connect(broker, "slow")
        raw.send_command(
            {"c": "subscribe", "id": "s", "topic": ">", "ack": "client", "prefetch": 2, **options}
        )
        await raw.read_until("processed")
        await publish(broker, "t", "scratch.t")
        connection = broker.engine.roster.clients["slow"]
        await until(lambda: connection.account.matched.messages == 2 * EACH)
        if unjournaled_cause is DiscardCause.UNSUBSCRIBED:
            raw.send_command({"c": "unsubscribe", "id": "s"})
            answer = await raw.read_until("processed")
        else:
            answer = await raw.read_until("cancelled")
        assert (answer["kept"], answer["lost"]) == (EACH, EACH)
        entry = await ask(broker, "client", name="slow")
        assert entry["gone"] == {"kept_in_log": EACH, unjournaled_cause: EACH}
        assert entry["gone_bytes"] == entry["matched_bytes"] == 2 * EACH * len(BODY)
        asked = unjournaled_cause is DiscardCause.UNSUBSCRIBED
        assert entry["lost_messages"] == (0 if asked else EACH)
        assert await ledger_rows(broker) == entry["gone"]
        raw.close()


async def test_the_notices_before_a_close_count_as_the_account_and_the_ledger_do(tmp_path: Path) -> None:
    limit = rule("disconnect", 2 * EACH - 1, topic=">")
    async with running_broker(tmp_path, policy_with(limit)) as broker:
        raw = await RawClient.connect(broker, "slow")
        raw.send_command({"c": "subscribe", "id": "s", "topic": ">", "ack": "client", "prefetch": 2})
        await raw.read_until("processed")
        await publish(broker, "t", "scratch.t")
        notice = await raw.read_until("notice")
        raw.send_command({"c": "told", "decision": notice["decision"]})
        closing = await raw.read_until("closing")
        assert (notice["kept"], notice["lost"]) == (closing["kept"], closing["lost"]) == (EACH, EACH)
        ended = broker.engine.roster.ended_account
        assert ended.lost_volume.messages == closing["lost"]
        assert await ledger_rows(broker) == {"kept_in_log": EACH, "disconnected": EACH}
        raw.close()


async def test_a_message_that_the_subscriber_rejected_is_in_the_ledger_and_no_loss(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        raw = await RawClient.connect(broker, "slow")
        raw.send_command(
            {"c": "subscribe", "id": "s", "topic": "t", "ack": "client-individual", "prefetch": 9}
        )
        await raw.read_until("processed")
        await publish(broker, "t")
        connection = broker.engine.roster.clients["slow"]
        await until(lambda: connection.account.delivered.messages == EACH)
        (target,) = connection.subscriptions.values()
        connection.backlog.reject(target.stream, 1)
        entry = await ask(broker, "client", name="slow")
        assert (entry["gone"], entry["gone_bytes"], entry["lost_messages"]) == ({"refused": 1}, len(BODY), 0)
        assert await ledger_rows(broker) == entry["gone"]
        raw.close()


async def test_the_bytes_that_a_subscribers_own_conflation_replaced_are_gone_and_not_lost(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as broker:
        raw = await RawClient.connect(broker, "slow")
        raw.send_command(
            {
                "c": "subscribe",
                "id": "s",
                "topic": "t",
                "bookmark": "0|1|",
                "conflation": "60s",
                "conflation_key": "topic",
            }
        )
        await raw.read_until("processed")
        await publish(broker, "t")
        await until(lambda: broker.engine.roster.clients["slow"].account.matched.messages == EACH)
        entry = await ask(broker, "client", name="slow")
        assert entry["gone"] == {"conflated_as_asked": EACH - 1}
        assert (entry["gone_bytes"], entry["lost_messages"]) == ((EACH - 1) * len(BODY), 0)
        assert entry["matched_bytes"] == entry["gone_bytes"] + entry["waiting_bytes"]
        raw.close()


async def test_messages_that_arrived_before_the_client_unsubscribed_are_not_lost(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        raw = await RawClient.connect(broker, "slow")
        raw.send_command({"c": "subscribe", "id": "s", "topic": "scratch.t", "ack": "client"})
        await raw.read_until("processed")
        await publish(broker, "scratch.t")
        assert len(await raw.deliveries(EACH)) == EACH
        raw.send_command({"c": "unsubscribe", "id": "s"})
        await raw.read_until("processed")
        entry = await ask(broker, "client", name="slow")
        assert (entry["gone"], entry["lost_messages"]) == ({"unsubscribed": EACH}, 0)
        raw.close()
        await until(lambda: "slow" not in broker.engine.roster.clients)
        assert broker.engine.roster.ended_account.lost_volume.messages == 0
