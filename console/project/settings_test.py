"""Settings for the tests: a SLUICE_HOME of their own that goes away with the process; DATABASE_URL is kept if set."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

if "SLUICE_TEST_HOME" not in os.environ:
    # The test run itself. Processes that a test starts inherit both names, or get a SLUICE_HOME of the test's choice.
    _home = tempfile.mkdtemp(prefix="sluice-test-")
    atexit.register(shutil.rmtree, _home, ignore_errors=True)
    os.environ["SLUICE_HOME"] = os.environ["SLUICE_TEST_HOME"] = _home
    os.environ.setdefault("SLUICE_LOG_LEVEL", "WARNING")

from console.project.settings import *  # noqa: F403
from console.project.settings import DATABASES, SLUICE_HOME

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    # A file, not memory: threads and WebSocket consumers of a test then meet SQLite's locks as in real life.
    DATABASES["default"]["TEST"] = {"NAME": str(SLUICE_HOME / "test.sqlite3")}
