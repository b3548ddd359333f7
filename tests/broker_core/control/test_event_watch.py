from __future__ import annotations

import base64
from pathlib import Path

from broker_core.broker import Broker
from broker_core.control.event_watch import BrokerEvent, EventWatch, MessageWatch
from tests.broker_core.access.making import policy, user
from tests.support.brokers import ask, running_broker, until
from tests.support.raw import RawClient

FLIGHTS = MessageWatch("publish", "flights.>", "/delay > 10")


def of_kind(watch: EventWatch, heard: list[BrokerEvent], kind: str) -> list[BrokerEvent]:
    """Events of a kind so far."""
    heard += watch.drain()
    return [one for one in heard if one.kind == kind]


async def test_clients_come_subscribe_and_go(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        watch, heard = EventWatch(broker.engine), list[BrokerEvent]()
        watch.set_interest({"connect", "logon", "subscribe", "unsubscribe", "disconnect"}, [])
        client = await RawClient.connect(broker, "board")
        client.send_command({"c": "subscribe", "id": "s", "topic": "flights.>", "filter": "/delay > 10"})
        client.send_command({"c": "unsubscribe", "id": "s"})
        await until(lambda: of_kind(watch, heard, "unsubscribe"))
        client.close()
        await until(lambda: of_kind(watch, heard, "disconnect"))
        assert [one.kind for one in heard] == ["connect", "logon", "subscribe", "unsubscribe", "disconnect"]
        assert heard[0].variables["AMPS_CLIENT_NAME"].startswith("tcp-127.0.0.1")
        assert {one.variables["AMPS_CLIENT_NAME"] for one in heard[1:]} == {"board"}
        assert heard[2].variables["AMPS_TOPIC"] == "flights.>"
        assert heard[2].variables["AMPS_FILTER"] == "/delay > 10"
        assert heard[4].variables["SLUICE_REASON"]


async def test_messages_are_heard_by_pattern_and_filter(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        watch, heard = EventWatch(broker.engine), list[BrokerEvent]()
        watch.set_interest([], [FLIGHTS])
        before_ms = broker.engine.clock.now_ns() // 1_000_000
        client = await RawClient.connect(broker, "feed")
        await client.publish("flights.AA", [b'{"delay": 5}', b'{"delay": 15}', b'{"delay": 25}'], 1)
        await client.publish("trains.AA", [b'{"delay": 99}'], 4)
        await client.read_until("persisted")
        await until(lambda: len(of_kind(watch, heard, "publish")) == 2)
        assert [one.variables["AMPS_DATA"] for one in heard] == ['{"delay": 15}', '{"delay": 25}']
        assert heard[0].variables | {"AMPS_DATA": ""} == {
            "AMPS_TOPIC": "flights.AA",
            "AMPS_DATA": "",
            "AMPS_DATA_LENGTH": "13",
            "AMPS_BOOKMARK": "test-1|2|",
            "AMPS_CLIENT_NAME": "feed",
        }
        facts = dict(heard[0].facts)
        assert before_ms <= int(facts.pop("accepted_at_ms")) <= broker.engine.clock.now_ns() // 1_000_000
        assert facts == {"topic": "flights.>", "filter": "/delay > 10", "publisher": "feed", "user": ""}
        client.close()


async def test_the_user_of_a_publisher_that_is_gone_or_on_another_member_is_known(tmp_path: Path) -> None:
    """A user that isn't known could approve the run that the message starts."""
    maria = policy(user("maria"), restricted=False)
    async with running_broker(tmp_path, maria) as broker:
        watch, heard = EventWatch(broker.engine), list[BrokerEvent]()
        watch.set_interest([], [FLIGHTS])
        client = await RawClient.connect(broker, "feed", user="maria", token="maria")
        await client.publish("flights.AA", [b'{"delay": 15}'], 1)
        del broker.engine.roster.clients["feed"]  # as soon as it has hung up, and always on the other members
        await until(lambda: of_kind(watch, heard, "publish"))
        assert (heard[0].facts["publisher"], heard[0].facts["user"]) == ("feed", "maria")
        client.close()


async def test_a_delivery_is_heard_once_for_each_client(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        watch, heard = EventWatch(broker.engine), list[BrokerEvent]()
        watch.set_interest([], [MessageWatch("deliver", "flights.>", "")])
        readers = [await RawClient.connect(broker, name) for name in ("one", "two")]
        for reader, wanted in zip(readers, ("", "/delay > 10"), strict=True):
            reader.send_command(
                {"c": "subscribe", "id": "s", "topic": "flights.AA", **({"filter": wanted} if wanted else {})}
            )
            await reader.read_until("processed")
        feed = await RawClient.connect(broker, "feed")
        await feed.publish("flights.AA", [b'{"delay": 5}', b'{"delay": 15}'], 1)
        await readers[0].deliveries(2)
        await until(lambda: len(of_kind(watch, heard, "deliver")) >= 3)
        assert sorted((one.variables["AMPS_CLIENT_NAME"], one.variables["AMPS_DATA"]) for one in heard) == [
            ("one", '{"delay": 15}'),
            ("one", '{"delay": 5}'),
            ("two", '{"delay": 15}'),
        ]


async def test_what_nobody_wants_any_more_is_not_heard_and_costs_no_subscription(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        watch = EventWatch(broker.engine)
        watch.set_interest({"logon", "decision"}, [FLIGHTS])
        assert len(broker.engine.subscriptions.registry) == 3
        watch.set_interest([], [])
        assert len(broker.engine.subscriptions.registry) == 0


async def test_a_full_queue_counts_what_it_drops(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        watch = EventWatch(broker.engine, capacity=2)
        watch.set_interest([], [MessageWatch("publish", "flights.>", "")])
        client = await RawClient.connect(broker, "feed")
        await client.publish("flights.AA", [b"{}"] * 5, 1)
        await client.read_until("persisted")
        await until(lambda: watch.dropped)
        assert (len(watch.drain()), watch.dropped, watch.free_slots) == (2, 3, 2)
        client.close()


async def test_what_an_action_publishes_starts_no_action(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        watch = EventWatch(broker.engine)
        watch.set_interest([], [MessageWatch("publish", "flights.>", "")])
        reader = await RawClient.connect(broker, "board")
        reader.send_command({"c": "subscribe", "id": "s", "topic": "flights.>"})
        await reader.read_until("processed")
        body = base64.b64encode(b"8=FIX\x01").decode()
        assert await ask(broker, "publish_bytes", topic="flights.AA", body=body) == {
            "topic": "flights.AA",
            "bytes": 6,
        }
        assert await reader.deliveries(1) == [b"8=FIX\x01"]
        assert watch.drain() == []


async def test_a_client_is_offlined_on_request_and_comes_back(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        watch, heard = EventWatch(broker.engine), list[BrokerEvent]()
        watch.set_interest({"offline_start", "offline_stop"}, [])
        client = await RawClient.connect(broker, "board")
        assert await ask(broker, "offline", name="board") == {"name": "board", "state": "offlined"}
        await until(lambda: of_kind(watch, heard, "offline_stop"))
        assert [one.kind for one in heard] == ["offline_start", "offline_stop"]
        client.close()


async def test_shutting_down_asks_whoever_runs_the_broker(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        asked: list[Broker] = []
        broker.on_shut_down = lambda: asked.append(broker)
        assert await ask(broker, "shut_down") == {"stopping": True}
        assert asked == [broker]
