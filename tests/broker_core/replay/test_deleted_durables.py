"""Deleting a durable subscription records everything that it was owed: in ledger, answer and account."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from broker_core.broker import Broker
from broker_core.client import AsyncClient
from broker_core.delivery.account import DeliveryAccount
from tests.support.brokers import address_of, ask, running_broker, until
from tests.support.raw import RawClient
from tests.support.rules import policy_with, rule
from tests.support.stomp_client import stomp_client, stomp_policy

OWED, WINDOW = 400, 68
DURABLE = {"c": "subscribe", "id": "s", "topic": "t", "durable": "orders", "ack": "client"}


@asynccontextmanager
async def absent_client(home: Path, *rules: dict[str, Any]) -> AsyncIterator[Broker]:
    """Run a broker with a durable subscription that is owed OWED records; other topics lie between them."""
    async with running_broker(home, policy_with(*rules)) as broker:
        reader = await RawClient.connect(broker, "reader")
        reader.send_command(DURABLE)
        await reader.read_until("processed")
        reader.close()
        await until(lambda: "reader" not in broker.engine.roster.clients)
        async with AsyncClient(address_of(broker), "writer") as writer:
            for _ in range(OWED // 4):
                await writer.publish_many("t", [b"1234"] * 4)
                await writer.publish_many("other", [b"1"] * 3)
            await writer.flush()
        yield broker


async def return_client(broker: Broker) -> RawClient:
    """Return the client, subscribed again with a window of WINDOW messages."""
    reader = await RawClient.connect(broker, "reader")
    reader.send_command(DURABLE | {"prefetch": WINDOW})
    await reader.read_until("processed")
    return reader


async def stop_at_window(broker: Broker) -> RawClient:
    """Return the client, subscribed again, with a full window of WINDOW unacknowledged messages."""
    reader = await return_client(broker)
    await until(lambda: in_flight(broker) == WINDOW)
    return reader


def in_flight(broker: Broker) -> int:
    connection = broker.engine.roster.clients.get("reader")
    return connection.account.in_flight.messages if connection is not None else 0


async def ledger_rows(broker: Broker, client: str = "reader") -> list[dict[str, Any]]:
    """Return the ledger's rows of a client, once the second has ended."""
    await until(lambda: any(one.client == client for one in broker.engine.ledger.recent))
    rows: list[dict[str, Any]] = await ask(broker, "ledger", client=client)
    return rows


def assert_owed(rows: list[dict[str, Any]], account: DeliveryAccount, first: int = 1) -> None:
    """Assert that rows and account have all messages that were owed, with their bytes and their ends."""
    assert {row["cause"] for row in rows} == {"kept_in_log"}
    assert sum(row["messages"] for row in rows) == OWED
    assert sum(row["bytes"] for row in rows) == 4 * OWED
    assert min(int(row["from"].split("|")[1]) for row in rows) == first
    assert max(int(row["to"].split("|")[1]) for row in rows) == 7 * OWED // 4 - 3
    assert account.matched == account.discarded_volume == (OWED, 4 * OWED)
    assert account.waiting == account.in_flight == (0, 0)


async def test_a_returning_client_that_deletes_it_leaves_all_it_was_owed_in_the_ledger(
    tmp_path: Path,
) -> None:
    async with absent_client(tmp_path) as broker:
        reader = await stop_at_window(broker)
        reader.send_command({"c": "unsubscribe", "id": "s", "delete": True})
        answer = await reader.read_until("processed")
        assert (answer["of"], answer["kept"], answer["bookmark"]) == ("unsubscribe", OWED, "test-1|0|")
        assert_owed(await ledger_rows(broker), broker.engine.roster.clients["reader"].account)
        assert await ask(broker, "durables") == []
        reader.close()


async def test_an_operator_that_deletes_it_in_the_absence_of_its_client_learns_how_much_it_was_owed(
    tmp_path: Path,
) -> None:
    async with absent_client(tmp_path) as broker:
        merged = broker.engine.roster.ended_account
        before = merged.matched.messages
        answer = await ask(broker, "durable_delete", client="reader", name="orders")
        assert (answer["undelivered"], before) == (OWED, 0)
        assert_owed(await ledger_rows(broker), merged)
        assert not [pin for pin in broker.engine.journal.pins() if "orders" in pin.owner]


async def test_one_that_an_operator_deletes_under_its_client_is_accounted_for_when_it_ends(
    tmp_path: Path,
) -> None:
    async with absent_client(tmp_path) as broker:
        reader = await stop_at_window(broker)
        assert (await ask(broker, "durable_delete", client="reader", name="orders"))["undelivered"] == 0
        reader.close()
        await until(lambda: broker.engine.roster.ended_account.matched.messages == OWED)
        assert_owed(await ledger_rows(broker), broker.engine.roster.ended_account)


async def test_a_rule_that_deletes_it_states_all_it_was_owed(tmp_path: Path) -> None:
    own = rule("delete_durable", confirm_delete=True)
    async with absent_client(tmp_path, own) as broker:
        reader = await return_client(broker)
        await until(lambda: broker.engine.decisions.recent)
        (decision,) = broker.engine.decisions.recent
        assert (decision.action, decision.kept, decision.lost) == ("delete_durable", OWED, 0)
        assert f"{OWED} messages are in the journal and can be replayed from test-1|0|" in decision.sentence
        assert (await reader.read_until("notice"))["kept"] == OWED
        await until(lambda: "reader" not in broker.engine.roster.clients)
        rows = await ledger_rows(broker)
        assert_owed(rows, broker.engine.roster.ended_account)
        assert {row["rule"] for row in rows} == {"test"}
        reader.close()


async def test_the_records_that_consumers_of_a_deleted_queue_had_finished_are_not_counted(
    tmp_path: Path,
) -> None:
    async with running_broker(tmp_path) as broker, AsyncClient(address_of(broker), "writer") as writer:
        worker = await RawClient.connect(broker, "worker")
        worker.send_command(
            {
                "c": "subscribe",
                "id": "q",
                "topic": "queue.jobs",
                "durable": "queue.jobs",
                "shared": True,
                "ack": "client-individual",
                "prefetch": 4,
            }
        )
        await worker.read_until("processed")
        await writer.publish_many("queue.jobs", [b"1234"] * 10)
        await writer.flush()
        await worker.deliveries(4)
        worker.send_command({"c": "ack", "id": "q", "upto": 2})
        await until(lambda: broker.engine.roster.clients["worker"].account.acknowledged.messages >= 1)
        done = broker.engine.roster.clients["worker"].account.acknowledged.messages
        worker.close()
        await until(lambda: "worker" not in broker.engine.roster.clients)
        (durable,) = await ask(broker, "durables")
        await until(lambda: not broker.engine.durables._shared)
        answer = await ask(broker, "durable_delete", client=durable["client"], name=durable["name"])
        assert answer["undelivered"] == 10 - done
        (row,) = await ledger_rows(broker, durable["client"])
        assert (row["messages"], row["subscription"]) == (10 - done, "queue.jobs")


async def test_a_stomp_client_that_names_it_without_subscribing_deletes_it_with_all_it_was_owed(
    tmp_path: Path,
) -> None:
    headers = {"id": "s", "destination": "/topic/a", "durable_subscription_name": "d"}
    async with running_broker(tmp_path, stomp_policy()) as broker:
        async with stomp_client(broker, client_id="c") as reader:
            await reader.send_with_receipt("SUBSCRIBE", **headers)
        await until(lambda: not any(one.connected for one in broker.engine.durables.list_entries()))
        async with stomp_client(broker) as writer, stomp_client(broker, client_id="c") as reader:
            for _ in range(20):
                await writer.send_with_receipt("SEND", b"1234", destination="/topic/a")
            await reader.send_with_receipt("UNSUBSCRIBE", **headers)
            (row,) = await ledger_rows(broker, "c")
            assert (row["messages"], row["bytes"], row["cause"]) == (20, 80, "kept_in_log")
