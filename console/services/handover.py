"""Shift handover: the time up to which each operator has seen the events of an instance."""

from __future__ import annotations

from datetime import datetime, timedelta

from console.models import ShiftHandover
from console.services.actors import Actor

DEFAULT_PERIOD = timedelta(hours=8)
"""Period shown to an operator without a stored time: one shift."""


def read_until(actor: Actor, now: datetime) -> datetime:
    """Return the time up to which the operator has read events; by default the full hour a shift ago."""
    found = ShiftHandover.objects.filter(user_id=actor.account_id).first()
    return (
        found.seen_until
        if found is not None
        else (now - DEFAULT_PERIOD).replace(minute=0, second=0, microsecond=0)
    )


def record_read(actor: Actor, now: datetime) -> None:
    """Record that the operator has read all events up to `now`."""
    ShiftHandover.objects.update_or_create(user_id=actor.account_id, defaults={"seen_until": now})
