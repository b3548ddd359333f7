"""Default action of a new instance: the weekly archive of seed 000."""

from __future__ import annotations

from django.utils import timezone

from console.models import Action, Instance
from console.services.actions.definition import check_steps, check_triggers

WEEKLY_ARCHIVE = "weekly archive"


def make_defaults(instance: Instance) -> None:
    """Create the action that archives segments older than seven days, each Saturday at 00:30 UTC."""
    Action.objects.get_or_create(
        instance=instance,
        name=WEEKLY_ARCHIVE,
        defaults={
            "when": check_triggers([{"on": "schedule", "every": "Saturday at 00:30Z"}]),
            "steps": check_steps([{"do": "archive", "age": "7d"}]),
            "started_at": timezone.now(),
        },
    )
