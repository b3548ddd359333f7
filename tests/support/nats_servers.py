"""Real NATS servers on loopback, one or a cluster of three, which tests kill, stop and restart."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import uuid4

from broker_core.group.engine_log import LogServiceUnavailableError, StreamInfo
from broker_core.group.jetstream import JetStreamLog
from broker_core.group.settings import GroupSettings, NatsServerAddress, nats_config

SERVER = Path(sys.executable).parent / "nats-server"


def free_ports(number: int) -> list[int]:
    """Return ports on which no process listens."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


class NatsServers:
    """The NATS servers of a group, numbered from 0."""

    def __init__(self, home: Path, number: int) -> None:
        ports = free_ports(2 * number)
        self.home = home
        self.addresses = [
            NatsServerAddress(f"engine-{one + 1}", "127.0.0.1", ports[2 * one], ports[2 * one + 1])
            for one in range(number)
        ]
        self.edit_config: Callable[[str], str] = lambda text: text
        """Edits a server's configuration at its next start."""
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(one.url for one in self.addresses)

    def start(self, *numbers: int) -> None:
        """Start the given servers, or all."""
        for number in numbers or range(len(self.addresses)):
            own = self.addresses[number]
            others = self.other_servers(number)
            file = self.home / f"{own.name}.conf"
            file.write_text(self.edit_config(nats_config(own, others, self.home / own.name)))
            with (self.home / f"{own.name}.log").open("ab") as log:
                self._processes[number] = subprocess.Popen(
                    [str(SERVER), "-c", str(file)], stdout=log, stderr=log
                )

    def other_servers(self, number: int) -> list[NatsServerAddress]:
        """Return the addresses at which a server reaches the others."""
        own = self.addresses[number]
        return [one for one in self.addresses if one is not own]

    def kill(self, *numbers: int) -> None:
        """Kill the given servers, or all, with SIGKILL."""
        for number in numbers or tuple(self._processes):
            process = self._processes.pop(number, None)
            if process is not None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()

    def freeze(self, number: int) -> None:
        """Stop a server with SIGSTOP: connections stay open, nothing is sent."""
        self._processes[number].send_signal(signal.SIGSTOP)

    def thaw(self, number: int) -> None:
        self._processes[number].send_signal(signal.SIGCONT)

    def number_of(self, leader: str) -> int:
        """Return the number of the server with this name."""
        return next(number for number, one in enumerate(self.addresses) if one.name == leader)

    async def wait_ready(self, instance: str = "group") -> StreamInfo:
        """Create a stream of this name and wait until the servers have a leader for it."""
        engine = JetStreamLog(GroupSettings(instance, "ready", self.urls))
        try:
            async with asyncio.timeout(60):
                while True:
                    with suppress(LogServiceUnavailableError):
                        return await engine.attach(uuid4())
                    await asyncio.sleep(0.05)
        finally:
            await engine.close()


@asynccontextmanager
async def running_nats_servers(home: Path, number: int = 3) -> AsyncIterator[NatsServers]:
    """Run NATS servers until the block ends."""
    engines = NatsServers(home, number)
    engines.start()
    try:
        yield engines
    finally:
        engines.kill()
