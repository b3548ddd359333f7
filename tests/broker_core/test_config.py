"""Policy documents: defaults, inheritance, and all problems at once."""

from __future__ import annotations

from typing import Any

import pytest

from broker_core.config import ClientPolicy, PolicyDocument, default_policy
from broker_core.errors import OperatorError


def document(**changes: Any) -> dict[str, Any]:
    return default_policy("one").to_dict() | changes


def test_a_document_is_the_same_after_a_round_trip() -> None:
    assert PolicyDocument.from_dict(default_policy("one").to_dict()) == default_policy("one")


def test_every_problem_is_listed_at_once() -> None:
    with pytest.raises(OperatorError) as caught:
        PolicyDocument.from_dict(
            document(
                revision=0,
                pool={"message_memory_limit": -1, "memory": 1},
                client_policy={"client_max_capacity": 101},
            )
        )
    assert len(caught.value.details["problems"]) == 4


@pytest.mark.parametrize("value", [True, 1.5, "64MB", -1])
def test_a_limit_is_a_whole_number_of_bytes_and_nothing_else(value: Any) -> None:
    with pytest.raises(OperatorError):
        PolicyDocument.from_dict(document(pool={"message_memory_limit": value}))


def test_two_transports_of_one_address_are_refused() -> None:
    made = document()
    made["transports"][1]["port"] = made["transports"][0]["port"]
    with pytest.raises(OperatorError) as caught:
        PolicyDocument.from_dict(made)
    assert "address" in caught.value.sentence


def test_a_transport_takes_the_instances_client_policy_where_it_says_nothing() -> None:
    made = document(client_policy={"client_max_capacity": 20, "client_message_age_limit_ms": 1_000})
    made["transports"][0]["client_policy"] = {"client_max_capacity": 70}
    policy = PolicyDocument.from_dict(made)
    assert policy.client_policy_for("tcp") == ClientPolicy(70, 1_000)
    assert policy.client_policy_for("websocket") == ClientPolicy(20, 1_000)


def test_an_instance_without_a_capacity_has_amps_default() -> None:
    assert PolicyDocument.from_dict(document(client_policy={})).client_policy.client_max_capacity == 50
