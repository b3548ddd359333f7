"""A PostgreSQL for one command: `python tests/support/postgres.py -- command…` with DATABASE_URL set.

The cluster is created in a temporary directory, listens only on a Unix socket there, and is removed after the
command. PostgreSQL refuses to run as root, so root runs it as an unprivileged user. Needs the standard
library alone.
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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

ROLE = "sluice"
UNPRIVILEGED = ("postgres", "nobody")
# The cluster is temporary and never has to survive a crash, so tests run faster without syncs.
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


class Cluster:
    """A running PostgreSQL that tests stop, start and lock; `url` is its DATABASE_URL."""

    def __init__(self, directory: Path, binaries: Path, lent: dict[str, Any]) -> None:
        self.directory, self._binaries, self._lent = directory, binaries, lent
        self._data = directory / "data"
        # The only form of a socket directory that both libpq and django-environ accept.
        self.url = f"postgres://{ROLE}@/{ROLE}?host={quote(str(directory))}"

    def start(self) -> None:
        options = " ".join(f"-c {setting}" for setting in FAST)
        where = f"-k {self.directory} -c listen_addresses='' {options}"
        log = self.directory / "log"
        _run((self._binaries / "pg_ctl", "-D", self._data, "-l", log, "-w", "-o", where, "start"), self._lent)

    def stop(self) -> None:
        _run((self._binaries / "pg_ctl", "-D", self._data, "-m", "immediate", "stop"), self._lent)

    def run_sql(self, statement: str) -> None:
        """Run one statement as the owner in its own session, which is writable even if the database
        defaults to read-only.
        """
        both = ("SET default_transaction_read_only = off", statement)
        words = ("-h", self.directory, "-U", ROLE, "-d", ROLE, "-v", "ON_ERROR_STOP=1")
        asked = [word for one in both for word in ("-c", one)]
        _run((self._binaries / "psql", *words, *asked), self._lent)

    def ask_password(self, password: str) -> str:
        """Admit only a role `app` with this password; return its DATABASE_URL."""
        with suppress(SystemExit):
            self.run_sql("CREATE ROLE app LOGIN SUPERUSER")
        self.run_sql(f"ALTER ROLE app PASSWORD '{password}'")
        path = self._data / "pg_hba.conf"
        path.write_text(f"local all {ROLE} trust\nlocal all all scram-sha-256\n")
        self.run_sql("SELECT pg_reload_conf()")
        return f"postgres://app:{password}@/{ROLE}?host={quote(str(self.directory))}"


@contextmanager
def temporary_cluster() -> Iterator[str]:
    """Start a cluster with one empty database; yields its DATABASE_URL."""
    with running_cluster() as cluster:
        yield cluster.url


@contextmanager
def running_cluster(home: Path = Path("/tmp")) -> Iterator[Cluster]:
    """Start a cluster with one empty database, in a new directory below `home`, whose path is short."""
    binaries = find_binaries()
    if binaries is None:
        raise SystemExit("PostgreSQL isn't installed. On Debian: apt-get install postgresql")
    directory = Path(tempfile.mkdtemp(prefix="sluice-pg-", dir=home))  # a socket's path must be short
    lent = _lent_user(directory)
    cluster = Cluster(directory, binaries, lent)
    try:
        initdb = (
            binaries / "initdb",
            "-D",
            directory / "data",
            "-U",
            ROLE,
            "--auth=trust",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        )
        _run(initdb, lent)
        cluster.start()
        try:
            _run((binaries / "createdb", "-h", directory, "-U", ROLE, ROLE), lent)
            yield cluster
        finally:
            with suppress(SystemExit):  # a test may have stopped it
                cluster.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def find_binaries() -> Path | None:
    """Return the directory of initdb and pg_ctl: Debian's newest version, else the one on the PATH."""
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
    """Return how to run PostgreSQL's programs.

    Run them as the current user; for root, as an unprivileged user who becomes owner of `directory`.
    """
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
