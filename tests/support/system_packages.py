"""What the tests need from the system: a browser, PostgreSQL, Java, npm and nc.

Installs what is missing, or says how.

Run by `make test`. Root on a Debian gets the packages by apt; anybody else is told the command, and nothing
is run. Needs the standard library alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

from postgres import find_binaries


@dataclass(frozen=True, slots=True)
class Need:
    """A Debian package, what it is for, and whether what it brings is there (from whatever source)."""

    package: str
    purpose: str
    is_there: Callable[[], bool]


def on_path(*names: str) -> Callable[[], bool]:
    """A check that one of these programs is on the PATH."""
    return lambda: any(shutil.which(name) for name in names)


NEEDS = (
    Need("chromium", "browser tests", on_path("chromium", "chromium-browser", "google-chrome")),
    Need("postgresql", "database tests", lambda: find_binaries() is not None),
    Need("openjdk-17-jre-headless", "pipeline tests", on_path("java")),
    Need("netcat-openbsd", "the documents' examples", on_path("nc")),
    Need("npm", "STOMP clients in JavaScript", on_path("npm")),
)


def main() -> int:
    """Install what is missing. Returns 0 when everything is there at the end."""
    missing = [need for need in NEEDS if not need.is_there()]
    if not missing:
        return 0
    packages = [need.package for need in missing]
    wanted = ", ".join(f"{need.package} ({need.purpose})" for need in missing)
    command = f"apt-get install --no-install-recommends {' '.join(packages)}"
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        print(f"The tests need {wanted}. On Debian, as root: {command}", file=sys.stderr)
        return 1
    print(f"Installing {wanted}", flush=True)
    return install(packages)


def install(packages: list[str]) -> int:
    """Install by apt without a question asked."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    steps = (
        ["apt-get", "update", "-q"],
        ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages],
    )
    for step in steps:
        code = subprocess.run(
            step, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        ).returncode
        if code != 0:
            print(f"{' '.join(step)} failed with code {code}", file=sys.stderr)
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
