from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from broker_core.control.requests.clients import sort_clients
from broker_core.errors import OperatorError
from console.queries.clients import ClientSequence
from tests.support.call_counts import counting_calls
from tests.support.fake_broker import FakeBroker, make_client


def names(found: Any) -> list[object]:
    return [one.name for one in found]


def test_clients_are_filtered_by_state_transport_and_part_of_the_name(broker: FakeBroker) -> None:
    assert names(ClientSequence(delivery="offlined")[:10]) == ["board-jfk"]
    assert names(ClientSequence(transport="websocket", search="LAKE")[:10]) == ["lake-loader"]
    assert names(ClientSequence(patterns=["board-*", "lake-loader"])[:10]) == ["board-jfk", "lake-loader"]
    assert names(ClientSequence(patterns=[])[:10]) == []


def test_only_the_page_is_asked_of_the_broker_and_once(broker: FakeBroker) -> None:
    found = ClientSequence(sort="-name")
    assert (len(found), names(found[15:18])) == (18, ["carrier-as", "carrier-aa", "board-jfk"])
    asked = [one for one in broker.asked if one["do"] == "clients_page"]
    assert [(one.get("offset", 0), one.get("limit", 100)) for one in asked] == [(0, 100)]


def test_clients_are_sorted_down_with_ties_by_name() -> None:
    everyone = [make_client("c", lag=5), make_client("a", lag=5), make_client("b", lag=9)]
    assert names(sort_clients(everyone, "-lag_messages")) == ["b", "a", "c"]


def test_clients_without_a_value_come_last_either_way() -> None:
    everyone = [make_client("live"), make_client("off", "offlined", 3)]
    assert names(sort_clients(everyone, "offlined_since")) == ["off", "live"]
    assert names(sort_clients(everyone, "-offlined_since")) == ["off", "live"]


def test_the_worst_health_comes_first_then_the_greatest_lag(broker: FakeBroker) -> None:
    broker.clients = [
        make_client("fine"),
        make_client("paused", "paused"),
        make_client("late", lag=5, health="falling behind"),
        make_client("later", lag=9, health="falling behind"),
        make_client("stuck", lag=1, health="stalled"),
    ]
    assert names(ClientSequence()[:10]) == ["stuck", "later", "late", "paused", "fine"]


def test_delivery_and_health_filter_each(broker: FakeBroker) -> None:
    assert names(ClientSequence(delivery="draining")[:10]) == ["delay-mailer"]
    assert names(ClientSequence(health="stalled", delivery="offlined")[:10]) == ["board-jfk"]
    assert names(ClientSequence(health="stalled", delivery="draining")[:10]) == []


def test_an_order_that_there_is_not_is_refused() -> None:
    with pytest.raises(OperatorError) as refused:
        sort_clients([], "password")
    assert refused.value.code == "bad_sort"


def test_a_page_of_ten_thousand_clients_costs_what_its_rows_do(broker: FakeBroker, api: APIClient) -> None:
    broker.clients = [
        make_client(f"client-{number:05d}", lag=number * 7919 % 1000) for number in range(10_000)
    ]
    query = {"search": "client-0", "sort": "-lag_messages", "page_size": 100, "page": 40}
    api.get("/api/v1/clients", query)
    with counting_calls() as number:
        answer = api.get("/api/v1/clients", query)
    assert (answer.data["count"], len(answer.data["results"])) == (10_000, 100)
    assert number() < 2 * 10_000
