"""A database that can't be heard is given up in seconds, whatever the network does with what is sent to it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

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
