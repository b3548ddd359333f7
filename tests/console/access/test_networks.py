from __future__ import annotations

import pytest

from console.access.networks import client_address, is_in_networks, parse_networks, rate_limit_prefix

PROXIES = parse_networks(["10.0.0.0/8", "::1"])


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("10.0.0.1", "192.0.2.7", "192.0.2.7"),
        ("10.0.0.1", "203.0.113.9, 192.0.2.7", "192.0.2.7"),
        ("10.0.0.1", "192.0.2.7, 10.0.0.2", "192.0.2.7"),
        ("::1", "2001:db8::5", "2001:db8::5"),
        ("10.0.0.1", "192.0.2.7, nonsense", "10.0.0.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.3", "10.0.0.3"),
        ("192.0.2.1", "10.0.0.1", "192.0.2.1"),
        ("::ffff:10.0.0.1", "192.0.2.7", "192.0.2.7"),
        ("", "192.0.2.7", ""),
        ("10.0.0.1", "192.0.2.7," + "10.0.0.2," * 1000 + "10.0.0.2", "10.0.0.2"),
    ],
)
def test_the_nearest_that_isn_t_a_proxy_of_ours_is_the_client(peer: str, forwarded: str, client: str) -> None:
    assert client_address(peer, forwarded, PROXIES) == client


def test_without_configured_proxies_the_header_says_nothing() -> None:
    assert client_address("127.0.0.1", "192.0.2.7", ()) == "127.0.0.1"


def test_an_address_lies_in_networks_of_its_kind() -> None:
    assert is_in_networks("10.3.0.1", PROXIES)
    assert not is_in_networks("fd00::1", PROXIES)
    assert not is_in_networks("nonsense", PROXIES)


def test_what_isn_t_a_network_is_named() -> None:
    with pytest.raises(ValueError, match=r"10\.0\.0\.300"):
        parse_networks(["10.0.0.300"])


def test_an_ipv6_neighbourhood_is_its_64_bits() -> None:
    assert (
        rate_limit_prefix("2001:db8:0:1::5")
        == rate_limit_prefix("2001:db8:0:1:ffff::9")
        == "2001:db8:0:1::/64"
    )
    assert rate_limit_prefix("192.0.2.7") == "192.0.2.7"
