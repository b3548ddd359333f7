"""Operators' preferences for the console, such as the theme."""

from __future__ import annotations

from collections.abc import Mapping

from console.models import UserPreferences
from console.services.actors import Actor


def preferences_of(user_id: int | None) -> UserPreferences:
    """Return the user's saved preferences, or the defaults."""
    found = UserPreferences.objects.filter(user_id=user_id).first() if user_id is not None else None
    return found if found is not None else UserPreferences()


def save(actor: Actor, values: Mapping[str, str]) -> None:
    """Store the actor's preferences."""
    UserPreferences.objects.update_or_create(user_id=actor.account_id, defaults=dict(values))
