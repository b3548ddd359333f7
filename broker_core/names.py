"""Names of the broker and its own topics, and the rules for names of instances and clients."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

RESERVED_PREFIX: Final = "$"
"""Prefix of the broker's own topics.

Only the broker publishes to them, and only patterns with it match them.
"""
BROKER_NAME: Final = "$SLUICE"
"""Publisher of the broker's own records. No client may have this name."""
EVENTS_PREFIX: Final = f"{BROKER_NAME}."
"""Prefix of the topics that the broker publishes to. They are always journaled."""
CLIENTS_TOPIC: Final = f"{EVENTS_PREFIX}clients"
"""Topic of events and samples of clients."""
DECISIONS_TOPIC: Final = f"{EVENTS_PREFIX}decisions"
"""Topic of decisions about clients."""
LEDGER_TOPIC: Final = f"{EVENTS_PREFIX}ledger"
"""Topic of losses of subscriptions."""
POSITIONS_TOPIC: Final = f"{EVENTS_PREFIX}kept"
"""Topic of a group on which each member publishes the positions that it stores for absent clients."""
TRAFFIC_TOPIC: Final = f"{EVENTS_PREFIX}traffic"
"""Topic of samples, taken each second, of clients with waiting messages."""

SITE_PREFIX: Final = "site."
"""Prefix of clients that are links of other instances.

The rest of the client name is that instance's name. Its records keep the sequences that they have there. Only
a user whose `clients` permit it may log on with such a name.
"""
LINK_PREFIX: Final = "link."
"""Prefix of the broker's own link clients.

The rest of the name is the destination to which it forwards records.
"""
MAX_ORIGIN: Final = 64 - len(SITE_PREFIX)
"""Maximum characters of an instance's name, so that a link's client name fits MAX_NAME."""

NAME_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
MAX_NAME = 64
"""Maximum characters of a client's or an instance's name."""


@lru_cache(maxsize=65_536)
def is_name(text: str) -> bool:
    """Return whether a text is a valid name of a client or an instance.

    A name has 1 to 64 letters, digits, dots, dashes and underscores. Dots alone are invalid: they have a
    meaning in addresses and paths.
    """
    return 0 < len(text) <= MAX_NAME and NAME_CHARACTERS.issuperset(text) and text.strip(".") != ""


def is_host_name(text: str) -> bool:
    """Return whether a text can be looked up as the name or address of a host.

    False for empty labels and for labels of more than 63 characters: a look-up raises UnicodeError for them.
    """
    try:
        text.encode("idna")
    except UnicodeError:
        return False
    return bool(text)


def link_client_name(instance: str) -> str:
    """Return the client name with which an instance publishes forwarded records to another instance."""
    return f"{SITE_PREFIX}{instance}"


def publisher_origin(publisher: str) -> str:
    """Return the instance that accepted the records of a link's client, or "" for other publishers.

    The publisher sequences of a link are the sequences of that instance.
    """
    return publisher.removeprefix(SITE_PREFIX) if publisher.startswith(SITE_PREFIX) else ""


def name_matches(pattern: str, name: str) -> bool:
    """Return whether a client's name matches a pattern in which `*` stands for any characters.

    "" matches nothing.
    """
    if not pattern:
        return False
    first, *others = pattern.split("*")
    if not others:
        return pattern == name
    last = others.pop()
    if len(name) < len(first) + len(last) or not (name.startswith(first) and name.endswith(last)):
        return False
    at, end = len(first), len(name) - len(last)
    for part in others:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True
