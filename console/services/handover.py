"""Handover: up to which moment somebody has seen what happened."""

from __future__ import annotations

from datetime import datetime, timedelta

from console.models import ShiftHandover
from console.services.actors import Actor

FIRST_LOOK = timedelta(hours=8)
"""What somebody is told of who never said that they had seen anything: a shift."""


def last_seen(actor: Actor, now: datetime) -> datetime:
    """The moment; for whoever never said so, a shift ago."""
    found = ShiftHandover.objects.filter(user_id=actor.account_id).first()
    return (
        found.seen_until
        if found is not None
        else (now - FIRST_LOOK).replace(minute=0, second=0, microsecond=0)
    )


def record_seen(actor: Actor, now: datetime) -> None:
    """They have seen everything until now."""
    ShiftHandover.objects.update_or_create(user_id=actor.account_id, defaults={"seen_until": now})
