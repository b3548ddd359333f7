"""Hashes of passwords and tokens in policy documents: they stay in the database and the broker, and nowhere else. Pure.

Whatever leaves by a page, the API, a difference, the audit or a file says "set" instead; and who sends "set" back, or a
file that was written without them, keeps the hash that is stored for the user of that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SET = "set"
SECRETS = ("password", "token")


def redact_secrets(document: Any) -> Any:
    """A document, or a part of one with `access`, whose users' hashes read "set". Anything else as it is."""
    return _with_users(
        document,
        lambda user: {key: SET if key in SECRETS and value else value for key, value in user.items()},
    )


def restore_secrets(document: Any, *before: Mapping[str, Any]) -> Any:
    """A document whose "set" is again the hash of that user in the first of `before` that has one.

    One that nobody has stays "set", which is no hash: whoever publishes it is told so.
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
    """A copy with each user changed; a draft may hold anything, so only what is a user is touched."""
    if not isinstance(document, Mapping) or not _users(document):
        return document
    access = document["access"]
    users = [change(user) if isinstance(user, Mapping) else user for user in access["users"]]
    return {**document, "access": {**access, "users": users}}
