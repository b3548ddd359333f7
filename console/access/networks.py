"""IP addresses and networks, and the address of a client behind proxies. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network
MAX_HOPS = 20
"""Maximum entries of X-Forwarded-For that are examined, from the nearest proxy on."""


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Return networks or single addresses such as `10.0.0.0/8`, `::1`. Raises ValueError."""
    return tuple(ip_network(text.strip(), strict=False) for text in texts if text.strip())


def is_in_networks(address: str, networks: Sequence[Network]) -> bool:
    """Return whether an address is in one of the networks; False for an invalid address."""
    found = _parsed(address)
    return found is not None and any(found in network for network in networks)


def client_address(peer: str, forwarded_for: str, proxies: Sequence[Network]) -> str:
    """Return the client's address of a request: the peer's, or behind trusted proxies the nearest untrusted
    one.

    Earlier entries of X-Forwarded-For were written by that untrusted client, so they are ignored.
    """
    nearest = peer
    for entry in reversed(forwarded_for.split(",")[-MAX_HOPS:] if forwarded_for else []):
        found = _parsed(entry.strip())
        if found is None or not is_in_networks(nearest, proxies):
            break
        nearest = str(found)
    return nearest


def rate_limit_prefix(address: str) -> str:
    """Return the key by which limits are counted for an address.

    It is the IPv4 address, or the /64 network of an IPv6 address, all of which one client can use.
    """
    found = _parsed(address)
    return str(ip_network((found, 64), strict=False)) if isinstance(found, IPv6Address) else address


def _parsed(text: str) -> IPv4Address | IPv6Address | None:
    """Return an address, with an IPv4 address in IPv6 form as IPv4; None for other texts."""
    try:
        found = ip_address(text)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found
