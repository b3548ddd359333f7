"""A policy document survives storage as database rows, and validation reports every error in it."""

from __future__ import annotations

from typing import Any

import pytest

from broker_core.access.credential_hashes import hash_token
from broker_core.config import PolicyDocument
from broker_core.errors import OperatorError
from console.models import BrokerUser, Instance, PolicyEntry, Transport
from console.queries import policies as read
from console.services import policies, policy_rows
from console.services.actors import SYSTEM

pytestmark = pytest.mark.django_db


@pytest.fixture
def instance() -> Instance:
    return policies.ensure_instance("sluice-1")


def whole(**changes: Any) -> dict[str, Any]:
    return {**policies.document_in_force("sluice-1"), **changes}


RICH: dict[str, Any] = {
    "rules": [
        {
            "name": "slow",
            "signal": "oldest_age",
            "limit": 5_000,
            "ladder": [{"action": "warn"}, {"action": "disconnect", "after_ms": 1_000}],
        },
        {"name": "slow", "scope": {"client": "desk-*"}, "limit": 60_000, "mode": "enforce"},
    ],
    "xap": [{"enabled": True}, {"transport": "tcp", "throughput": 1_000}],
    "activemq": [{"topic": ">", "prefetch": 10, "abort_slow_consumer_strategy": True}],
    "qpid": [{"topic": "stocks.*", "depth": 1_000}],
    "access": {
        "users": [{"name": "maria", "token": hash_token("secret"), "groups": ["desk"]}],
        "entitlements": [
            {"who": ["group:desk"], "publish": ["orders.*"], "subscribe": [">"], "filter": "/a = 1"}
        ],
    },
}


def test_every_list_of_a_document_survives_the_rows(instance: Instance) -> None:
    document = whole(**RICH)
    policy_rows.write_document(instance, document)
    again = read.desired_document(instance, document["revision"])
    assert PolicyDocument.from_dict(again) == PolicyDocument.from_dict(document)
    assert PolicyEntry.objects.count() == 6
    assert BrokerUser.objects.get().groups == ["desk"]


def test_writing_replaces_what_was_there(instance: Instance) -> None:
    policy_rows.write_document(instance, whole(**RICH))
    policy_rows.write_document(
        instance, whole(qpid=[{"topic": "a", "depth": 1}], rules=[], xap=[], activemq=[], access={})
    )
    assert [entry.key for entry in PolicyEntry.objects.all()] == ["a"]
    assert not BrokerUser.objects.exists()


def test_a_transport_that_isnt_in_the_document_is_switched_off(instance: Instance) -> None:
    document = whole()
    policy_rows.write_document(instance, {**document, "transports": document["transports"][:1]})
    found = dict(Transport.objects.values_list("name", "enabled"))
    assert found == {"tcp": True, "websocket": False, "stomp": False, "stomp-ws": False}


def test_publishing_the_same_policy_makes_no_revision(instance: Instance) -> None:
    change = policies.publish(SYSTEM, whole(), instance_name="sluice-1")
    assert change.revision.number == 1


def test_publishing_makes_one_revision_of_everything(instance: Instance) -> None:
    change = policies.publish(SYSTEM, whole(**RICH), reason="import", instance_name="sluice-1")
    assert change.revision.number == 2
    assert len(change.revision.document["rules"]) == 2
    restored = policies.restore(SYSTEM, 1, instance_name="sluice-1")
    assert restored.revision.document["rules"] == []
    assert restored.revision.document["access"] == {"users": [], "entitlements": []}


def test_lists_are_changed_one_by_one(instance: Instance) -> None:
    policies.publish(SYSTEM, whole(**RICH), instance_name="sluice-1")
    change = policies.change_instance_policy(SYSTEM, {"qpid": []}, instance_name="sluice-1")
    assert change.revision.document["qpid"] == []
    assert len(change.revision.document["activemq"]) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"qpid": [{"topic": "a", "depth": 0}]}, "depth"),
        ({"activemq": [{"prefetch": 1}]}, "topic must be"),
        ({"rules": [{"name": "x", "signal": "oldest_age"}]}, "x"),
        ({"xap": [{"enabled": True}, {"enabled": False}]}, "two entries"),
        ({"access": {"users": [{"name": "a b"}]}}, "a b"),
        ({"access": {"entitlements": [{"who": []}]}}, "who must name"),
    ],
)
def test_what_a_broker_wouldnt_take_is_refused_and_nothing_changes(
    instance: Instance, changes: dict[str, Any], said: str
) -> None:
    for save in (
        lambda: policies.change_instance_policy(SYSTEM, changes, instance_name="sluice-1"),
        lambda: policies.publish(SYSTEM, whole(**changes), instance_name="sluice-1"),
    ):
        with pytest.raises(OperatorError) as caught:
            save()
        assert caught.value.code == "bad_policy"
        assert said in caught.value.sentence
    newest = read.newest_revision(instance)
    assert newest is not None
    assert newest.number == 1
    assert not PolicyEntry.objects.exists()


def test_a_transports_proof_is_checked_and_part_of_the_document(instance: Instance) -> None:
    by_token = {"authentication": "token", "restricted": True}
    with pytest.raises(
        OperatorError, match="no user has a token"
    ):  # no client could log on, and the broker would refuse the policy
        policies.change_transport(SYSTEM, "tcp", by_token, instance_name="sluice-1")
    users = {"access": {"users": [{"name": "maria", "token": hash_token("t")}]}}
    policies.change_instance_policy(SYSTEM, users, instance_name="sluice-1")
    change = policies.change_transport(SYSTEM, "tcp", by_token, instance_name="sluice-1")
    transport = PolicyDocument.from_dict(change.revision.document).transport("tcp")
    assert (transport.authentication, transport.restricted) == ("token", True)
    with pytest.raises(OperatorError, match="client_ca"):
        policies.change_transport(SYSTEM, "tcp", {"authentication": "certificate"}, instance_name="sluice-1")
