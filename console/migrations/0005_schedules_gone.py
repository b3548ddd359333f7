"""What schedules were is in actions now."""

from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("console", "0004_schedules_become_actions"),
    ]

    operations = [
        migrations.RemoveField(
            model_name="actionrun",
            name="schedule",
        ),
        migrations.DeleteModel(
            name="Schedule",
        ),
    ]
