"""Permission checks.

API, pages and live feed all use `require_permission` or `is_allowed`; no other module decides.

Each URL declares its permission (`needs` on API views, `@requires_permission` on pages; a test checks all
URLs). The request handler then calls `require_permission` with the objects of the request. `Grant` rows
store which role an account has, `console.choices.ROLE_PERMISSIONS` says what a role allows,
`console/access/rights.py` explains scopes.
"""

from __future__ import annotations

from broker_core.errors import OperatorError
from console.choices import ActorKind, Permission
from console.services.actors import Actor

_TRUSTED = (ActorKind.SYSTEM, ActorKind.SCHEDULE, ActorKind.ACTION)


def is_allowed(
    actor: Actor, permission: Permission, *, instance: str = "", client: str = "", topic: str = ""
) -> bool:
    """Whether the actor has the permission for the given instance, client and topic.

    The system, schedules and actions always have it: the check was made when an operator set them up.
    """
    if actor.kind in _TRUSTED:
        return True
    return actor.access is not None and actor.access.allows(
        permission, instance=instance, client=client, topic=topic
    )


def require_permission(
    actor: Actor, permission: Permission, *, instance: str = "", client: str = "", topic: str = ""
) -> None:
    """Raise OperatorError `not_allowed` unless the actor has the permission.

    Args:
        actor: The account or process that acts.
        permission: The permission needed.
        instance: Name of the instance; empty for matters of the whole installation (accounts, audit).
        client: Name of the client concerned, if any.
        topic: Topic or topic pattern concerned, if any.
    """
    if is_allowed(actor, permission, instance=instance, client=client, topic=topic):
        return
    about = {"instance": instance, "client": client, "topic": topic}
    words = " of ".join(f"{key} {value}" for key, value in reversed(about.items()) if value)
    raise OperatorError(
        "not_allowed",
        f"{actor.name} lacks the permission to {Permission(permission).label.lower()}"
        + (f" ({words})." if words else "."),
        f"Ask an administrator for a role with `{permission}`.",
        permission=str(permission),
        **{key: value for key, value in about.items() if value},
    )
