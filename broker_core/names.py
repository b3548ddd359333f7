"""What the broker calls itself and its own topics, and what instances and clients may be called."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

OWN: Final = "$"
"""Topics that start with it are the broker's own: nobody else publishes there, and only patterns that start so match."""
BROKER_NAME: Final = "$SLUICE"
"""The publisher of the broker's own records. No client may be called so."""
EVENTS_PREFIX: Final = f"{BROKER_NAME}."
"""Of the topics that the broker publishes to. They are always journaled."""
CLIENTS_TOPIC: Final = f"{EVENTS_PREFIX}clients"
"""What happens to clients, and samples of them."""
DECISIONS_TOPIC: Final = f"{EVENTS_PREFIX}decisions"
LEDGER_TOPIC: Final = f"{EVENTS_PREFIX}ledger"
"""What subscriptions have lost."""
KEPT_TOPIC: Final = f"{EVENTS_PREFIX}kept"
"""Of a group: what each member keeps for clients that are away."""
TRAFFIC_TOPIC: Final = f"{EVENTS_PREFIX}traffic"
"""A look each second at each client for whom something waits."""

SITE_PREFIX: Final = "site."
"""A client called so and by another instance's name is that instance's link: what it publishes keeps the sequences that it has
there. Only a user whose `clients` say so may be one."""
LINK_PREFIX: Final = "link."
"""A client called so and by a destination's name is the broker's own: it carries records to that destination."""
MAX_ORIGIN: Final = 64 - len(SITE_PREFIX)
"""Characters of an instance's name that links leave room for."""

NAME_CHARACTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
MAX_NAME = 64
"""Characters of a client's or an instance's name."""


@lru_cache(maxsize=65_536)
def is_name(text: str) -> bool:
    """Whether a client or an instance may be called so: 1 to 64 letters, digits, dots, dashes, underscores; not dots alone,
    which lead elsewhere in addresses and paths."""
    return 0 < len(text) <= MAX_NAME and NAME_CHARACTERS.issuperset(text) and text.strip(".") != ""


def link_client_name(instance: str) -> str:
    """As whom an instance publishes what it carries to another."""
    return f"{SITE_PREFIX}{instance}"


def publisher_origin(publisher: str) -> str:
    """The instance that accepted what a publisher of that name brought: its publisher sequences are that instance's sequences. ""
    for anybody who isn't a link."""
    return publisher.removeprefix(SITE_PREFIX) if publisher.startswith(SITE_PREFIX) else ""


def name_matches(pattern: str, name: str) -> bool:
    """Whether a client's name fits a pattern in which `*` stands for any run of characters. "" fits nothing."""
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
