from __future__ import annotations

import time

import pytest

from broker_core.errors import OperatorError
from console.queries import clients
from tests.support.fake_broker import FakeBroker, make_client


def names(found: list[dict[str, object]]) -> list[object]:
    return [one["name"] for one in found]


def test_clients_are_filtered_by_state_transport_and_part_of_the_name(broker: FakeBroker) -> None:
    assert names(clients.clients(state="offlined")) == ["board-jfk"]
    assert names(clients.clients(transport="websocket", search="LAKE")) == ["lake-loader"]


def test_clients_are_sorted_down_with_ties_by_name() -> None:
    everyone = [make_client("c", lag=5), make_client("a", lag=5), make_client("b", lag=9)]
    assert names(clients.select(everyone, sort="-lag_messages")) == ["b", "a", "c"]


def test_clients_without_a_value_come_last_either_way() -> None:
    everyone = [make_client("live"), make_client("off", "offlined", 3)]
    assert names(clients.select(everyone, sort="offlined_since")) == ["off", "live"]
    assert names(clients.select(everyone, sort="-offlined_since")) == ["off", "live"]


def test_unknown_sort_field_is_refused() -> None:
    with pytest.raises(OperatorError) as refused:
        clients.select([], sort="password")
    assert refused.value.code == "bad_sort"


def test_ten_thousand_clients_are_sorted_in_a_blink() -> None:
    everyone = [make_client(f"client-{number:05d}", lag=number * 7919 % 1000) for number in range(10_000)]
    started = time.perf_counter()
    found = clients.select(everyone, search="client-0", sort="-lag_messages")
    assert len(found) == 10_000
    assert time.perf_counter() - started < 1.0
