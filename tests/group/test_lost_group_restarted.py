"""`manage.py runbroker` of a group that lost log service and journals, while the database knows its
records.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from broker_core.client import AsyncClient
from tests.support.brokers import until
from tests.support.nats_servers import free_ports, running_nats_servers

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
SLOW_S = 120
"""The machine may be busy."""


def settings_of(home: Path, engines: tuple[str, ...], port: int) -> dict[str, str]:
    """Environment of a member `a` whose home is this one."""
    return {
        **os.environ,
        "SLUICE_HOME": str(home),
        "DATABASE_URL": f"sqlite:///{home}/db.sqlite3",
        "SLUICE_TCP_PORT": str(port),
        "SLUICE_WEBSOCKET_PORT": str(free_ports(1)[0]),
        "SLUICE_STOMP_PORT": "0",
        "SLUICE_STOMP_WS_PORT": "0",
        "REDIS_URL": "redis://127.0.0.1:1/0",
        "DJANGO_SETTINGS_MODULE": "console.project.settings",
        "SLUICE_GROUP_ENGINES": ",".join(engines),
        "SLUICE_GROUP_MEMBER": "a",
    }


def migrate(environment: dict[str, str]) -> None:
    subprocess.run(
        [sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, env=environment, check=True, timeout=300
    )


def run_broker(environment: dict[str, str], output: Path) -> subprocess.Popen[bytes]:
    """Start `runbroker` with its output in a file."""
    with output.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "manage.py", "runbroker"], cwd=ROOT, env=environment, stdout=file, stderr=file
        )


async def stop(process: subprocess.Popen[bytes]) -> None:
    """End a broker and wait for it."""
    process.send_signal(signal.SIGTERM)
    await asyncio.to_thread(process.wait, SLOW_S)


def newest_stored_record(home: Path) -> int:
    """Return the newest record of the member that the database knows."""
    with closing(sqlite3.connect(home / "db.sqlite3", timeout=30)) as database:
        return int(
            database.execute("SELECT coalesce(max(frontier), 0) FROM console_groupmember").fetchone()[0]
        )


async def publish(port: int, number: int) -> None:
    async with AsyncClient(f"tcp://127.0.0.1:{port}", "feed") as feed:
        await feed.publish_many("a", [b"{}"] * number)
        await feed.flush()


async def test_a_member_acknowledges_nothing_into_a_new_log_of_a_group_that_had_records() -> None:
    with tempfile.TemporaryDirectory(prefix="sluice-lost-") as place:
        home, port = Path(place) / "home", free_ports(1)[0]
        (Path(place) / "before").mkdir()
        (Path(place) / "after").mkdir()
        home.mkdir()
        async with running_nats_servers(Path(place) / "before", 1) as engines:
            environment = settings_of(home, engines.urls, port)
            await asyncio.to_thread(migrate, environment)
            broker = run_broker(environment, home / "first.log")
            try:
                await until((home / "run" / "sluice-1.sock").exists, seconds=SLOW_S)
                async with asyncio.timeout(SLOW_S):
                    await publish(port, 100)
                await until(lambda: newest_stored_record(home) >= 100, seconds=SLOW_S)
            finally:
                await stop(broker)
        shutil.rmtree(home / "journal")
        async with running_nats_servers(Path(place) / "after", 1) as engines:
            broker = run_broker(settings_of(home, engines.urls, port), home / "second.log")
            try:
                await until(
                    lambda: broker.poll() is not None or (home / "run" / "sluice-1.sock").exists(),
                    seconds=SLOW_S,
                )
                if broker.poll() is None:
                    async with asyncio.timeout(SLOW_S):
                        await publish(port, 5)
                    pytest.fail("5 records were acknowledged into a new log")
            finally:
                await stop(broker)
            said = (home / "second.log").read_text()
            assert broker.returncode == 1 and "100 records" in said and "replication init" in said, said
            assert "Traceback" not in said, said
