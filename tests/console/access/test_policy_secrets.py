"""Password hashes never leave the control plane: exports show "set", and importing "set" keeps the stored
hash.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from console.access.policy_secrets import redact_secrets, restore_secrets

SECRET = st.none() | st.text("abcdef$", min_size=4, max_size=9)
USERS = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from("abcdef"), "password": SECRET},
        optional={"token": SECRET, "groups": st.just(["desk"])},
    ),
    unique_by=lambda user: user["name"],
)
DOCUMENTS = st.builds(lambda users: {"revision": 1, "access": {"users": users, "entitlements": []}}, USERS)


@given(DOCUMENTS)
def test_what_left_and_comes_back_is_what_it_was(document: dict[str, Any]) -> None:
    assert restore_secrets(redact_secrets(document), document) == document


@given(DOCUMENTS)
def test_nothing_that_leaves_holds_a_secret(document: dict[str, Any]) -> None:
    for user in redact_secrets(document)["access"]["users"]:
        assert {user.get("password"), user.get("token")} <= {None, "set"}


@given(DOCUMENTS, DOCUMENTS)
def test_the_nearer_document_is_asked_first(nearer: dict[str, Any], farther: dict[str, Any]) -> None:
    found = restore_secrets(redact_secrets(nearer), nearer, farther)
    assert found == nearer


def test_somebody_elses_secret_isnt_taken_and_an_unknown_one_stays_unset() -> None:
    before = {"access": {"users": [{"name": "a", "password": "scrypt$1"}]}}
    sent = {"access": {"users": [{"name": "b", "password": "set"}, {"name": "a", "password": "scrypt$2"}]}}
    assert restore_secrets(sent, before) == sent


def test_what_is_no_document_passes_through() -> None:
    for other in (None, 5, [], {}, {"access": None}, {"access": {"users": 3}}, {"access": {"users": [1]}}):
        assert redact_secrets(other) == other
        assert restore_secrets(other, {}) == other
