"""STOMP clients that must authenticate and have limited permissions; also over TLS."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from broker_core.access import hash_password, hash_token
from broker_core.client import tls_context
from broker_core.config import AccessSettings, EntitlementSettings, UserSettings
from tests.support.brokers import running_broker
from tests.support.certificates import Authority
from tests.support.stomp_client import StompClient, port_of, stomp_client, stomp_policy

USERS = (
    UserSettings("maria", password=hash_password("secret"), clients=("maria-*",)),
    UserSettings("feed", token=hash_token("t0ken")),
)


async def test_a_password_lets_in_and_a_wrong_one_is_refused_with_the_receipt_of_nobody(
    tmp_path: Path,
) -> None:
    policy = stomp_policy(authentication="password")
    async with running_broker(tmp_path, replace(policy, access=AccessSettings(USERS))) as broker:
        async with stomp_client(broker, "") as client:
            # What follows the CONNECT waits while the password is checked.
            client.send(
                "CONNECT", accept_version="1.2", login="maria", passcode="secret", client_id="maria-1"
            )
            client.send("SUBSCRIBE", id="s", destination="/topic/a", receipt="r")
            assert [(await client.read()).command for _ in range(2)] == ["CONNECTED", "RECEIPT"]
        for headers, code in (
            ({"login": "maria", "passcode": "wrong", "client_id": "maria-1"}, "bad_logon"),
            ({"login": "maria", "passcode": "secret", "client_id": "other"}, "bad_client_name"),
            ({}, "bad_logon"),
        ):
            async with stomp_client(broker, "") as client:
                client.send("CONNECT", accept_version="1.2", **headers)
                client.send("SUBSCRIBE", id="s", destination="/topic/a")
                assert (await client.read_error()).headers["message"] == code


async def test_the_passcode_may_be_a_token(tmp_path: Path) -> None:
    policy = stomp_policy(authentication="token")
    async with running_broker(tmp_path, replace(policy, access=AccessSettings(USERS))) as broker:
        async with stomp_client(broker, passcode="t0ken") as client:
            await client.send_with_receipt("SEND", b"1", destination="/topic/a")
        async with stomp_client(broker, "") as client:
            client.send("CONNECT", accept_version="1.2", login="maria", passcode="t0ken")
            assert (await client.read_error()).headers["message"] == "bad_logon"


async def test_what_no_entitlement_allows_is_refused(tmp_path: Path) -> None:
    entitled = EntitlementSettings(("feed",), publish=("a.>",), subscribe=("a.*",), filter="/n > 1")
    policy = stomp_policy(authentication="token", restricted=True)
    access = AccessSettings(USERS, (entitled,))
    async with running_broker(tmp_path, replace(policy, access=access)) as broker:
        for command, destination in (("SEND", "/topic/b"), ("SUBSCRIBE", "/topic/b"), ("SEND", "/queue/a")):
            async with stomp_client(broker, passcode="t0ken") as client:
                client.send(command, destination=destination, id="s")
                assert (await client.read_error()).headers["message"] == "not_entitled"
        async with stomp_client(broker, passcode="t0ken") as client:
            await client.send_with_receipt(
                "SUBSCRIBE", id="s", destination="/topic/a.b", selector="color = 'red'"
            )
            for number, color in ((1, "red"), (2, "blue"), (3, "red")):
                client.send("SEND", b'{"n":%d}' % number, destination="/topic/a.b", color=color)
            assert (await client.read()).body == b'{"n":3}'


async def test_a_name_of_another_user_isnt_taken_over(tmp_path: Path) -> None:
    users = (*USERS[1:], UserSettings("eve", token=hash_token("eve")))
    policy = stomp_policy(authentication="token")
    async with running_broker(tmp_path, replace(policy, access=AccessSettings(users))) as broker:
        async with stomp_client(broker, passcode="t0ken", client_id="app") as first:
            async with stomp_client(broker, "") as thief:
                thief.send("CONNECT", accept_version="1.2", passcode="eve", client_id="app")
                assert (await thief.read_error()).headers["message"] == "name_taken"
            async with stomp_client(broker, passcode="t0ken", client_id="app"):
                assert (await first.read_error()).headers["message"] == "client_replaced"


@pytest.mark.parametrize("bodies", [1, 3_000])
async def test_under_tls_it_is_the_same(tmp_path: Path, bodies: int) -> None:
    authority = Authority(tmp_path)
    async with running_broker(tmp_path / "home", stomp_policy(tls=authority.transport())) as broker:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port_of(broker), ssl=tls_context(authority.certificate), limit=1 << 24
        )
        client = StompClient(reader, writer)
        await client.connect()
        await client.send_with_receipt("SUBSCRIBE", id="s", destination="/topic/a")
        for number in range(bodies):
            client.send("SEND", b"%d" % number + b"x" * 2_000, destination="/topic/a")
        for number in range(bodies):
            assert (await client.read()).body == b"%d" % number + b"x" * 2_000
        client.send("SEND", b"", destination="/topic/a b")
        assert (await client.read_error()).headers["message"] == "bad_topic"
        writer.close()


async def test_names_that_were_made_up_are_nobodys(tmp_path: Path) -> None:
    policy = stomp_policy(authentication="token")
    async with running_broker(tmp_path, replace(policy, access=AccessSettings(USERS))) as broker:
        async with (
            stomp_client(broker, passcode="t0ken"),
            stomp_client(broker, passcode="t0ken", client_id="app"),
        ):
            assert len(broker.engine.roster.clients) == 2
            assert len(broker.engine.logons.owners) == 1


async def test_a_users_durable_subscription_isnt_that_of_who_only_says_that_name(tmp_path: Path) -> None:
    policy = stomp_policy(stomp_policy(authentication="token"))
    open_, asks = policy.transports[2], replace(policy.transports[1], name="asks")
    policy = replace(policy, transports=(policy.transports[0], open_, asks), access=AccessSettings(USERS))
    async with running_broker(tmp_path, policy) as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(broker, "asks"))
        proven = StompClient(reader, writer)
        await proven.connect(passcode="t0ken")
        async with stomp_client(broker, login="feed") as said:
            for client in (proven, said):
                await client.send_with_receipt("SUBSCRIBE", id="s", destination="/topic/a", durable="true")
            owners = {one.client for one in broker.engine.durables.list_entries()}
            assert owners == {"user:feed", "anybody:feed"}
        writer.close()
