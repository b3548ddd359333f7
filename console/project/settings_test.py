"""Settings for the tests: a SLUICE_HOME of their own that goes away with the process; DATABASE_URL is kept if set."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

if _runs_tests := os.environ.get("SLUICE_TEST_WORKER") != (
    _worker := os.environ.get("PYTEST_XDIST_WORKER", "")
):
    # The test run itself, or one of its workers: each has a home, and so a database, a Redis and sockets, of its own.
    # Processes that a test starts inherit all names, or get a SLUICE_HOME of the test's choice.
    _home = tempfile.mkdtemp(prefix="sluice-test-", dir=os.environ.get("SLUICE_TEST_HOME"))
    atexit.register(shutil.rmtree, _home, ignore_errors=True)
    os.environ["SLUICE_HOME"] = _home
    os.environ.setdefault("SLUICE_TEST_HOME", _home)  # workers' homes are in the run's, and go away with it
    os.environ["SLUICE_TEST_WORKER"] = _worker
    os.environ.setdefault("SLUICE_LOG_LEVEL", "WARNING")

from console.project.settings import *  # noqa: F403
from console.project.settings import DATABASES, SLUICE_HOME

SLUICE_DIRECTORY_ROOTS = [SLUICE_HOME, Path(tempfile.gettempdir())]  # where tests have their files
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    # A file, not memory: threads and WebSocket consumers of a test then meet SQLite's locks as in real life.
    DATABASES["default"]["TEST"] = {"NAME": str(SLUICE_HOME / "test.sqlite3")}
# Django's test client starts the middleware anew for each client, and whitenoise would list all static files each time.
WHITENOISE_AUTOREFRESH = _runs_tests
