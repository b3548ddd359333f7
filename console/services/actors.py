"""Who asks for a change: every service that changes something takes an Actor and puts it into the audit."""

from __future__ import annotations

from dataclasses import dataclass

from console.choices import ActorKind


@dataclass(frozen=True, slots=True)
class Actor:
    """Who, by what means, from where. `user_id` is the account behind a person or a token."""

    kind: ActorKind
    name: str
    user_id: int | None = None
    source: str = ""
    request_id: str = ""


SYSTEM = Actor(ActorKind.SYSTEM, "system")


def schedule_actor(name: str) -> Actor:
    """The actor of a run that a schedule started."""
    return Actor(ActorKind.SCHEDULE, name)
