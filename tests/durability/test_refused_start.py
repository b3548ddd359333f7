"""A broker whose journal was deleted refuses to start with an empty one until an operator accepts it.

The control plane knows that there was a journal.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from broker_core.client import AsyncClient
from broker_core.control import exit_report
from tests.api.broker_websocket.test_transport import free_port
from tests.support.broker_process import full_pipe
from tests.support.brokers import until

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


class Installation:
    """A home with its database and its `manage.py`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.control = home / "run" / "sluice-1.sock"
        self.port = free_port()
        self._environment = {key: value for key, value in os.environ.items() if key != "DATABASE_URL"} | {
            "SLUICE_HOME": str(home),
            "SLUICE_TCP_PORT": str(self.port),
            "SLUICE_WEBSOCKET_PORT": str(free_port()),
            "SLUICE_STOMP_PORT": "0",
            "SLUICE_STOMP_WS_PORT": "0",
            "DJANGO_SETTINGS_MODULE": "console.project.settings",
        }

    def manage(self, *words: str, output: int = subprocess.PIPE) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "manage.py", *words],
            cwd=ROOT,
            env=self._environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def frontier(self) -> int:
        """Return the durable frontier that the control plane has stored."""
        with closing(sqlite3.connect(self.home / "sluice.sqlite3")) as reading:
            found = reading.execute(
                "SELECT frontier FROM console_instance WHERE name = 'sluice-1'"
            ).fetchone()
        return int(found[0]) if found is not None else 0


@pytest.fixture
def installation() -> Iterator[Installation]:
    with tempfile.TemporaryDirectory(prefix="sluice-refused-") as home:
        made = Installation(Path(home))
        assert made.manage("migrate", "-v0").wait(60) == 0
        yield made


async def test_an_empty_directory_in_the_place_of_the_log_stops_the_start(installation: Installation) -> None:
    nobody_reads, log = full_pipe()
    running = installation.manage("runbroker", output=log)
    try:
        await until(installation.control.exists)
        async with AsyncClient(f"tcp://127.0.0.1:{installation.port}", "p") as client:
            await client.publish_many("a", [b"1"] * 100)
            await client.flush()
            await until(lambda: installation.frontier() >= 100)
    finally:
        running.terminate()
        assert running.wait(30) == 0
        os.close(nobody_reads)
        os.close(log)
    (installation.home / "journal").rename(installation.home / "unmounted")

    refused = await asyncio.to_thread(installation.manage("runbroker").communicate, timeout=60)
    assert "were acknowledged" in refused[0] and "journal accept --instance sluice-1" in refused[0]
    words = exit_report.read_exit_report(installation.control)
    assert words is not None and words.code == "journal_behind"

    accepted = await asyncio.to_thread(installation.manage("journal", "accept").communicate, timeout=60)
    assert "0 records retained" in accepted[0], accepted[0]
    running = installation.manage("runbroker")
    try:
        await until(installation.control.exists)
        async with AsyncClient(f"tcp://127.0.0.1:{installation.port}", "q") as client:
            subscription = await client.subscribe("a", bookmark="0")
            await client.publish_many("a", [b"2"])
            first = await anext(aiter(subscription))
            assert int(first.bookmark.split("|")[1]) > 100, "no number is given twice"
        await until(lambda: exit_report.read_exit_report(installation.control) is None)
    finally:
        running.terminate()
        assert running.wait(30) == 0
