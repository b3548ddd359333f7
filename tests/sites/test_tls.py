"""Links over TLS: the destination's certificate is verified, and a client certificate authenticates the
link.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker_core.client import AsyncClient
from broker_core.config import AccessSettings, PolicyDocument, TransportSettings, UserSettings
from broker_core.config.destinations import DestinationSettings
from tests.support.brokers import address_of, running_broker, tcp_policy, until
from tests.support.certificates import Authority
from tests.support.sites import BookmarkedReader, Site, free_port, link_status, wait_for_link_status

LINK = "link@london"


@asynccontextmanager
async def newyork(home: Path, door: Authority, clients: Authority) -> AsyncIterator[tuple[Site, int]]:
    """Return the policy of New York, with a listener for links that requires a certificate of `clients`."""
    port, for_links = free_port(), free_port()
    policy = tcp_policy()
    links = TransportSettings(
        "links", "tcp", for_links, authentication="certificate", tls=door.transport(clients.certificate)
    )
    user = UserSettings("link", certificate=LINK, clients=("site.test-1",))
    policy = replace(
        policy,
        instance=replace(policy.instance, name="newyork"),
        transports=(TransportSettings("tcp", "tcp", port), links),
        access=AccessSettings((user,)),
    )
    there = Site(home / "newyork", policy)
    await there.start()
    try:
        yield there, for_links
    finally:
        await there.kill()


def linked(port: int, **files: Any) -> PolicyDocument:
    address = f"tcps://127.0.0.1:{port}"
    destination = DestinationSettings("ny", (address,), **{key: str(path) for key, path in files.items()})
    return replace(tcp_policy(), destinations=(destination,))


def client_certificate_settings(authority: Authority, name: str = LINK) -> dict[str, Path]:
    certificate, key = authority.sign(name, name)
    return {"certificate": certificate, "key": key}


async def test_a_link_proves_itself_by_its_certificate_over_tls(tmp_path: Path) -> None:
    door, clients = Authority(tmp_path, "door"), Authority(tmp_path, "clients")
    async with newyork(tmp_path, door, clients) as (there, port):
        policy = linked(port, ca=door.certificate, **client_certificate_settings(clients))
        async with running_broker(tmp_path / "here", policy) as broker:
            await wait_for_link_status(broker, state="carrying", instance="newyork")
            async with AsyncClient(address_of(broker), "feed") as feed:
                for number in range(1, 21):
                    await feed.publish("prices.a", {"n": number})
                await feed.flush()
            reader = BookmarkedReader(there.address)
            await until(lambda: len(reader.received) == 20)
            await reader.close()


@pytest.mark.parametrize(
    ("wrong", "code", "why"),
    [
        (
            "another authority signed the destination's",
            "broker_unproven",
            "unable to get local issuer certificate",
        ),
        # TLS 1.3: who shows none that is accepted hears of it by the end of the connection.
        ("another authority signed the link's", "broker_away", "The broker can't be reached"),
        ("the link shows none", "broker_away", "The broker can't be reached"),
        ("it is somebody else's", "bad_logon", "requires a certificate"),
        ("a file isn't there", "bad_certificate", "nothing.pem"),
    ],
)
async def test_a_wrong_certificate_is_named(tmp_path: Path, wrong: str, code: str, why: str) -> None:
    door, clients = Authority(tmp_path, "door"), Authority(tmp_path, "clients")
    files: dict[str, Path] = {"ca": door.certificate, **client_certificate_settings(clients)}
    match wrong:
        case "another authority signed the destination's":
            files["ca"] = clients.certificate
        case "another authority signed the link's":
            files |= client_certificate_settings(Authority(tmp_path, "stranger"))
        case "the link shows none":
            files = {"ca": door.certificate}
        case "it is somebody else's":
            files |= client_certificate_settings(clients, "eve@london")
        case "a file isn't there":
            files["ca"] = tmp_path / "nothing.pem"
    async with newyork(tmp_path, door, clients) as (_, port):
        async with running_broker(tmp_path / "here", linked(port, **files)) as broker:
            await wait_for_link_status(broker, state="away", code=code)
            assert why in (await link_status(broker))["why"]
