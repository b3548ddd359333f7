"""The one place where it is decided whether somebody may do something. API, pages and live feed all ask here.

Every address declares what it needs (`needs` on API views, `@permitted` on pages; a test walks all of them), and the door
calls `require` with what the request is about. Who holds what are Grant rows; what each role may do is
console.choices.ROLE_PERMISSIONS; how scopes work is console/access/rights.py.
"""

from __future__ import annotations

from broker_core.errors import OperatorError
from console.choices import ActorKind, Permission
from console.services.actors import Actor

_TRUSTED = (ActorKind.SYSTEM, ActorKind.SCHEDULE, ActorKind.ACTION)


def is_allowed(
    actor: Actor, permission: Permission, *, instance: str = "", client: str = "", topic: str = ""
) -> bool:
    """Whether the actor may do it. Schedules and the system act for those who set them up, who were asked then."""
    if actor.kind in _TRUSTED:
        return True
    return actor.access is not None and actor.access.allows(
        permission, instance=instance, client=client, topic=topic
    )


def require_permission(
    actor: Actor, permission: Permission, *, instance: str = "", client: str = "", topic: str = ""
) -> None:
    """Raise OperatorError not_allowed unless the actor may do it.

    `instance` is empty for what concerns the whole installation (people, the audit); `client` is a client's name and
    `topic` a topic or topic pattern, when it is about one.
    """
    if is_allowed(actor, permission, instance=instance, client=client, topic=topic):
        return
    about = {"instance": instance, "client": client, "topic": topic}
    words = " of ".join(f"{key} {value}" for key, value in reversed(about.items()) if value)
    raise OperatorError(
        "not_allowed",
        f"{actor.name} may not {Permission(permission).label.lower()}" + (f" ({words})." if words else "."),
        f"Ask an administrator for a role with `{permission}`.",
        permission=str(permission),
        **{key: value for key, value in about.items() if value},
    )
