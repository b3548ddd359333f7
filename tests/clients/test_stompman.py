"""stompman, an asyncio client, as published, against a real broker over TCP and WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import stompman
from stompman.connection_ws import WebSocketConnection

from broker_core.access import hash_password
from broker_core.broker import Broker
from broker_core.config import AccessSettings, TransportSettings, UserSettings
from tests.support.brokers import running_broker, tcp_policy, until
from tests.support.rules import policy_with, rule
from tests.support.stomp_client import port_of, stomp_policy
from tests.support.transports_process import broker_process

DEAD = ("127.0.0.1", 1)
"""An address without a listener."""


class Application:
    """An application with its client and the messages that it received."""

    def __init__(self, client: stompman.Client) -> None:
        self.client = client
        self.bodies: list[str] = []
        self.frames: list[Any] = []
        self.errors: list[Any] = []
        self.subscriptions: list[Any] = []

    async def take(self, frame: Any) -> None:
        self.frames.append(frame)
        self.bodies.append(frame.body.decode())

    async def subscribe(self, destination: str, **options: Any) -> None:
        made = await self.client.subscribe(
            destination,
            self.take,
            receipt_timeout=20,
            on_suppressed_exception=lambda *problem: self.errors.append(problem),
            **options,
        )
        self.subscriptions.append(made)

    async def send(self, *bodies: str, to: str = "/topic/a", **options: Any) -> None:
        for body in bodies:
            await self.client.send(body.encode(), to, receipt_timeout=20, **options)

    async def has(self, *bodies: str) -> None:
        await until(lambda: len(self.bodies) >= len(bodies))
        assert self.bodies == list(bodies)


@asynccontextmanager
async def application(
    broker: Broker,
    *,
    login: str = "guest",
    passcode: str = "guest",
    before: tuple[tuple[str, int], ...] = (),
    **options: Any,
) -> AsyncIterator[Application]:
    servers = [
        stompman.ConnectionParameters(host, port, login, passcode, **options.pop("parameters", {}))
        for host, port in (*before, ("127.0.0.1", options.pop("port", port_of(broker))))
    ]
    errors: list[Any] = []
    async with stompman.Client(servers, on_error_frame=errors.append, **options) as client:
        made = Application(client)
        made.errors = errors
        try:
            yield made
        finally:
            for one in made.subscriptions:
                await one.unsubscribe()


async def test_it_publishes_with_receipts_and_subscribes(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker, application(broker) as app:
        await app.subscribe("/topic/a.*")
        await app.send("grün\n", to="/topic/a.b", content_type="text/plain")
        await app.has("grün\n")
        assert app.frames[0].headers["destination"] == "/topic/a.b"
        assert app.frames[0].headers["content-type"] == "text/plain"
        assert broker.engine.frontier.durable >= 1, "a receipt says that it is on the disk"


async def test_acknowledgements_of_single_messages_move_its_window(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker, application(broker) as app:
        taken: list[Any] = []

        async def take(frame: Any) -> None:
            taken.append(frame)

        made = await app.client.subscribe_with_manual_ack(
            "/topic/a", take, headers={"prefetch-count": "1"}, receipt_timeout=20
        )
        app.subscriptions.append(made)
        await app.send("1", "2", "3")
        for number, answer in enumerate(("ack", "nack", "ack"), 1):
            await until(lambda number=number: len(taken) == number)  # type: ignore[misc]
            await getattr(taken[-1], answer)()
        assert [frame.body for frame in taken] == [b"1", b"2", b"3"]


async def test_transactions_are_kept_back_until_they_are_committed(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker, application(broker) as app:
        await app.subscribe("/topic/a")
        with pytest.raises(KeyError):
            async with app.client.begin() as transaction:
                await transaction.send(b"aborted", "/topic/a")
                raise KeyError
        async with app.client.begin() as transaction:
            await transaction.send(b"one", "/topic/a")
            await transaction.send(b"two", "/topic/a")
        await app.send("last")
        await app.has("one", "two", "last")


async def test_a_durable_subscription_brings_what_came_meanwhile(tmp_path: Path) -> None:
    mine = {"parameters": {"connect_headers": {"client-id": "app"}}}
    kept = {"durable-subscription-name": "mine"}
    async with running_broker(tmp_path, stomp_policy()) as broker, application(broker) as writer:
        async with application(broker, **mine) as app:
            await app.subscribe("/topic/a", ack="client", headers=kept)
        await writer.send("meanwhile")
        async with application(broker, **mine) as app:
            await app.subscribe("/topic/a", ack="client", headers=kept)
            await app.has("meanwhile")


async def test_selectors_and_replays(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker, application(broker) as app:
        for number in range(4):
            await app.send(str(number), headers={"n": str(number)})
        await app.subscribe("/topic/a", headers={"selector": "n >= 2", "x-stream-offset": "first"})
        await app.has("2", "3")


async def test_heart_beats_hold_an_idle_connection(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker:
        async with application(broker, heartbeat=stompman.Heartbeat(1_000, 1_000)) as app:
            await app.subscribe("/topic/a")
            (before,) = broker.engine.roster.connections
            await asyncio.sleep(4)
            assert app.client.is_alive()
            assert list(broker.engine.roster.connections) == [before], "it is the same connection"


async def test_it_fails_over_and_resubscribes_when_its_connection_is_cut(tmp_path: Path) -> None:
    async with running_broker(tmp_path, stomp_policy()) as broker:
        async with application(broker, before=(DEAD,)) as app:
            await app.subscribe("/topic/a")
            await app.send("1")
            await app.has("1")
            (cut,) = broker.engine.roster.connections
            cut.sink._transport.abort()
            await until(lambda: cut not in broker.engine.roster.connections)
            await until(lambda: any(one.subscriptions for one in broker.engine.roster.connections))
            await app.send("2")
            await app.has("1", "2")


async def test_a_wrong_passcode_is_refused(tmp_path: Path) -> None:
    policy = stomp_policy(authentication="password")
    user = UserSettings("guest", password=hash_password("guest"))
    policy = replace(policy, access=AccessSettings(users=(user,)))
    async with running_broker(tmp_path, policy) as broker:
        async with application(broker) as app:
            await app.send("1")
        with pytest.raises((stompman.FailedAllConnectAttemptsError, ExceptionGroup)):
            async with application(broker, passcode="wrong", connect_retry_attempts=1) as app:
                await app.send("2")
        await until(lambda: not broker.engine.roster.clients)
        assert broker.engine.dispatch.messages_in == 1


async def test_a_slow_client_gets_the_reason(tmp_path: Path) -> None:
    policy = stomp_policy(policy_with(rule("disconnect")))
    async with running_broker(tmp_path, policy) as broker, application(broker) as writer:
        async with application(broker, heartbeat=stompman.Heartbeat(0, 0)) as slow:

            async def never(frame: Any) -> None:
                """Receive without acknowledging."""

            made = await slow.client.subscribe_with_manual_ack(
                "/topic/t", never, headers={"prefetch-count": "2"}, receipt_timeout=20
            )
            slow.subscriptions.append(made)
            await writer.send(*map(str, range(20)), to="/topic/t")
            await until(lambda: slow.errors)
            headers = slow.errors[0].headers
            assert headers["message"] == "slow_client_backlog"
            assert float(headers["x-sluice-observed"]) > float(headers["x-sluice-limit"])


async def test_over_a_websocket_it_is_the_same() -> None:
    policy = replace(tcp_policy(), transports=(TransportSettings("stomp-ws", "stomp-ws", 0),))
    with broker_process(policy) as ports:
        server = stompman.ConnectionParameters("127.0.0.1", ports["stomp-ws"], "", "", ws_uri_path="stomp")
        async with stompman.Client([server], connection_class=WebSocketConnection) as client:
            app = Application(client)
            await app.subscribe("/topic/a", headers={"x-stream-offset": "first"})
            await app.send("1", "2")
            await app.has("1", "2")
            await app.subscriptions[0].unsubscribe()
