"""Getting and staying connected: logon, notices, replaced clients, heartbeats, WebSocket, and giving up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker_core.client import AsyncClient, ConnectionLoss, MemoryPublishStore, ReconnectPolicy, connector
from broker_core.client.links import parse_address, parse_addresses
from broker_core.errors import ClientError, OperatorError
from broker_core.protocols import commands, liveness, replies
from broker_core.protocols.native import COMMAND, encode_frame_header
from tests.broker_core.client.fake_broker import INSTANCE, BrokerConnection, FakeBroker

QUICK = ReconnectPolicy(first_delay=0.001, longest_delay=0.01)


@pytest.mark.asyncio
async def test_it_logs_on_with_its_name_and_learns_the_instance(broker: FakeBroker) -> None:
    async with AsyncClient(broker.address, "me", user="u", password="p") as client:
        assert (client.connected, client.instance) == (True, INSTANCE)
    logon = broker.commands[0]
    assert isinstance(logon, commands.Logon)
    assert (logon.name, logon.user, logon.password) == ("me", "u", "p")


@pytest.mark.asyncio
async def test_a_refused_logon_is_raised_at_once(broker: FakeBroker) -> None:
    broker.refuse_logon = ClientError("bad_logon", "No.", "Yes.")
    with pytest.raises(ClientError) as caught:
        await AsyncClient(broker.address, "me").start()
    assert caught.value.code == "bad_logon"
    assert len(broker.commands) == 1


@pytest.mark.asyncio
async def test_a_broker_that_is_not_there_is_named_after_the_time_out() -> None:
    policy = ReconnectPolicy(first_delay=0.001, longest_delay=0.001, first_connect_timeout=0.01)
    with pytest.raises(OperatorError) as caught:
        await AsyncClient("tcp://127.0.0.1:1", "me", reconnect=policy).start()
    assert caught.value.code == "broker_away"


@pytest.mark.asyncio
async def test_the_next_address_is_tried(broker: FakeBroker) -> None:
    async with AsyncClient(["tcp://127.0.0.1:1", broker.address], "me", reconnect=QUICK) as client:
        assert client.connected


@pytest.mark.asyncio
async def test_a_replaced_client_does_not_fight_back(broker: FakeBroker) -> None:
    client = AsyncClient(broker.address, "me", reconnect=QUICK)
    async with client:
        subscription = await client.subscribe("a")
        peer = broker.peers[0]
        peer.reply(replies.ClosingNotice(code="client_replaced", message="Another client took the name."))
        peer.close()
        with pytest.raises(ClientError) as caught:
            await anext(aiter(subscription))
        assert caught.value.code == "client_replaced"
        with pytest.raises(ClientError):
            await client.publish("a", b"x")
        assert client.connections == 1


@pytest.mark.asyncio
async def test_a_notice_is_handed_on_and_its_delay_is_kept(broker: FakeBroker) -> None:
    heard: list[replies.DecisionNotice] = []
    async with AsyncClient(broker.address, "me", reconnect=QUICK, on_notice=heard.append) as client:
        notice = replies.DecisionNotice(
            code="slow_client_age",
            message="Too old.",
            observed=9,
            limit=5,
            unit="ms",
            resume="i|3|",
            retry_after_ms=30,
        )
        peer, since = broker.peers[0], asyncio.get_running_loop().time()
        peer.reply(notice)
        peer.reply(replies.ClosingNotice(code="slow_client_age", message="Too old."))
        peer.close()
        await broker.until(lambda: len(broker.commands) == 2)
        assert asyncio.get_running_loop().time() - since >= 0.03
        assert heard == list(client.notices) == [notice]


@pytest.mark.asyncio
async def test_a_broker_that_falls_silent_is_left(broker: FakeBroker) -> None:
    async with AsyncClient(broker.address, "me", reconnect=QUICK, heartbeat_ms=100) as client:
        await broker.until(
            lambda: any(isinstance(command, commands.ClientHeartbeat) for command in broker.commands)
        )
        link = client._connector.link
        assert link is not None
        link.liveness.last_alive_at -= 10_000  # as if nothing had come for ten seconds
        broker.silent = True
        await link.lost
        broker.silent = False
        await broker.until(lambda: client.connections == 2 or len(broker.peers) == 2)


@pytest.mark.asyncio
async def test_each_loss_is_reported_with_its_reason_and_the_delays_grow(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    find_losses: list[ConnectionLoss] = []
    policy = ReconnectPolicy(first_delay=0.01, longest_delay=0.08, jitter=0)
    async with AsyncClient(
        broker.address, "me", reconnect=policy, heartbeat_ms=100, on_disconnect=find_losses.append
    ) as client:
        assert client.last_loss is None
        for number in range(1, 5):
            await broker.until(lambda: len(broker.peers) == number)  # noqa: B023
            broker.silent = True
            while len(find_losses) < number:
                await asyncio.sleep(0.01)
            broker.silent = False
        assert client.last_loss is find_losses[-1]
    assert len(find_losses) == 4, "an ordered close is no loss"
    assert {loss.error.code for loss in find_losses} == {"broker_silent"}
    assert [loss.failures for loss in find_losses] == [1, 2, 3, 4]
    assert [loss.retry_in_s for loss in find_losses] == [0.01, 0.02, 0.04, 0.08]
    assert all(
        loss.error.sentence and loss.error.fix and loss.address == broker.address for loss in find_losses
    )
    told = [record.getMessage() for record in caplog.records if record.name == "sluice.client"]
    assert len([one for one in told if "broker_silent" in one]) >= 3


@pytest.mark.asyncio
async def test_a_mistake_of_the_application_in_on_disconnect_does_not_end_the_client(
    broker: FakeBroker,
) -> None:
    def fail(loss: ConnectionLoss) -> None:
        raise ZeroDivisionError

    async with AsyncClient(broker.address, "me", reconnect=QUICK, on_disconnect=fail) as client:
        broker.drop()
        await broker.until(lambda: len(broker.peers) == 1)
        await client.publish("a", b"x")
        await client.flush()


@pytest.mark.asyncio
async def test_a_broker_whose_frame_never_ends_is_left(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "FRAME_GRACE_MS", 300)
    async with AsyncClient(broker.address, "me", reconnect=QUICK, heartbeat_ms=200) as client:
        peer = broker.peers[0]
        peer.write(encode_frame_header(COMMAND, 0, 60_000))
        async with asyncio.timeout(30):
            while client.last_loss is None:
                peer.write(b" ")
                await asyncio.sleep(0.05)
        assert client.last_loss.error.code == "frame_timeout"


@pytest.mark.asyncio
async def test_a_broker_that_stands_still_while_everything_is_sent_again_is_left(broker: FakeBroker) -> None:
    store = MemoryPublishStore(limit=64 * 1024 * 1024)
    broker.hold_acks = True
    client = await AsyncClient(
        broker.address, "me", reconnect=QUICK, heartbeat_ms=200, publish_store=store
    ).start()
    for _ in range(32):
        await client.publish("a", b"x" * 1_000_000)
    client._publisher.flush_batch()
    broker.deaf = True
    broker.drop()
    await broker.until(lambda: len(broker.peers) == 1)
    async with asyncio.timeout(30):
        while client.last_loss is None or client.last_loss.error.code != "broker_silent":
            await asyncio.sleep(0.01)
    with pytest.raises(OperatorError, match="unsent_messages"):
        await client.close(timeout=0)


@pytest.mark.asyncio
async def test_without_reconnect_a_lost_connection_is_the_end(broker: FakeBroker) -> None:
    async with AsyncClient(broker.address, "me", reconnect=ReconnectPolicy(enabled=False)) as client:
        subscription = await client.subscribe("a")
        broker.drop()
        with pytest.raises(OperatorError) as caught:
            await anext(aiter(subscription))
        assert caught.value.code == "broker_away"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "garbage",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff" * 64, encode_frame_header(COMMAND, 0, 4) + b"{\xff]}"],
)
async def test_bytes_that_are_no_protocol_are_a_reconnect_and_not_the_end(
    broker: FakeBroker, garbage: bytes
) -> None:
    async with AsyncClient(broker.address, "me", reconnect=QUICK) as client:
        broker.peers[0].write(garbage)
        await broker.until(lambda: len(broker.peers) == 2)
        await client.publish_many("a", [b"x"])
        await client.flush()


@pytest.mark.asyncio
async def test_a_broker_that_is_silent_from_its_logon_on_is_left(broker: FakeBroker) -> None:
    async with AsyncClient(broker.address, "me", reconnect=QUICK, heartbeat_ms=100) as client:
        link = client._connector.link
        assert link is not None
        broker.silent = True  # before its first heartbeat, as a half-open connection is
        await link.lost
        broker.silent = False
        await broker.until(lambda: len(broker.peers) == 2)


@pytest.mark.asyncio
async def test_a_logon_that_is_answered_late_is_a_logon(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = BrokerConnection.command

    def late(peer: BrokerConnection, command: commands.Command) -> None:
        delay = 0.3 if isinstance(command, commands.Logon) else 0.0
        asyncio.get_running_loop().call_later(delay, take, peer, command)

    monkeypatch.setattr(BrokerConnection, "command", late)
    policy = ReconnectPolicy(connect_timeout=0.2, first_connect_timeout=0.2)
    async with AsyncClient(broker.address, "me", reconnect=policy) as client:
        assert client.connections == len(broker.commands) == 1


@pytest.mark.asyncio
async def test_the_same_over_a_websocket(broker: FakeBroker) -> None:
    await broker.start_websocket()
    async with AsyncClient(broker.ws_address, "me", reconnect=QUICK) as client:
        subscription = await client.subscribe(">", bookmark="0")
        await client.publish_many("a", [b"x" * 1_000] * 300)
        await client.flush()
        messages = aiter(subscription)
        assert [(await anext(messages)).sequence for _ in range(300)] == list(range(1, 301))
        broker.drop()
        await client.publish("b", b"again")
        await client.flush()
        assert (await anext(messages)).body == b"again"
        assert client.connections == 2


@pytest.mark.asyncio
async def test_a_websocket_closed_with_our_code_says_why(broker: FakeBroker) -> None:
    await broker.start_websocket()
    async with AsyncClient(broker.ws_address, "me", reconnect=QUICK) as client:
        subscription = await client.subscribe("a")
        broker.peers[0].close()  # 4101, as after a bad logon
        with pytest.raises(ClientError) as caught:
            await anext(aiter(subscription))
        assert caught.value.code == "bad_logon"


@pytest.mark.asyncio
async def test_a_server_that_speaks_no_websocket_is_named(broker: FakeBroker) -> None:
    policy = ReconnectPolicy(first_delay=0.001, longest_delay=0.001, first_connect_timeout=0.02)
    address = broker.address.replace("tcp:", "ws:")
    with pytest.raises((OperatorError, ClientError)):
        await AsyncClient(address, "me", reconnect=policy).start()


def test_delays_grow_to_the_longest_and_are_spread() -> None:
    policy = ReconnectPolicy(first_delay=1, longest_delay=8, factor=2, jitter=0.5)
    for attempt, longest in enumerate([1, 2, 4, 8, 8, 8]):
        assert longest / 2 <= policy.delay(attempt) <= longest
    assert policy.delay(10_000) <= 8


def test_addresses() -> None:
    assert parse_address("tcp://host:1234")[:3] == ("tcp", "host", 1234)
    assert parse_address("ws://host/")[:3] == ("ws", "host", 9008)
    assert parse_address("tcp://[::1]:9007").host == "::1"
    unknown = ("tcp://a..b:9007", f"tcp://{'a' * 64}.example:9007")  # no look-up of such a name is possible
    for wrong in ("", "host:9007", "http://host", "tcp://", "tcp://host:port", "tcp://host:99999", *unknown):
        with pytest.raises(OperatorError) as caught:
            parse_addresses(wrong)
        assert caught.value.code == "bad_address"


@pytest.mark.parametrize(
    ("failure", "words"),
    [(TimeoutError(), "no answer in time."), (OSError(), "OSError."), (OSError("No route."), "No route.")],
)
async def test_a_broker_that_cannot_be_reached_is_reported_with_a_reason(
    failure: OSError, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(connector, "open_link", fail)
    with pytest.raises(OperatorError) as caught:
        await AsyncClient("tcp://there:1", "me", reconnect=ReconnectPolicy(enabled=False)).start()
    assert caught.value.code == "broker_away"
    assert caught.value.sentence == f"The broker can't be reached: {words}"


SAID: dict[str, Any] = {
    "ack": replies.Ack(ack="processed", of="unsubscribe", id="s"),
    "error": replies.ErrorReply(code="bad_filter", of="subscribe", id="nobody"),
    "heartbeat": replies.BrokerHeartbeat(),
    "gap": replies.GapNotice(id="s", first="i|1|", last="i|2|"),
    "notice": replies.DecisionNotice(code="narrowed"),
    "closing": replies.ClosingNotice(code="shutting_down"),
    "message": replies.TextMessage(sub="s", topic="a"),
    "cancelled": replies.SubscriptionCancelled(id="nobody", code="lease_expired"),
    "close_requested": replies.CloseRequested(code="slow_client_age"),
    "resumed": replies.ResumedNotice(id="nobody", how="log", missed=0),
}


@pytest.mark.asyncio
@pytest.mark.parametrize("name", [*replies.NAMES, "weather"])
async def test_whatever_a_broker_says_the_client_goes_on(broker: FakeBroker, name: str) -> None:
    """Every reply there is has an example, and a word of a newer broker is passed over."""
    async with AsyncClient(broker.address, "me", reconnect=QUICK) as client:
        broker.peers[0].reply(SAID.get(name, {"c": name, "sun": True}))
        await client.publish("a", b"x")
        await client.flush()
        assert broker.bodies == [b"x"]


def test_there_is_an_example_of_every_reply() -> None:
    assert set(SAID) == set(replies.NAMES)
