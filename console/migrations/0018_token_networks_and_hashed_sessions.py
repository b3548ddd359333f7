"""Tokens may be bound to networks. Sessions are found by a hash of their key now, so those that are there are nobody's."""

from typing import Any

import console.models.access
from django.db import migrations, models


def forget_sessions(apps: Any, schema_editor: Any) -> None:
    apps.get_model("sessions", "Session").objects.all().delete()


class Migration(migrations.Migration):
    dependencies = [
        ("console", "0017_origins"),
        ("sessions", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="apitoken",
            name="networks",
            field=models.JSONField(
                blank=True, default=list, validators=[console.models.access.check_networks]
            ),
        ),
        migrations.RunPython(forget_sessions, migrations.RunPython.noop),
    ]
