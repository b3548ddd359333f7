"""`/readyz` reports a read-only, full or locked database: SQLite in this process, PostgreSQL in its own
cluster.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests.support.postgres import Cluster, running_cluster
from tests.support.small_disks import SmallDisk, unavailable_reason

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
ASK = """
import sys, django; django.setup()
from django.db import connection
from console.queries.readiness import _database
for statement in sys.argv[1:]:
    connection.settings_dict["OPTIONS"]["init_command"] += statement
print(_database())
"""


def manage(home: Path, url: str, *words: str) -> str:
    environment = {
        **os.environ,
        "SLUICE_HOME": str(home),
        "DATABASE_URL": url,
        "DJANGO_SETTINGS_MODULE": "console.project.settings",
    }
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def problem(home: Path, url: str, *statements: str) -> str:
    """Return the code that readiness reports after these statements run on each new connection; "" if there
    is no problem.
    """
    said = manage(home, url, sys.executable, "-c", ASK, *statements)
    return str(eval(said.strip().splitlines()[-1])["problem"])


def migrate(home: Path, url: str) -> None:
    manage(home, url, sys.executable, "manage.py", "migrate", "-v0")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as made:
        yield made


def test_postgresql_locked_read_only_and_stopped(cluster: Cluster, tmp_path: Path) -> None:
    migrate(tmp_path, cluster.url)
    assert problem(tmp_path, cluster.url) == ""
    with closing(psycopg.connect(cluster.url.replace("postgres://", "postgresql://"))) as holder:
        holder.execute("LOCK TABLE console_policyrevision IN ACCESS EXCLUSIVE MODE")
        assert problem(tmp_path, cluster.url) == "database_locked"
        holder.rollback()
        holder.execute("LOCK TABLE console_writeprobe IN ACCESS EXCLUSIVE MODE")
        assert problem(tmp_path, cluster.url) == "database_locked"
    assert problem(tmp_path, cluster.url) == ""
    cluster.run_sql("ALTER DATABASE sluice SET default_transaction_read_only = on")
    assert problem(tmp_path, cluster.url) == "database_read_only"
    cluster.run_sql("ALTER DATABASE sluice SET default_transaction_read_only = off")
    wrong = cluster.ask_password("right").replace("right", "wrong")
    assert problem(tmp_path, wrong) == "database_away"
    cluster.stop()
    assert problem(tmp_path, cluster.url) == "database_away"


def test_postgresql_whose_disk_is_full(tmp_path: Path) -> None:
    """The database counts as full although vacuum has freed space inside the probe's table."""
    if why := unavailable_reason(tmp_path):
        pytest.skip(why)
    with tempfile.TemporaryDirectory(prefix="sluice-", dir="/tmp") as home:
        Path(home).chmod(0o755)  # PostgreSQL runs as another user
        disk = SmallDisk(Path(home) / "disk", 256)
        try:
            with running_cluster(disk.place) as cluster:
                migrate(tmp_path, cluster.url)
                for _ in range(2):
                    assert problem(tmp_path, cluster.url) == ""
                cluster.run_sql("VACUUM")
                cluster.run_sql("CREATE TABLE other (words text)")
                disk.fill()
                with pytest.raises(SystemExit, match="psql failed"):
                    cluster.run_sql("INSERT INTO other SELECT repeat('x', 100) FROM generate_series(1, 1000)")
                assert problem(tmp_path, cluster.url) == "database_full"
                disk.free()
                assert problem(tmp_path, cluster.url) == ""
        finally:
            disk.close()


def test_sqlite_locked_and_read_only(tmp_path: Path) -> None:
    path = tmp_path / "db.sqlite3"
    migrate(tmp_path, f"sqlite:///{path}")
    assert problem(tmp_path, f"sqlite:///{path}") == ""
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        assert problem(tmp_path, f"sqlite:///{path}") == "database_locked"
    # root can write any file, so SQLite's `query_only` gives the same error
    assert problem(tmp_path, f"sqlite:///{path}", "PRAGMA query_only = ON") == "database_read_only"


def test_sqlite_whose_disk_is_full(tmp_path: Path) -> None:
    if why := unavailable_reason(tmp_path):
        pytest.skip(why)
    disk = SmallDisk(tmp_path / "disk", 16)
    try:
        path = disk.place / "db.sqlite3"
        migrate(tmp_path, f"sqlite:///{path}")
        assert problem(tmp_path, f"sqlite:///{path}") == ""
        disk.fill()
        assert problem(tmp_path, f"sqlite:///{path}") == "database_full"
        disk.free()
        assert problem(tmp_path, f"sqlite:///{path}") == ""
    finally:
        disk.close()
