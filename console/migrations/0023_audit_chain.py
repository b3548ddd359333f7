"""The audit becomes a chain of hashes; the events that are there are taken in, the oldest first."""

from typing import Any

from django.db import migrations, models

from console.services.audit_chain import content_of, digest_of

AT_ONCE = 1_000


def take_in(apps: Any, schema_editor: Any) -> None:
    event_model, link_model = apps.get_model("console", "AuditEvent"), apps.get_model("console", "AuditLink")
    number, digest, links = 0, "", []
    for event in event_model._base_manager.order_by("pk").iterator(AT_ONCE):
        number, former, content = number + 1, digest, content_of(event)
        digest = digest_of(former, content)
        links.append(
            link_model(
                number=number, event_id=event.pk, content=content, former=former, digest=digest, expires_at=event.expires_at
            )
        )
        if len(links) == AT_ONCE:
            link_model.objects.bulk_create(links)
            links = []
    link_model.objects.bulk_create(links)
    if number:
        apps.get_model("console", "AuditHead").objects.create(only=1, number=number, digest=digest)


class Migration(migrations.Migration):
    dependencies = [("console", "0022_identities")]

    operations = [
        migrations.CreateModel(
            name="AuditHead",
            fields=[
                ("only", models.PositiveSmallIntegerField(default=1, primary_key=True, serialize=False)),
                ("number", models.BigIntegerField(default=0)),
                ("digest", models.CharField(blank=True, max_length=64)),
            ],
        ),
        migrations.CreateModel(
            name="AuditLink",
            fields=[
                ("number", models.BigIntegerField(primary_key=True, serialize=False)),
                ("event_id", models.BigIntegerField(unique=True)),
                ("content", models.CharField(max_length=64)),
                ("former", models.CharField(blank=True, max_length=64)),
                ("digest", models.CharField(max_length=64)),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={"ordering": ["number"]},
        ),
        migrations.RunPython(take_in, migrations.RunPython.noop),
    ]
