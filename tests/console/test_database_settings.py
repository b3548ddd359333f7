"""An unresponsive database connection fails within seconds, even if the network drops packets silently."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psycopg

from tests.support.postgres import temporary_cluster

ROOT = Path(__file__).parents[2]
ASKS = """
import django
django.setup()
from django.db import DatabaseError, connection
from django.conf import settings
assert settings.DATABASES["default"]["OPTIONS"]["sslmode"] == "disable"
try:
    connection.ensure_connection()
except DatabaseError as problem:
    print(type(problem).__name__)
"""


READS_A_TOKEN = """
import console.project.asgi
from django.test import Client
client = Client(HTTP_HOST="localhost", raise_request_exception=False)
answer = client.get("/api/v1/status", headers={"Authorization": "Bearer slc_e8ab6f90_secret"})
print(answer.status_code, answer.json()["code"])
"""


SHOWS_LIMITS = """
import sys, django
django.setup()
from django.db import connection
from console import database_limits
for call in sys.argv[1:]:
    eval(f"database_limits.{call}")
    connection.close()
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('lock_timeout'), current_setting('statement_timeout')")
        print(*cursor.fetchone())
"""


def test_each_call_that_limits_waits_replaces_the_limits_of_the_one_before() -> None:
    calls = ("limit_lock_waits()", "limit_waits()", "limit_waits(statements=False)", "limit_waits()")
    with temporary_cluster() as url:
        environment = {
            **os.environ,
            "DATABASE_URL": url,
            "DJANGO_SETTINGS_MODULE": "console.project.settings",
        }
        done = subprocess.run(
            (sys.executable, "-c", SHOWS_LIMITS, *calls),
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            cwd=ROOT,
        )
    assert done.stdout.splitlines() == ["4s 0", "4s 30s", "4s 0", "4s 30s"], done.stdout + done.stderr


def test_a_locked_table_holds_up_no_request_for_ever(tmp_path: Path) -> None:
    with temporary_cluster() as url:
        environment = {
            **os.environ,
            "DATABASE_URL": url,
            "SLUICE_HOME": str(tmp_path),
            "REDIS_URL": "redis://127.0.0.1:1/0",
            "DJANGO_SETTINGS_MODULE": "console.project.settings",
        }
        subprocess.run(
            (sys.executable, "manage.py", "migrate", "-v0"),
            env=environment,
            check=True,
            timeout=300,
            cwd=ROOT,
        )
        with psycopg.connect(url.replace("postgres://", "postgresql://")) as holder:
            holder.execute("LOCK TABLE console_apitoken IN ACCESS EXCLUSIVE MODE")
            done = subprocess.run(
                (sys.executable, "-c", READS_A_TOKEN),
                env=environment,
                capture_output=True,
                text=True,
                timeout=120,
                cwd=ROOT,
            )
    assert done.stdout.split() == ["503", "database_away"], done.stdout + done.stderr


def test_a_server_that_accepts_and_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgres://sluice:secret@127.0.0.1:{silent.getsockname()[1]}/sluice?sslmode=disable"
        environment = {
            **os.environ,
            "DATABASE_URL": url,
            "DJANGO_SETTINGS_MODULE": "console.project.settings",
        }
        begun = time.monotonic()
        done = subprocess.run(
            (sys.executable, "-c", ASKS), env=environment, capture_output=True, text=True, timeout=120
        )
    assert (done.returncode, done.stdout.strip()) == (0, "OperationalError"), done.stderr
    assert time.monotonic() - begun < 60
