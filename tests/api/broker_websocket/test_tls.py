"""TLS and logons on the broker's real event loop: wss through Twisted beside tcps through uvloop."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from broker_core.access import hash_password
from broker_core.client import EPOCH, AsyncClient, ReconnectPolicy, tls_context
from broker_core.config import TransportSettings
from broker_core.errors import ClientError, OperatorError
from tests.broker_core.access.making import entitlement, policy, user
from tests.support.certificates import Authority
from tests.support.transports_process import broker_process

ONCE = ReconnectPolicy(enabled=False)


class Door(NamedTuple):
    ports: dict[str, int]
    authority: Authority
    other: Authority

    def address(self, name: str) -> str:
        scheme = {"ws": "wss", "tcp": "tcps", "plain": "ws", "certified": "wss"}[name]
        return f"{scheme}://127.0.0.1:{self.ports[name]}/"


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    directory = tmp_path_factory.mktemp("certificates")
    authority, other = Authority(directory), Authority(directory, "other")
    tls = authority.transport()
    strict = replace(tls, client_ca=str(authority.certificate))
    proofs: dict[str, Any] = {"authentication": "password", "restricted": True}
    made = replace(
        policy(
            user("maria", password=hash_password("right")),
            user("gate", certificate="gate@example.org"),
            entitlement("*", publish="a b", subscribe="a"),
        ),
        transports=(
            TransportSettings("ws", "websocket", 0, tls=tls, **proofs),
            TransportSettings("tcp", "tcp", 0, tls=tls, **proofs),
            TransportSettings("plain", "websocket", 0, **proofs),
            TransportSettings("certified", "websocket", 0, tls=strict, authentication="certificate"),
        ),
    )
    with broker_process(made) as ports:
        yield Door(ports, authority, other)


async def refused(address: str, **proof: Any) -> str:
    with pytest.raises((ClientError, OperatorError)) as caught:
        await AsyncClient(address, "c", reconnect=ONCE, **proof).start()
    return caught.value.code


@pytest.mark.parametrize("name", ["ws", "tcp", "plain"])
async def test_a_password_and_entitlements_hold_on_every_transport(door: Door, name: str) -> None:
    proof: dict[str, Any] = {"user": "maria", "tls": door.authority.certificate}
    address = door.address(name)
    async with AsyncClient(address, f"c-{name}", password="right", **proof) as client:
        subscription = await client.subscribe(">", bookmark=EPOCH)
        await client.publish_many("a", [name] * 3)
        await asyncio.sleep(0)
        await client.publish("c", 1)
        with pytest.raises(ClientError) as caught:
            await client.flush()
        assert caught.value.code == "not_entitled"
        async with asyncio.timeout(10):
            assert await anext(aiter(subscription))
        with pytest.raises(ClientError) as caught:
            await client.subscribe("b")
        assert caught.value.code == "not_entitled"
    assert await refused(address, password="wrong", **proof) == "bad_logon"


@pytest.mark.parametrize("name", ["ws", "tcp"])
async def test_more_than_buffers_hold_reaches_a_slow_reader_in_order(door: Door, name: str) -> None:
    proof: dict[str, Any] = {"user": "maria", "password": "right", "tls": door.authority.certificate}
    async with (
        AsyncClient(door.address(name), f"fast-{name}", **proof) as client,
        AsyncClient(door.address(name), f"slow-{name}", max_unread_bytes=10_000, **proof) as slow,
    ):
        subscription = await slow.subscribe("a")
        bodies = [b"%06d" % number + b"x" * 50_000 for number in range(200)]
        await client.publish_many("a", bodies)
        await client.flush()
        await asyncio.sleep(0.3)  # the client does not read, so the remaining data waits at the broker
        received: list[bytes] = []
        async with asyncio.timeout(20):
            async for batch in subscription.batches():
                received += batch.bodies()
                if len(received) == len(bodies):
                    break
        assert received == bodies


@pytest.mark.parametrize("name", ["ws", "tcp"])
async def test_who_does_not_trust_the_broker_or_speaks_plain_is_turned_away(door: Door, name: str) -> None:
    proof = {"user": "maria", "password": "right"}
    assert await refused(door.address(name), tls=door.other.certificate, **proof) == "broker_unproven"
    plain = door.address(name).replace("wss:", "ws:").replace("tcps:", "tcp:")
    assert await refused(plain, **proof) == "broker_away"


def suites_of(door: Door, name: str) -> set[str]:
    """Return the TLS 1.2 cipher suites that a transport accepts, each tested alone."""
    agreed = set()
    everything = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    everything.set_ciphers("ALL:@SECLEVEL=0")
    for suite in everything.get_ciphers():
        context = ssl.create_default_context(cafile=door.authority.certificate)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        if suite["protocol"] == "TLSv1.3":
            continue
        context.set_ciphers(f"{suite['name']}:@SECLEVEL=0")
        with (
            suppress(OSError),
            socket.create_connection(("127.0.0.1", door.ports[name])) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as made,
        ):
            cipher = made.cipher()
            assert cipher is not None
            agreed.add(cipher[0])
    return agreed


def test_every_transport_agrees_to_the_same_suites(door: Door) -> None:
    offered = suites_of(door, "tcp")
    assert offered and suites_of(door, "ws") == offered


async def test_a_certificate_says_who_it_is_over_a_websocket(door: Door) -> None:
    address, ca = door.address("certified"), door.authority.certificate
    gate = tls_context(ca, *door.authority.sign("somebody", "gate@example.org"))
    async with AsyncClient(address, "gate", tls=gate) as client:
        await client.publish("anything", 1)
        await client.flush()
    assert await refused(address, tls=tls_context(ca, *door.authority.sign("stranger"))) == "bad_logon"
    for wrong in (
        ca,
        tls_context(ca, *door.other.sign("foreign", "gate@example.org")),
        tls_context(ca, *door.authority.sign("late", "gate@example.org", days=(-9, -2))),
    ):
        assert await refused(address, tls=wrong) == "broker_away"
