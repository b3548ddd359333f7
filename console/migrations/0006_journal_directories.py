"""JournalDirectory and JournalArchiveDirectory of an instance; journaled topics may have message types and filters."""

from __future__ import annotations

from django.db import migrations, models

import console.models.instance


class Migration(migrations.Migration):
    dependencies = [
        ("console", "0005_schedules_gone"),
    ]

    operations = [
        migrations.AddField(
            model_name="instance",
            name="archive_directory",
            field=models.CharField(
                blank=True, max_length=1024, null=True, validators=[console.models.instance.check_directory]
            ),
        ),
        migrations.AddField(
            model_name="instance",
            name="journal_directory",
            field=models.CharField(
                blank=True, max_length=1024, null=True, validators=[console.models.instance.check_directory]
            ),
        ),
        migrations.AlterField(
            model_name="instance",
            name="journaled_topics",
            field=models.JSONField(
                blank=True,
                default=console.models.instance.all_topics,
                validators=[console.models.instance.check_journaled_topics],
            ),
        ),
    ]
