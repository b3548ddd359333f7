"""Settings for tests: a temporary SLUICE_HOME that is deleted with the process.

DATABASE_URL is kept if set.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

if _runs_tests := os.environ.get("SLUICE_TEST_WORKER") != (
    _worker := os.environ.get("PYTEST_XDIST_WORKER", "")
):
    # This is the test run itself or one of its workers. Each has its own home, and so its own database,
    # Redis and sockets.
    # Processes that a test starts inherit all names, or get a SLUICE_HOME from the test.
    _home = tempfile.mkdtemp(prefix="sluice-test-", dir=os.environ.get("SLUICE_TEST_HOME"))
    atexit.register(shutil.rmtree, _home, ignore_errors=True)
    os.environ["SLUICE_HOME"] = _home
    os.environ.setdefault("SLUICE_TEST_HOME", _home)  # workers' homes are inside the run's, deleted with it
    os.environ["SLUICE_TEST_WORKER"] = _worker
    os.environ.setdefault("SLUICE_LOG_LEVEL", "WARNING")

from console.project.settings import *  # noqa: F403
from console.project.settings import DATABASES, SLUICE_HOME

SLUICE_DIRECTORY_ROOTS = [SLUICE_HOME, Path(tempfile.gettempdir())]  # where tests create files
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    # A file instead of memory, so that threads and WebSocket consumers of a test meet SQLite's locks as in
    # production.
    DATABASES["default"]["TEST"] = {"NAME": str(SLUICE_HOME / "test.sqlite3")}
# Django's test client creates the middleware for each client, and whitenoise would list all static files
# each time.
WHITENOISE_AUTOREFRESH = _runs_tests
