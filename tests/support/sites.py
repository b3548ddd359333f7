"""Sites: brokers in their own processes, the links between them, and the status of a link."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from broker_core.access.credential_hashes import hash_token
from broker_core.broker import Broker
from broker_core.client import EPOCH, AsyncClient
from broker_core.config import (
    AccessSettings,
    EntitlementSettings,
    PolicyDocument,
    TransportSettings,
    UserSettings,
)
from broker_core.config.destinations import DestinationSettings
from tests.support.broker_process import start_broker
from tests.support.brokers import ask, tcp_policy

TOKEN = "the-links-own-secret"
"""Token with which `london` logs on at `newyork`."""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def site_policy(
    name: str, port: int, *destinations: DestinationSettings, link_port: int = 0
) -> PolicyDocument:
    """Return the policy of a site.

    Any client publishes and subscribes at `port`. Links connect to `link_port` with a token.
    """
    policy = tcp_policy()
    transports: tuple[TransportSettings, ...] = (TransportSettings("tcp", "tcp", port),)
    access = AccessSettings()
    if link_port:
        links = TransportSettings("links", "tcp", link_port, authentication="token", restricted=True)
        transports += (links,)
        access = AccessSettings(
            (UserSettings("link", token=hash_token(TOKEN), clients=("site.*",)),),
            (EntitlementSettings(("link",), publish=("prices.>", "news", "t")),),
        )
    return replace(
        policy,
        instance=replace(policy.instance, name=name),
        transports=transports,
        access=access,
        destinations=destinations,
    )


def destination_settings(name: str, port: int, **options: Any) -> DestinationSettings:
    return DestinationSettings(name, (f"tcp://127.0.0.1:{port}",), **options)


def write_link_secrets(directory: Path, *names: str) -> Path:
    path = directory / "link-secrets"
    path.write_text("".join(f"{name} {TOKEN}\n" for name in names))
    path.chmod(0o600)
    return path


class Site:
    """A broker process that can be killed and restarted at the same ports."""

    def __init__(self, home: Path, policy: PolicyDocument, link_secrets: Path | None = None) -> None:
        self._home, self._policy, self._secrets = home, policy, link_secrets
        self.address = f"tcp://127.0.0.1:{policy.transports[0].port}"
        self._process: BaseProcess

    async def start(self) -> None:
        self._process, _ = await asyncio.to_thread(
            start_broker, self._home, policy=self._policy, link_secrets=self._secrets
        )

    async def kill(self) -> None:
        self._process.kill()
        await asyncio.to_thread(self._process.join)

    async def kill_and_restart(self) -> None:
        await self.kill()
        await self.start()


class BookmarkedReader:
    """A subscriber that records (bookmark, number) of every message."""

    def __init__(self, address: str, topic: str = "prices.>") -> None:
        self.received: list[tuple[str | None, int]] = []
        self._work = asyncio.create_task(self._read(address, topic))

    async def _read(self, address: str, topic: str) -> None:
        async with AsyncClient(address, "reader") as client:
            async for message in await client.subscribe(topic, bookmark=EPOCH):
                self.received.append((message.bookmark, message.data["n"]))

    async def close(self) -> None:
        self._work.cancel()
        with suppress(asyncio.CancelledError):
            await self._work


async def link_status(broker: Broker) -> dict[str, Any]:
    """Return the broker's only link, as the control plane lists it."""
    found: dict[str, Any] = (await ask(broker, "links"))["links"][0]
    return found


async def wait_for_link_status(broker: Broker, **wanted: Any) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while not wanted.items() <= (found := await link_status(broker)).items():
            await asyncio.sleep(0.05)
    return found
