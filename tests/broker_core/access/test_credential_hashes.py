"""Hashes of passwords and tokens."""

from __future__ import annotations

import pytest

from broker_core.access import hash_password, hash_token, make_token, verify_password
from broker_core.access.credential_hashes import password_hash_problem, token_hash_problem


def test_a_password_matches_its_hash_and_no_other_does() -> None:
    hashed = hash_password("grüezi")
    assert verify_password("grüezi", hashed)
    assert not verify_password("gruezi", hashed)
    assert not verify_password("", hashed)
    assert "grüezi" not in hashed
    assert hash_password("grüezi") != hashed, "each has its own salt"
    assert password_hash_problem(hashed) == ""


def test_tokens_differ_and_are_known_by_their_hash() -> None:
    token = make_token()
    assert len(token) >= 40 and token != make_token()
    assert hash_token(token) == hash_token(token) != token
    assert token_hash_problem(hash_token(token)) == ""


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "hunter2",
        "scrypt$1$2$3",
        "scrypt$16384$8$1$not base64!$AAAA",
        "md5$16384$8$1$AAAAAAAAAAAAAAAA$AAAA",
        "scrypt$a$8$1$AAAA$AAAA",
        "scrypt$16384$8$1$QUFBQUFBQUE=$QUE=",
        "scrypt$16383$8$1$QUFBQUFBQUFBQUFB$" + "QUFB" * 12,
        "scrypt$1048576$64$1$QUFBQUFBQUFBQUFB$" + "QUFB" * 12,
    ],
)
def test_what_is_no_hash_or_costs_too_much_is_named(wrong: str) -> None:
    assert password_hash_problem(wrong)


@pytest.mark.parametrize("wrong", ["", "secret", "sha256$", "sha256$" + "g" * 64, "sha256$" + "A" * 64])
def test_what_is_no_tokens_hash_is_named(wrong: str) -> None:
    assert token_hash_problem(wrong)
