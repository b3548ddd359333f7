"""System packages that the tests need: a browser, PostgreSQL, Java, npm and nc.

`make test` runs this module. Root on Debian gets missing packages by apt. Other users get the command, and
nothing is run. It needs the standard library alone.
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
    """A Debian package, its purpose, and whether its program is present from any source."""

    package: str
    purpose: str
    is_there: Callable[[], bool]


def on_path(*names: str) -> Callable[[], bool]:
    """Return a check that one of these programs is on the PATH."""
    return lambda: any(shutil.which(name) for name in names)


NEEDS = (
    Need("chromium", "browser tests", on_path("chromium", "chromium-browser", "google-chrome")),
    Need("postgresql", "database tests", lambda: find_binaries() is not None),
    Need("openjdk-17-jre-headless", "pipeline tests", on_path("java")),
    Need("netcat-openbsd", "the documents' examples", on_path("nc")),
    Need("npm", "STOMP clients in JavaScript", on_path("npm")),
)


def main() -> int:
    """Install missing packages; return 0 if all are present at the end."""
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
    """Install packages by apt without questions."""
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
