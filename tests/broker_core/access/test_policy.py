"""The access part of a policy document: parsed, validated as a whole, and compared with a new revision."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker_core.access import ALL_RIGHTS, AccessPolicy, hash_password, hash_token
from broker_core.config import PolicyDocument, TlsSettings, default_policy
from broker_core.errors import ClientError, OperatorError
from broker_core.names import BROKER_NAME
from tests.broker_core.access.making import entitlement, policy, user


def test_a_document_with_access_is_the_same_after_json() -> None:
    made = policy(
        user("maria", password=hash_password("x"), groups=("desk",), clients=("desk-*",)),
        user("gate", certificate="gate.example"),
        entitlement("group:desk", publish="a.> b", subscribe="a", filter="/x = 1", transports=("tcp",)),
        tls=TlsSettings("/c.pem", "/k.pem", "/ca.pem"),
    )
    assert PolicyDocument.from_dict(made.to_dict()) == made


def test_a_document_without_access_says_nothing_of_it() -> None:
    document = default_policy("test-1").to_dict()
    assert "access" not in document
    assert not {"authentication", "restricted", "tls"} & set(document["transports"][0])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"authentication": "secret"}, "authentication must be one of none, token, password, certificate"),
        ({"authentication": "certificate"}, "needs tls with a client_ca"),
        (
            {"authentication": "certificate", "tls": {"certificate": "/c", "key": "/k"}},
            "needs tls with a client_ca",
        ),
        ({"tls": {"certificate": "c.pem", "key": "/k"}}, "tls.certificate must be an absolute path"),
        ({"tls": {"certificate": "/c.pem"}}, "tls.key must be an absolute path"),
        ({"restricted": "yes"}, "restricted must be true or false"),
    ],
)
def test_wrong_settings_of_a_transport_are_named(change: dict[str, object], problem: str) -> None:
    document = default_policy("test-1").to_dict()
    document["transports"][0].update(change)
    with pytest.raises(OperatorError) as caught:
        PolicyDocument.from_dict(document)
    assert problem in caught.value.sentence


@pytest.mark.parametrize(
    ("access", "problem"),
    [
        ({"user": []}, "there is no setting 'user'"),
        ({"users": [{"name": "a b"}]}, "name must be 1 to 64 letters"),
        ({"users": [{"name": "a"}, {"name": "a"}]}, "two users have the name a"),
        (
            {"users": [{"name": "a", "token": "t"}, {"name": "b", "token": "t"}]},
            "two users have the same token",
        ),
        ({"users": [{"name": "a", "password": 1}]}, "password must be a text"),
        ({"entitlements": [{"publish": ["a"]}]}, "entitlement 1: who must name a user or group"),
        ({"entitlements": [{"who": "maria"}]}, "who must be a list of names"),
        ({"entitlements": 3}, "must be a list"),
    ],
)
def test_wrong_users_and_entitlements_are_named(access: dict[str, object], problem: str) -> None:
    with pytest.raises(OperatorError) as caught:
        PolicyDocument.from_dict({**default_policy("test-1").to_dict(), "access": access})
    assert problem in caught.value.sentence


def test_what_needs_patterns_and_filters_to_be_read_is_named_all_at_once() -> None:
    made = policy(
        user("maria", password="hunter2"),
        user("vera", token="hunter2"),
        entitlement("*", publish="a..b", subscribe="a*b", filter="/x =", transports=("udp",)),
    )
    with pytest.raises(OperatorError) as caught:
        AccessPolicy(made)
    problems = caught.value.details["problems"]
    assert len(problems) == 6
    assert not any("hunter2" in problem for problem in problems)


def test_a_transport_that_nobody_could_log_on_to_is_a_mistake() -> None:
    with pytest.raises(OperatorError) as caught:
        AccessPolicy(policy(user("maria"), authentication="password"))
    assert "no user has a password" in caught.value.sentence


def test_tokens_and_certificates_say_who_it_is() -> None:
    access = AccessPolicy(
        policy(user("maria"), user("gate", certificate="gate.example"), user("g2", certificate="g2"))
    )
    assert (access.find_user_by_token("maria"), access.find_user_by_token("x")) == ("maria", None)
    assert access.find_user_by_certificate(["gate.example", "other"]) == "gate"
    assert access.find_user_by_certificate(["gate.example", "g2"]) is None
    assert access.find_user_by_certificate([]) is None
    assert access.password_hash("maria") is None
    assert access.password_hash("nobody") is None


def test_on_a_transport_that_is_not_there_nobody_may_do_anything() -> None:
    access = AccessPolicy(policy(user("maria"), entitlement("*", publish="a")))
    assert (access.authentication("tcp"), access.authentication("udp")) == ("token", None)
    with pytest.raises(ClientError):
        access.rights("udp", "maria").check_publish(["a"])


def test_a_user_may_be_kept_to_names_of_clients() -> None:
    access = AccessPolicy(policy(user("maria", clients=("maria", "desk-*")), user("vera")))
    assert [access.may_use_client_name("maria", name) for name in ("maria", "desk-1", "maria-2", "desk")] == [
        True,
        True,
        False,
        False,
    ]
    assert access.may_use_client_name("vera", "anything") and access.may_use_client_name("", "anything")
    asked = [("maria", "desk-1"), ("maria", "other"), ("vera", "other"), ("nobody", "other")]
    assert [access.is_user_allowed(*one) for one in asked] == [True, False, True, False]


def test_a_revision_that_changes_what_a_user_may_do_gives_other_rights() -> None:
    before = policy(user("maria"), user("vera"), entitlement("maria", publish="a"))

    def same(after: PolicyDocument, name: str) -> bool:
        return AccessPolicy(before).rights("tcp", name).basis == AccessPolicy(after).rights("tcp", name).basis

    more = policy(
        user("maria"), user("vera"), entitlement("maria", publish="a"), entitlement("vera", publish="b")
    )
    assert same(replace(before, revision=9), "maria")
    assert same(more, "maria")
    assert not same(more, "vera")
    assert not same(
        policy(user("maria", token=hash_token("new")), entitlement("maria", publish="a")), "maria"
    )
    assert not same(policy(user("vera"), entitlement("maria", publish="a")), "maria")
    assert not same(policy(user("maria"), restricted=False), "maria")


def test_the_brokers_own_way_in_asks_for_nothing_and_may_do_all_whatever_the_transports_say() -> None:
    made = AccessPolicy(policy(user("maria")))
    assert made.authentication(BROKER_NAME) == "none"
    assert made.rights(BROKER_NAME, "") is ALL_RIGHTS
    assert made.authentication("udp") is None


@pytest.mark.parametrize(
    "who", [("maria", "*"), ("group:desk", "*"), ("*", "maria"), ("vera", "group:desk", "mar*")]
)
def test_each_of_those_whom_an_entitlement_names_is_meant_wherever_it_stands(who: tuple[str, ...]) -> None:
    given = replace(entitlement("nobody", publish="a.>"), who=who)
    made = AccessPolicy(policy(user("maria"), given))
    made.rights("tcp", "maria").check_publish(("a.b",))
    if "*" in who:
        made.rights("tcp", "").check_publish(("a.b",))
    else:
        with pytest.raises(ClientError):
            made.rights("tcp", "").check_publish(("a.b",))
