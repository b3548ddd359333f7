"""Origins whose pages may connect by WebSocket, and how settings name them."""

from __future__ import annotations

import pytest

from broker_core.config import PolicyDocument
from broker_core.config.access import is_origin_allowed
from broker_core.errors import OperatorError
from tests.support.brokers import tcp_policy


@pytest.mark.parametrize(
    ("origin", "origins", "may"),
    [
        ("", (), True),
        ("http://broker:9008", (), True),
        ("https://broker:9008", (), True),
        ("https://desk.example", (), False),
        ("null", (), False),
        ("https://desk.example", ("https://desk.example",), True),
        ("http://desk.example", ("https://desk.example",), False),
        ("https://desk.example.evil", ("https://desk.example",), False),
        ("https://a", ("*",), True),
        ("null", ("*",), True),
        ("https://broker:9008@evil", (), False),
        ("https://broker", (), False),
    ],
)
def test_a_page_may_connect_when_it_is_from_there_or_named(
    origin: str, origins: tuple[str, ...], may: bool
) -> None:
    assert is_origin_allowed(origin, "broker:9008", origins) is may


def test_without_a_host_nobody_is_from_there() -> None:
    assert not is_origin_allowed("null", "", ())


@pytest.mark.parametrize(
    ("origin", "fits"),
    [
        ("https://desk.example", True),
        ("http://localhost:8000", True),
        ("*", True),
        ("desk.example", False),
        ("https://desk.example/", False),
        ("ftp://desk", False),
        ("https://", False),
        ("https://[", False),
        ("", False),
        ("*.example", False),
    ],
)
def test_an_origin_is_written_as_browsers_send_it(origin: str, fits: bool) -> None:
    document = tcp_policy().to_dict()
    document["transports"][0]["origins"] = [origin]
    if fits:
        assert PolicyDocument.from_dict(document).transports[0].origins == (origin,)
    else:
        with pytest.raises(OperatorError, match="origin"):
            PolicyDocument.from_dict(document)
