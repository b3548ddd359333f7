"""Settings that only STOMP transports have."""

from __future__ import annotations

import pytest

from broker_core.config import PolicyDocument, default_policy
from broker_core.config.transports import ResumeFrom
from broker_core.errors import OperatorError


def document(transport: int, **settings: object) -> dict[str, object]:
    found = default_policy("a").to_dict()
    found["transports"][transport] |= settings
    return found


def test_they_are_read_and_said_again() -> None:
    policy = PolicyDocument.from_dict(document(2, resume="last-acked", max_body=65_536))
    own = policy.transport("stomp")
    assert (own.resume, own.max_body) == (ResumeFrom.LAST_ACKED, 65_536)
    assert PolicyDocument.from_dict(policy.to_dict()) == policy


@pytest.mark.parametrize(
    ("transport", "settings", "problem"),
    [
        (0, {"resume": "last-acked"}, "resume is a setting of transports of kind stomp"),
        (1, {"max_body": 65_536}, "max_body is a setting of transports of kind stomp"),
        (2, {"resume": "yesterday"}, "resume must be one of now, last-acked"),
        (3, {"max_body": 100}, "max_body must be a whole number"),
    ],
)
def test_what_cannot_be_is_named(transport: int, settings: dict[str, object], problem: str) -> None:
    with pytest.raises(OperatorError) as raised:
        PolicyDocument.from_dict(document(transport, **settings))
    assert problem in raised.value.details["problems"][0]
