"""The real `manage.py up --group 3`: three NATS servers, three brokers, one console. Clients continue
after a member is killed.
"""

from __future__ import annotations

import os
import random
import re
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.start.test_up import PORTS, STOP_S, UpProcess, processes_of

pytestmark = pytest.mark.slow


def ports_for_three() -> dict[str, int]:
    """Return ports whose counterparts for the other members, a hundred apart, and for all NATS servers are
    free.

    They lie below the kernel's ephemeral ports.
    """
    while True:
        first = random.randrange(20_000, 29_000)
        ports = {name: first + number for number, name in enumerate((*PORTS, "SLUICE_ENGINE_PORT"))}
        own = [
            port + step
            for name, port in ports.items()
            if name != "SLUICE_ENGINE_PORT"
            for step in (0, 100, 200)
        ]
        engine = ports["SLUICE_ENGINE_PORT"]
        own += [engine + step + more for step in (0, 2_000) for more in range(3)]
        with ExitStack() as held:
            try:
                for port in own:
                    held.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
        return ports


def test_a_group_starts_and_goes_on_when_a_member_is_killed(tmp_path: Path) -> None:
    ports = ports_for_three()
    up = UpProcess(tmp_path / "home", ports, "--group", "3")
    try:
        up.wait_for(r"^Sluice is up, as a group of 3\.$")
        up.wait_for(r"Ctrl-C stops everything")
        tcp = ports["SLUICE_TCP_PORT"]
        addresses = [f"tcp://127.0.0.1:{tcp + step}" for step in (0, 100, 200)]
        assert all(address in up.output() for address in addresses)

        client = ("-m", "broker_core.client")
        published = up.command(*client, "publish", "greetings.first", "1", "--address", addresses[1])
        assert published.returncode == 0, published.stderr
        up.wait_for(r"broker-b is ready")
        (pid,) = re.findall(r"broker-b is ready \(.* s, pid (\d+)\)", up.output())
        os.kill(int(pid), signal.SIGKILL)
        # The client tries b first. b may be down or restarted; the other members have the records that b
        # acknowledged.
        published = up.command(
            *client, "publish", "greetings.second", "2", "--address", ",".join((addresses[1], addresses[2]))
        )
        assert published.returncode == 0, published.stderr
        replay = ("subscribe", "greetings.>", "--bookmark", "0", "--replay-only", "--address")
        assert up.command(*client, *replay, addresses[0]).stdout == "1\n2\n"

        up.wait_for(r"broker-b is ready", after=up.wait_for(r"broker-b died"))
        assert up.command(*client, *replay, addresses[1]).stdout == "1\n2\n"
        home = str(tmp_path / "home" / "b")
        said = up.command("manage.py", "replication", "status", SLUICE_HOME=home)
        assert "sluice-1: b is taking part" in said.stdout, said.stderr

        assert up.interrupt() == 0, up.output()
        assert processes_of(up.home) == {}
    finally:
        if up.process.poll() is None:
            os.killpg(up.process.pid, signal.SIGTERM)
            up.process.wait(STOP_S)
