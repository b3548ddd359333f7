"""Every schedule becomes an action with that schedule and one step; its runs stay with it."""

from __future__ import annotations

from django.db import migrations
from django.utils import timezone

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def step_of(schedule):
    if schedule.kind == "pipeline":
        options = "\n".join(
            f"{name}={value}" for name, value in (schedule.parameters.get("options") or {}).items()
        )
        return {"do": "pipeline", "job": schedule.parameters.get("job", "lake"), "options": options}
    return {
        "do": schedule.kind,
        "age": str(schedule.parameters.get("age") or f"{schedule.parameters.get('age_s', 604800)}s"),
    }


def convert(apps, schema_editor):
    action_model, run = apps.get_model("console", "Action"), apps.get_model("console", "ActionRun")
    for schedule in apps.get_model("console", "Schedule").objects.all():
        time = f"{schedule.hour:02d}:{schedule.minute:02d}Z"
        every = time if schedule.weekday is None else f"{DAYS[schedule.weekday]} at {time}"
        newest = run.objects.filter(schedule=schedule).order_by("-due_at").first()
        action = action_model.objects.create(
            instance=schedule.instance,
            name=schedule.name,
            enabled=schedule.enabled,
            when=[{"on": "schedule", "every": every}],
            steps=[step_of(schedule)],
            started_at=newest.due_at if newest is not None else schedule.created_at or timezone.now(),
        )
        run.objects.filter(schedule=schedule).update(action=action)


class Migration(migrations.Migration):
    dependencies = [
        ("console", "0003_actions"),
    ]

    operations = [migrations.RunPython(convert, migrations.RunPython.noop)]
