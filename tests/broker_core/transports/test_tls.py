"""TLS on the TCP transport: trust in both directions, client certificates, and plain peers refused."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from broker_core.broker import Broker
from broker_core.client import EPOCH, AsyncClient, ReconnectPolicy, tls_context
from broker_core.config import TlsSettings
from broker_core.connections import admission
from broker_core.errors import ClientError, OperatorError
from tests.broker_core.access.making import policy, user
from tests.support.brokers import ask, running_broker, until
from tests.support.certificates import Authority

ROOT = Path(__file__).parents[3]
ONCE = ReconnectPolicy(enabled=False)


@asynccontextmanager
async def tls_broker(
    home: Path, tls: TlsSettings, kind: str = "tcp", **transport: Any
) -> AsyncIterator[tuple[Broker, str]]:
    """Run a broker whose only transport has TLS; yield it and its address."""
    made = policy(
        user("gate", certificate="gate@example.org"),
        user("maria"),
        **{"authentication": "none", "restricted": False, "tls": tls, **transport},
    )
    made = replace(made, transports=tuple(replace(one, kind=kind) for one in made.transports))
    async with running_broker(home, made) as broker:
        yield broker, f"tcps://127.0.0.1:{broker.statistics.transports[0]['port']}"


async def refusal_code(address: str, tls: Any) -> str:
    """Return the error code with which a connection or a logon is refused."""
    with pytest.raises((ClientError, OperatorError)) as caught:
        await AsyncClient(address, "c", tls=tls, reconnect=ONCE).start()
    return caught.value.code


async def test_messages_go_both_ways_in_order_and_more_than_buffers_hold(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with tls_broker(tmp_path / "home", authority.transport()) as (_, address):
        async with (
            AsyncClient(address, "c", tls=authority.certificate) as client,
            AsyncClient(address, "slow", tls=str(authority.certificate), max_unread_bytes=10_000) as slow,
        ):
            subscription = await slow.subscribe("a", bookmark=EPOCH)
            bodies = [b"%06d" % number + b"x" * 50_000 for number in range(200)]
            await client.publish_many("a", bodies)
            await client.flush()
            received: list[bytes] = []
            async with asyncio.timeout(20):
                async for batch in subscription.batches():
                    received += batch.bodies()
                    if len(received) == len(bodies):
                        break
            assert received == bodies


async def test_a_client_that_does_not_trust_the_broker_does_not_log_on(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    async with tls_broker(tmp_path / "home", authority.transport()) as (broker, address):
        assert await refusal_code(address, other.certificate) == "broker_unproven"
        assert await refusal_code(address, None) == "broker_unproven"
        assert not broker.engine.roster.clients


async def test_a_plain_peer_on_a_tls_transport_and_the_other_way_round_are_turned_away(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    async with tls_broker(tmp_path / "home", authority.transport()) as (broker, address):
        assert await refusal_code(address.replace("tcps:", "tcp:"), None) == "broker_away"
        async with AsyncClient(address, "c", tls=authority.certificate):
            assert list(broker.engine.roster.clients) == ["c"]
    async with running_broker(tmp_path / "plain") as plain:
        address = f"tcps://127.0.0.1:{plain.statistics.transports[0]['port']}"
        assert await refusal_code(address, authority.certificate) == "broker_away"


async def test_a_certificate_says_who_it_is(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    tls = authority.transport(client_ca=authority.certificate)
    async with tls_broker(tmp_path / "home", tls, authentication="certificate") as (broker, address):
        gate = tls_context(authority.certificate, *authority.sign("somebody", "gate@example.org"))
        async with AsyncClient(address, "c", tls=gate) as client:
            assert broker.engine.roster.clients["c"].user == "gate"
            await client.publish("a", 1)
            await client.flush()
        unknown = tls_context(authority.certificate, *authority.sign("stranger"))
        assert await refusal_code(address, unknown) == "bad_logon"
        expired = tls_context(
            authority.certificate, *authority.sign("late", "gate@example.org", days=(-9, -2))
        )
        foreign = tls_context(authority.certificate, *other.sign("foreign", "gate@example.org"))
        for wrong in (expired, foreign, authority.certificate):
            assert await refusal_code(address, wrong) == "broker_away"


async def test_an_authority_for_clients_is_a_condition_beside_another_proof(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = authority.transport(client_ca=authority.certificate)
    async with tls_broker(tmp_path / "home", tls, authentication="token") as (broker, address):
        shown = tls_context(authority.certificate, *authority.sign("anybody"))
        async with AsyncClient(address, "c", tls=shown, token="maria"):
            assert broker.engine.roster.clients["c"].user == "maria"
        assert await refusal_code(address, authority.certificate) == "broker_away"


@pytest.mark.parametrize("wrong", ["missing", "text", "another key", "passphrase"])
async def test_files_that_cannot_be_used_are_named_and_nothing_changes(tmp_path: Path, wrong: str) -> None:
    authority = Authority(tmp_path)
    tls = authority.transport()
    (tmp_path / "text.pem").write_text("not a key")
    keys = {
        "missing": tmp_path / "gone.pem",
        "text": tmp_path / "text.pem",
        "another key": authority.sign("another")[1],
        "passphrase": authority.locked_key(),
    }
    async with tls_broker(tmp_path / "home", tls) as (broker, address):
        async with AsyncClient(address, "c", tls=authority.certificate) as client:
            bad = replace(
                broker.engine.policy,
                revision=2,
                transports=tuple(
                    replace(t, tls=replace(tls, key=str(keys[wrong])))
                    for t in broker.engine.policy.transports
                ),
            )
            with pytest.raises(AssertionError, match="bad_certificate"):
                await ask(broker, "apply", policy=bad.to_dict())
            assert client.connected and client.connections == 1


async def test_turning_tls_on_takes_the_transport_down_and_up_again(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    plain = policy(user("maria"), authentication="none", restricted=False)
    async with running_broker(tmp_path / "home", plain) as broker:
        port = broker.statistics.transports[0]["port"]
        await ask(
            broker,
            "apply",
            policy=replace(
                plain, revision=2, transports=(replace(plain.transports[0], tls=authority.transport()),)
            ).to_dict(),
        )
        port = broker.statistics.transports[0]["port"]
        async with AsyncClient(f"tcps://127.0.0.1:{port}", "c", tls=authority.certificate) as client:
            assert client.connected


async def test_the_command_line_uses_tls_and_a_token(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with tls_broker(tmp_path / "home", authority.transport(), authentication="token") as (_, address):

        async def command(*words: str, token: str = "maria") -> tuple[int, bytes, bytes]:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "broker_core.client",
                *words,
                "--address",
                address,
                "--ca",
                str(authority.certificate),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=ROOT,
                env={**os.environ, "SLUICE_TOKEN": token},
            )
            out, error = await process.communicate()
            return process.returncode or 0, out, error

        assert await command("publish", "a", '{"n": 1}') == (0, b"", b"1 message acknowledged\n")
        assert await command("subscribe", "a", "--bookmark", "0", "--replay-only") == (0, b'{"n": 1}\n', b"")
        status, _, said = await command("publish", "a", "x", token="wrong")
        assert status == 1 and said.startswith(b"bad_logon: This transport requires a token")


async def test_who_has_not_shaken_hands_is_a_guest_and_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "MAX_PENDING", 8)
    authority = Authority(tmp_path)
    async with tls_broker(tmp_path / "home", authority.transport()) as (broker, address):
        port, guests = int(address.rpartition(":")[2]), broker.engine.pending_connections
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
        for _, writer in silent[::2]:
            writer.write(BEGUN)
        ended = [asyncio.create_task(reader.read()) for reader, _ in silent]
        async with asyncio.timeout(20):
            await asyncio.wait(ended[:32])
        await until(lambda: guests.pending == 8)
        async with AsyncClient(address, "c", tls=authority.certificate):
            assert list(broker.engine.roster.clients) == ["c"]
        for _, writer in silent:
            writer.close()
        await until(lambda: guests.pending == 0)
        await asyncio.gather(*ended, return_exceptions=True)


BEGUN = b"\x16\x03\x01\x02"
"""The first bytes of a TLS handshake."""


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("kind", ["tcp", "stomp"])
@pytest.mark.parametrize("said", [b"", BEGUN, b"GET / HTTP/1.1\r\n"])
def test_of_2500_silent_peers_no_descriptor_stays(tmp_path: Path, kind: str, said: bytes) -> None:
    """On the loop that the product runs on."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_silent_peers(tmp_path, kind, said))


async def _silent_peers(home: Path, kind: str, said: bytes) -> None:
    authority = Authority(home)
    silent: list[socket.socket] = []
    async with tls_broker(home / "home", authority.transport(), kind=kind) as (broker, address):
        port, guests = int(address.rpartition(":")[2]), broker.engine.pending_connections

        async def good() -> None:
            if kind == "tcp":
                async with AsyncClient(address, "good", tls=authority.certificate) as client:
                    await client.publish_many("a", [b"1"])
                    await client.flush()

        await good()  # after which the log has its files
        before = _descriptors()
        for _ in range(2_500):
            silent.append(socket.create_connection(("127.0.0.1", port), 20))
            silent[-1].send(said)
            await asyncio.sleep(0)  # the broker's turn
        await until(lambda: guests.pending == admission.MAX_PENDING or said[:3] == b"GET")
        await good()
        for one in silent:
            one.close()
        await until(lambda: guests.pending == 0)
        await until(lambda: _descriptors() <= before)
