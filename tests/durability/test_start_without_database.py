"""A broker starts and continues without its database: stopped, locked, read-only, full, or with another
password.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from broker_core.client import AsyncClient
from broker_core.control import exit_report
from broker_core.control.policy_file import PolicyFile
from broker_core.documents.instance import InstanceStatus
from broker_core.documents.requests import GetStatus
from broker_core.errors import SluiceError
from console.broker_link import BrokerLink
from tests.api.broker_websocket.test_transport import free_port
from tests.support.brokers import until
from tests.support.nats_servers import running_nats_servers
from tests.support.postgres import Cluster, running_cluster

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
SLOW_S = 120
"""The machine may be busy."""


class Installation:
    """A home, its database, and `manage.py` for both."""

    def __init__(
        self,
        home: Path,
        url: str,
        engines: Sequence[str] = (),
        member: str = "",
        ports: Installation | None = None,
    ) -> None:
        """Make the home; `ports` are the other group member's, whose policy this one has."""
        home.mkdir(exist_ok=True)
        self.home, self.url = home, url
        self._group = (
            {"SLUICE_GROUP_ENGINES": ",".join(engines), "SLUICE_GROUP_MEMBER": member} if engines else {}
        )
        self.control = home / "run" / "sluice-1.sock"
        self.file = PolicyFile.under(home, "sluice-1")
        self.policy_ports = (free_port(), free_port()) if ports is None else ports.policy_ports
        self._apart = 0 if ports is None else 1_000
        self.port = self.policy_ports[0] + self._apart
        self.started = 0

    def environment(self, url: str | None = None) -> dict[str, str]:
        return {
            **os.environ,
            "SLUICE_HOME": str(self.home),
            "DATABASE_URL": url or self.url,
            "SLUICE_TCP_PORT": str(self.policy_ports[0]),
            "SLUICE_WEBSOCKET_PORT": str(self.policy_ports[1]),
            "SLUICE_PORTS_APART": str(self._apart),
            "SLUICE_STOMP_PORT": "0",
            "SLUICE_STOMP_WS_PORT": "0",
            "REDIS_URL": "redis://127.0.0.1:1/0",
            "DJANGO_SETTINGS_MODULE": "console.project.settings",
            **self._group,
        }

    def manage(self, *words: str, **settings: str) -> str:
        done = subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=ROOT,
            env=self.environment() | settings,
            capture_output=True,
            text=True,
            timeout=SLOW_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def broker(self, url: str | None = None) -> Iterator[Callable[[], str]]:
        """Run `runbroker`; yield a function that returns its output so far."""
        self.started += 1
        path = self.home / f"broker-{self.started}.log"
        with path.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "manage.py", "runbroker"],
                cwd=ROOT,
                env=self.environment(url),
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                yield path.read_text
                assert process.poll() is None, path.read_text()
            finally:
                process.terminate()
                begun = time.monotonic()
                assert process.wait(SLOW_S) == 0, path.read_text()
                assert time.monotonic() - begun < 60, "it waited for the database"

    def status(self) -> InstanceStatus:
        return BrokerLink(self.control, 30.0).call(GetStatus())

    def edit_policy(self, directory: Path) -> None:
        """Publish a revision from a console that can't reach the broker."""
        path = directory / "policy.yaml"
        path.write_text(
            self.manage("policy", "export", "--with-secrets").replace(
                "journal_size: 134217728", "journal_size: 1048576"
            )
        )
        self.manage("policy", "import", str(path), "--reason", "smaller", SLUICE_HOME=str(directory))

    async def accepts_records(self, name: str) -> None:
        async with asyncio.timeout(SLOW_S):
            async with AsyncClient(f"tcp://127.0.0.1:{self.port}", name) as client:
                await client.publish_many("a", [b"1"] * 10)
                await client.flush()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with running_cluster() as made:
        yield made


@pytest.fixture
def installation(cluster: Cluster) -> Iterator[Installation]:
    with tempfile.TemporaryDirectory(prefix="sluice-start-") as home:
        made = Installation(Path(home), cluster.url)
        made.manage("migrate", "-v0")
        yield made


async def ready(installation: Installation) -> None:
    await until(installation.control.exists, seconds=SLOW_S)


async def until_status(
    installation: Installation, fits: Callable[[InstanceStatus], Any], seconds: float = SLOW_S
) -> InstanceStatus:
    deadline = time.monotonic() + seconds
    while True:
        try:
            status = await asyncio.to_thread(installation.status)
        except SluiceError:
            assert time.monotonic() < deadline
        else:
            if fits(status):
                return status
            assert time.monotonic() < deadline, status.database
        await asyncio.sleep(0.2)


async def started_once(installation: Installation) -> None:
    """The broker has run with its database, and was stopped."""
    with installation.broker():
        await ready(installation)
        await installation.accepts_records("first")
        status = await until_status(
            installation, lambda one: one.database is not None and one.database.policy_stored_at
        )
        assert status.database is not None and status.database.code == ""
    assert stat.S_IMODE(installation.file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(installation.file.path.parent.stat().st_mode) == 0o700


async def runs_from_disk(installation: Installation, url: str | None = None) -> str:
    """Start the broker, which accepts records under the stored policy and reports that; return its output."""
    with installation.broker(url) as said:
        await ready(installation)
        await installation.accepts_records(f"client-{installation.started}")
        status = await until_status(
            installation, lambda one: one.database is not None and one.database.code == "policy_from_disk"
        )
        assert status.database is not None
        assert status.database.policy == "disk" and status.database.away_since and status.database.fix
        assert "policy_from_disk" in said() and "Traceback" not in said(), said()
        return said()


async def test_a_stopped_database_keeps_no_broker_from_starting_twice_and_its_word_counts_when_it_is_back(
    cluster: Cluster, installation: Installation, tmp_path: Path
) -> None:
    await started_once(installation)
    cluster.stop()
    await runs_from_disk(installation)
    await runs_from_disk(installation)
    with installation.broker() as said:
        await ready(installation)
        await installation.accepts_records("third")
        before = await until_status(installation, lambda one: one.database is not None and one.database.code)
        cluster.start()
        # The edit is made while the broker runs on the stored policy.
        await asyncio.to_thread(installation.edit_policy, tmp_path)
        after = await until_status(installation, lambda one: one.revision > before.revision)
        after = await until_status(
            installation, lambda one: one.database is not None and not one.database.code
        )
        assert after.database is not None and after.database.policy == "database"
        assert after.durable_sequence >= 40
        assert "policy_from_database" in said()
    assert installation.file.load().revision == after.revision  # type: ignore[union-attr]


async def test_a_rotated_password_keeps_no_broker_from_starting(
    cluster: Cluster, installation: Installation
) -> None:
    await started_once(installation)
    right = cluster.ask_password("new-one")
    said = await runs_from_disk(installation, right.replace("new-one", "old-one"))
    assert "password authentication failed" in said
    with installation.broker(right):
        await ready(installation)
        status = await until_status(installation, lambda one: one.database is not None)
        assert status.database is not None and status.database.policy == "database"


async def test_a_locked_policy_table_keeps_no_broker_from_starting(
    cluster: Cluster, installation: Installation
) -> None:
    await started_once(installation)
    with installation.broker() as said:
        await ready(installation)
    with closing(psycopg.connect(cluster.url.replace("postgres://", "postgresql://"))) as holder:
        holder.execute("LOCK TABLE console_policyrevision IN ACCESS EXCLUSIVE MODE")
        with installation.broker() as said:
            await ready(installation)
            await installation.accepts_records("locked")
            status = await until_status(installation, lambda one: one.database and one.database.code)
            assert status.database is not None and status.database.policy == "disk"
            assert "lock timeout" in said() and "Traceback" not in said(), said()
            holder.rollback()
            status = await until_status(installation, lambda one: one.database and not one.database.code)
            assert status.database is not None and status.database.policy == "database"


async def test_a_read_only_database_keeps_no_broker_from_starting_and_is_not_called_ok(
    cluster: Cluster, installation: Installation
) -> None:
    await started_once(installation)
    cluster.run_sql("ALTER DATABASE sluice SET default_transaction_read_only = on")
    with installation.broker():
        await ready(installation)
        await installation.accepts_records("read-only")
        status = await until_status(
            installation, lambda one: one.database and one.database.code == "database_read_only"
        )
        # It could be read: the policy is the database's.
        assert status.database is not None and status.database.policy == "database"
        cluster.run_sql("ALTER DATABASE sluice SET default_transaction_read_only = off")
        cluster.run_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = 'sluice'"
        )
        await until_status(installation, lambda one: one.database and not one.database.code)


async def test_the_first_start_without_a_database_waits_for_it_and_says_so(
    cluster: Cluster, installation: Installation
) -> None:
    cluster.stop()
    with installation.broker() as said:
        await until(lambda: "policy_unavailable" in said(), seconds=SLOW_S)
        await until(lambda: exit_report.read_exit_report(installation.control) is not None)
        words = exit_report.read_exit_report(installation.control)
        assert words is not None and words.code == "policy_unavailable"
        assert "Traceback" not in said(), said()
        cluster.start()
        await ready(installation)
        await installation.accepts_records("first")
        assert exit_report.read_exit_report(installation.control) is None


async def test_a_damaged_policy_file_is_refused_by_name_and_kept_aside(
    cluster: Cluster, installation: Installation
) -> None:
    await started_once(installation)
    raw = bytearray(installation.file.path.read_bytes())
    raw[len(raw) // 2] ^= 1
    installation.file.path.write_bytes(raw)
    cluster.stop()
    with installation.broker() as said:
        await until(lambda: "policy_unavailable" in said(), seconds=SLOW_S)
        assert "policy_file_damaged" in said()
        aside = installation.file.path.with_name(f"{installation.file.path.name}.damaged.1")
        assert aside.read_bytes() == bytes(raw)
        cluster.start()
        await ready(installation)
        await until_status(installation, lambda one: one.database and one.database.policy_stored_at)
    assert installation.file.load() is not None


async def test_a_locked_sqlite_keeps_no_broker_from_starting() -> None:
    with tempfile.TemporaryDirectory(prefix="sluice-start-") as home:
        path = Path(home) / "db.sqlite3"
        installation = Installation(Path(home), f"sqlite:///{path}")
        installation.manage("migrate", "-v0")
        await started_once(installation)
        with closing(sqlite3.connect(path, isolation_level=None)) as holder:
            holder.execute("PRAGMA locking_mode = EXCLUSIVE")
            holder.execute("BEGIN EXCLUSIVE")
            said = await runs_from_disk(installation)
            assert "locked" in said


async def test_all_members_of_a_healthy_group_restart_without_the_database(
    cluster: Cluster, tmp_path: Path
) -> None:
    async with running_nats_servers(tmp_path, 1) as engines:
        with tempfile.TemporaryDirectory(prefix="sluice-start-") as home:
            a = Installation(Path(home) / "a", cluster.url, engines.urls, "a")
            b = Installation(Path(home) / "b", cluster.url, engines.urls, "b", ports=a)
            a.manage("migrate", "-v0")
            for member in (a, b):  # the first makes the policy
                with member.broker():
                    await ready(member)
            with a.broker(), b.broker():
                for member in (a, b):
                    await ready(member)
                    await member.accepts_records("before")
                    await until_status(member, lambda one: one.database and one.database.policy_stored_at)
            cluster.stop()
            with a.broker() as said_a, b.broker() as said_b:
                for member in (a, b):
                    await ready(member)
                    await member.accepts_records("after")
                found = [
                    await until_status(
                        member, lambda one: one.database and one.database.code and one.durable_sequence >= 40
                    )
                    for member in (a, b)
                ]
                assert [one.database.policy for one in found if one.database] == ["disk", "disk"]
                assert all("policy_from_disk" in said() for said in (said_a, said_b))
                cluster.start()
                for member in (a, b):
                    await until_status(member, lambda one: one.database and not one.database.code)
