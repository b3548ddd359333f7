"""A PostgreSQL that lives as long as one command: `python tests/support/postgres.py -- command…` with DATABASE_URL set.

The cluster is made in a temporary directory, listens on a Unix socket there and nowhere else, and goes away with the
command. PostgreSQL refuses to run as root, so root lends it an unprivileged user. Needs the standard library alone.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

ROLE = "sluice"
UNPRIVILEGED = ("postgres", "nobody")
# The cluster is thrown away: nothing of it needs to survive a crash, and without syncs the tests are quicker.
FAST = ("fsync=off", "full_page_writes=off", "synchronous_commit=off", "max_connections=50")


def main(arguments: list[str]) -> int:
    """Run a command with DATABASE_URL; returns its exit code."""
    command = arguments[1:] if arguments[:1] == ["--"] else arguments
    if not command:
        print(__doc__, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _leave)
    with temporary_cluster() as url:
        return subprocess.run(command, env={**os.environ, "DATABASE_URL": url}).returncode


@contextmanager
def temporary_cluster() -> Iterator[str]:
    """Start a cluster with one empty database; yields its DATABASE_URL."""
    binaries = find_binaries()
    if binaries is None:
        raise SystemExit("PostgreSQL isn't installed. On Debian: apt-get install postgresql")
    directory = Path(tempfile.mkdtemp(prefix="sluice-pg-", dir="/tmp"))  # short: a socket's path is limited
    lent = _lent_user(directory)
    data = directory / "data"
    try:
        initdb = (
            binaries / "initdb",
            "-D",
            data,
            "-U",
            ROLE,
            "--auth=trust",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        )
        _run(initdb, lent)
        options = " ".join(f"-c {setting}" for setting in FAST)
        where = f"-k {directory} -c listen_addresses='' {options}"
        _run((binaries / "pg_ctl", "-D", data, "-l", directory / "log", "-w", "-o", where, "start"), lent)
        try:
            _run((binaries / "createdb", "-h", directory, "-U", ROLE, ROLE), lent)
            # The one spelling of a socket's directory that libpq and django-environ both read.
            yield f"postgres://{ROLE}@/{ROLE}?host={quote(str(directory))}"
        finally:
            _run((binaries / "pg_ctl", "-D", data, "-m", "immediate", "stop"), lent)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def find_binaries() -> Path | None:
    """The directory that has initdb and pg_ctl: Debian's newest version, else what the PATH finds."""
    versions = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    for initdb in sorted(versions, key=lambda path: _version(path.parent.parent.name), reverse=True):
        return initdb.parent
    found = shutil.which("initdb")
    return Path(found).resolve().parent if found else None


def _version(name: str) -> float:
    try:
        return float(name)
    except ValueError:
        return 0.0


def _lent_user(directory: Path) -> dict[str, Any]:
    """How to run PostgreSQL's programs: as ourselves, or for root as somebody without rights who gets `directory`."""
    if os.getuid() != 0:
        return {}
    for name in UNPRIVILEGED:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        os.chown(directory, entry.pw_uid, entry.pw_gid)
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise SystemExit(
        f"PostgreSQL can't run as root, and there is no user {' or '.join(UNPRIVILEGED)} to run it."
    )


def _run(command: tuple[Any, ...], lent: dict[str, Any]) -> None:
    """Run one of PostgreSQL's programs. Its output matters only when it fails."""
    with tempfile.TemporaryFile() as output:
        # A file, not a pipe: pg_ctl's server inherits it, and would hold a pipe open for as long as it runs.
        words = [str(word) for word in command]
        done = subprocess.run(words, stdout=output, stderr=subprocess.STDOUT, cwd="/", **lent)
        if done.returncode != 0:
            output.seek(0)
            sys.stderr.write(output.read().decode("utf-8", "replace"))
            raise SystemExit(f"{words[0]} failed with code {done.returncode}.")


def _leave(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
