"""How somebody wants the console."""

from __future__ import annotations

from collections.abc import Mapping

from console.models import UserPreferences
from console.services.actors import Actor


def preferences_of(user_id: int | None) -> UserPreferences:
    """Theirs; the defaults for whoever never saved any."""
    found = UserPreferences.objects.filter(user_id=user_id).first() if user_id is not None else None
    return found if found is not None else UserPreferences()


def save(actor: Actor, wanted: Mapping[str, str]) -> None:
    """Keep them, in place of those before."""
    UserPreferences.objects.update_or_create(user_id=actor.account_id, defaults=dict(wanted))
