"""Queries for actions (automations) and their newest runs."""

from __future__ import annotations

from django.db.models import OuterRef, QuerySet, Subquery

from broker_core.errors import OperatorError
from console.models import Action, ActionRun, Instance


def actions(instance: Instance) -> QuerySet[Action]:
    """Return an instance's actions by name, with the state (`last_state`) and moment (`last_at`) of the
    newest run.
    """
    newest = ActionRun.objects.filter(action=OuterRef("pk")).order_by("-created_at")
    return (
        Action.objects.filter(instance=instance)
        .select_related("instance")
        .annotate(
            last_state=Subquery(newest.values("state")[:1]), last_at=Subquery(newest.values("created_at")[:1])
        )
        .order_by("name")
    )


def action(instance: Instance, action_id: int | str) -> Action:
    """Return an action of the instance. Raises OperatorError `unknown_action`."""
    text = str(action_id)
    found = (
        actions(instance).filter(pk=int(text)).first()
        if text.isascii() and text.isdigit() and len(text) < 18
        else None
    )
    if found is None:
        raise OperatorError(
            "unknown_action", f"The action {text[:50]!r} doesn't exist.", "See /api/v1/actions."
        )
    return found
