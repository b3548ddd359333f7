"""The actor of a change.

Every service that changes something takes an `Actor` and records it in the audit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth.models import User

from console.access.rights import EffectiveAccess, GrantedRight
from console.choices import ROLE_PERMISSIONS, ActorKind, Permission
from console.models import ApiToken, Grant


@dataclass(frozen=True, slots=True)
class Actor:
    """Person, token, schedule or process that acts, with its origin.

    `user_id` is the account of a person or of a token's owner, `source` the caller's IP address. `access`
    is None for an actor without stored permissions, such as the system.
    """

    kind: ActorKind
    name: str
    user_id: int | None = None
    source: str = ""
    request_id: str = ""
    access: EffectiveAccess | None = field(default=None, compare=False, repr=False)

    @property
    def account_id(self) -> int:
        """The id of the actor's account. Only for persons and tokens, which always have one."""
        assert self.user_id is not None
        return self.user_id


SYSTEM = Actor(ActorKind.SYSTEM, "system")


def schedule_actor(name: str) -> Actor:
    """Return the actor of a run that a schedule started."""
    return Actor(ActorKind.SCHEDULE, name)


def actor_of(request: Any) -> Actor:
    """Return the actor of a request: a page's (Django) or the API's (DRF), by session or by token."""
    user, token = getattr(request, "user", None), getattr(request, "auth", None)
    name = (user.get_username() if user is not None else "") or "anonymous"
    kind = ActorKind.PERSON
    if isinstance(token, ApiToken):
        kind, name = ActorKind.TOKEN, f"{name} by token {token.name}"
    return Actor(
        kind,
        name,
        user.pk if user is not None else None,
        str(request.META.get("REMOTE_ADDR") or ""),
        str(getattr(request, "request_id", "") or ""),
        access_of_request(request),
    )


def require_user(request: Any) -> User:
    """Return the account that sent a request. Only for views that require a login."""
    user = request.user
    assert isinstance(user, User)
    return user


def access_of(user: Any, token: Any = None) -> EffectiveAccess:
    """Return the permissions that an account has now, limited to the scope of `token` if given. One query."""
    if user is None or not (user.is_authenticated and user.is_active):
        return EffectiveAccess()
    rights = tuple(
        GrantedRight(
            ROLE_PERMISSIONS[grant.role],
            grant.instance.name if grant.instance else "",
            grant.client_pattern,
            grant.topic_pattern,
        )
        for grant in Grant.objects.filter(user=user).select_related("instance")
    )
    scope = frozenset(Permission(one) for one in token.scope) if isinstance(token, ApiToken) else None
    return EffectiveAccess(rights, scope)


def access_of_request(request: Any) -> EffectiveAccess:
    """Return the permissions of a request's account. The first call stores them on the request."""
    base = getattr(request, "_request", request)
    user, token = getattr(request, "user", None), getattr(request, "auth", None)
    key = (getattr(user, "pk", None), getattr(token, "pk", None))
    known = getattr(base, "sluice_access", None)
    if known is None or known[0] != key:
        known = base.sluice_access = (key, access_of(user, token))
    return known[1]
