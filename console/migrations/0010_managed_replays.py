"""Managed replays as operators see them."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("console", "0009_ledger")]

    operations = [
        migrations.CreateModel(
            name="ManagedReplay",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=64)),
                ("client", models.CharField(max_length=64)),
                ("topic", models.CharField(max_length=1024)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("waiting", "waiting"),
                            ("running", "running"),
                            ("following", "following"),
                            ("paused", "paused"),
                            ("completed", "completed"),
                            ("cancelled", "cancelled"),
                        ],
                        max_length=16,
                    ),
                ),
                ("progress", models.FloatField(default=0)),
                ("shown", models.JSONField(default=dict)),
                ("author", models.CharField(blank=True, max_length=200)),
                ("created_at", models.DateTimeField()),
                ("reported_at", models.DateTimeField()),
                (
                    "instance",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="replays",
                        to="console.instance",
                    ),
                ),
            ],
            options={
                "ordering": ["-created_at", "name"],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("instance", "name", "created_at"), name="managed_replay_once"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("progress__gte", 0), ("progress__lte", 1)),
                        name="managed_replay_progress",
                    ),
                ],
            },
        ),
    ]
