from __future__ import annotations

from typing import Any

import pytest
import redis

from broker_core.documents.clients import ClientEntry
from broker_core.errors import OperatorError
from console.live import seconds_ring
from tests.support.fake_broker import make_client

START = 1_790_000_000 - 1_790_000_000 % 900


@pytest.fixture
def link(redis_url: str) -> Any:
    with redis.Redis.from_url(redis_url) as connection:
        connection.flushdb()
        seconds_ring._expiring.clear()
        yield connection


def busy(lag: int) -> tuple[str, ClientEntry]:
    return "client", make_client("one", "offlined", lag)


def test_seconds_come_back_as_they_were(link: Any) -> None:
    for second in range(5):
        assert seconds_ring.write_second("sluice-1", START + second, [busy(100 + second)], link) == 1
    points = seconds_ring.read_seconds("sluice-1", "client", "one", START + 1, START + 4, link)
    assert [(point["at"] - START, point["lag_messages"], point["state"]) for point in points] == [
        (1, 101.0, "offlined"),
        (2, 102.0, "offlined"),
        (3, 103.0, "offlined"),
    ]


def test_after_a_quarter_of_an_hour_the_oldest_second_is_gone_and_no_more_room_is_taken(link: Any) -> None:
    for second in range(0, 2_000, 7):
        seconds_ring.write_second("sluice-1", START + second, [busy(second)], link)
    points = seconds_ring.read_seconds("sluice-1", "client", "one", START, START + 2_000, link)
    assert points[-1]["at"] == START + 1_995
    assert [point["at"] for point in points] == sorted(point["at"] for point in points)
    assert link.strlen("sluice:ring:sluice-1:client:one") <= seconds_ring.SECONDS * 32
    assert 0 < link.ttl("sluice:ring:sluice-1:client:one") <= seconds_ring.SECONDS + 120


def test_a_second_of_the_ring_before_is_not_taken_for_one_of_this(link: Any) -> None:
    seconds_ring.write_second("sluice-1", START + 3, [busy(7)], link)
    assert seconds_ring.read_seconds("sluice-1", "client", "one", START + 900, START + 1_800, link) == []


def test_a_client_at_rest_is_written_every_ten_seconds(link: Any) -> None:
    resting = ("client", make_client("idle", rate_out_messages=0.0))
    assert [
        seconds_ring.write_second("sluice-1", START + second, [resting], link) for second in range(11)
    ] == [
        1,
        *[0] * 9,
        1,
    ]


@pytest.mark.parametrize("figure", [{"lag_ms": 5}, {"spool_bytes": 40}, {"rate_out_messages": 0.1}])
def test_a_client_for_which_anything_happens_is_written_each_second(
    link: Any, figure: dict[str, Any]
) -> None:
    one = ("client", make_client("one", **{"rate_out_messages": 0.0, **figure}))
    assert [seconds_ring.write_second("sluice-1", START + second, [one], link) for second in range(5)] == [
        1
    ] * 5


def test_without_redis_the_reader_is_told_what_to_ask_for() -> None:
    with redis.Redis(port=1) as nobody, pytest.raises(OperatorError, match="can't be reached"):
        seconds_ring.read_seconds("sluice-1", "client", "one", 0, 1, nobody)
