"""Addresses and networks as people write them, and who stands behind a proxy. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network
MAX_HOPS = 20
"""Entries of X-Forwarded-For that are looked at, from the nearest proxy on."""


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """`10.0.0.0/8`, `::1`: networks, or addresses alone. Raises ValueError with what isn't one."""
    return tuple(ip_network(text.strip(), strict=False) for text in texts if text.strip())


def is_in_networks(address: str, networks: Sequence[Network]) -> bool:
    """Whether an address lies in one of the networks. What isn't an address lies in none."""
    found = _parsed(address)
    return found is not None and any(found in network for network in networks)


def client_address(peer: str, forwarded_for: str, proxies: Sequence[Network]) -> str:
    """The address that a request comes from: the peer's, or, behind proxies of ours, the nearest that isn't one of them.

    Whatever stands to the left of that in X-Forwarded-For is what somebody wrote there who isn't ours.
    """
    nearest = peer
    for entry in reversed(forwarded_for.split(",")[-MAX_HOPS:] if forwarded_for else []):
        found = _parsed(entry.strip())
        if found is None or not is_in_networks(nearest, proxies):
            break
        nearest = str(found)
    return nearest


def rate_limit_prefix(address: str) -> str:
    """What one somebody can have for the asking: an IPv4 address, or the 64 bits of an IPv6 network."""
    found = _parsed(address)
    return str(ip_network((found, 64), strict=False)) if isinstance(found, IPv6Address) else address


def _parsed(text: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(text)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found
