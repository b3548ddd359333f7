"""Redaction of password and token hashes in policy documents. Pure functions.

Hashes stay in the database and the broker. Pages, the API, differences, the audit log and files show "set"
instead. A document that comes back with "set", or without these fields, keeps the hash stored for the user
of that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SET = "set"
"""Text that replaces a hash."""
SECRETS = ("password", "token")
"""Fields of a user that are hashes."""


def redact_secrets(document: Any) -> Any:
    """Return a document, or a part with `access`, with its users' hashes replaced by "set".

    Other values are unchanged.
    """
    return _with_users(
        document,
        lambda user: {key: SET if key in SECRETS and value else value for key, value in user.items()},
    )


def restore_secrets(document: Any, *before: Mapping[str, Any]) -> Any:
    """Return a document with each "set" replaced by the stored hash of that user.

    The first document of `before` that has the hash counts. Without one the value stays "set", which is no
    valid hash, so publishing reports it.
    """
    known = {
        (name, key): user[key]
        for source in reversed(before)
        for name, user in _users(source)
        for key in SECRETS
        if user.get(key)
    }

    def restore(user: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: known.get((str(user.get("name")), key), value) if key in SECRETS and value == SET else value
            for key, value in user.items()
        }

    return _with_users(document, restore)


def _users(document: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    access = document.get("access")
    users = access.get("users") if isinstance(access, Mapping) else None
    listed = users if isinstance(users, (list, tuple)) else ()
    return [(str(user.get("name")), user) for user in listed if isinstance(user, Mapping)]


def _with_users(document: Any, change: Any) -> Any:
    """Return a copy with `change` applied to each user.

    Entries of a draft that are no users are unchanged.
    """
    if not isinstance(document, Mapping) or not _users(document):
        return document
    access = document["access"]
    users = [change(user) if isinstance(user, Mapping) else user for user in access["users"]]
    return {**document, "access": {**access, "users": users}}
