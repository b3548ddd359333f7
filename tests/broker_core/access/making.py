"""Policies with access, in few words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from broker_core.access import hash_token
from broker_core.config import (
    AccessSettings,
    EntitlementSettings,
    PolicyDocument,
    TransportSettings,
    UserSettings,
    default_policy,
)


def user(
    name: str, *, groups: tuple[str, ...] = (), clients: tuple[str, ...] = (), **proofs: str
) -> UserSettings:
    """A user with a token of their name, and other proofs."""
    return UserSettings(name, **{"token": hash_token(name), **proofs}, groups=groups, clients=clients)


def entitlement(
    who: str,
    *,
    publish: str = "",
    subscribe: str = "",
    filter: str | None = None,
    transports: tuple[str, ...] = (),
) -> EntitlementSettings:
    """Patterns divided by blanks."""
    return EntitlementSettings((who,), transports, tuple(publish.split()), tuple(subscribe.split()), filter)


def policy(*parts: UserSettings | EntitlementSettings, **transport: Any) -> PolicyDocument:
    """Return a policy with one transport, "tcp", with token authentication, restricted by default."""
    settings = TransportSettings(
        "tcp", "tcp", 0, **{"authentication": "token", "restricted": True, **transport}
    )
    access = AccessSettings(
        tuple(part for part in parts if isinstance(part, UserSettings)),
        tuple(part for part in parts if isinstance(part, EntitlementSettings)),
    )
    return replace(default_policy("test-1"), transports=(settings,), access=access)
