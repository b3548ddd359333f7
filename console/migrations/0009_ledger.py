import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("console", "0008_policies"),
    ]

    operations = [
        migrations.CreateModel(
            name="Loss",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("at", models.DateTimeField()),
                ("client", models.CharField(max_length=64)),
                ("subscription", models.CharField(max_length=128)),
                ("topic", models.CharField(blank=True, max_length=1024)),
                ("cause", models.CharField(max_length=32)),
                ("rule", models.CharField(blank=True, max_length=100)),
                ("messages", models.BigIntegerField()),
                ("bytes", models.BigIntegerField(default=0)),
                ("unjournaled", models.BigIntegerField(default=0)),
                ("first", models.CharField(blank=True, max_length=128)),
                ("last", models.CharField(blank=True, max_length=128)),
                (
                    "instance",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="console.instance"
                    ),
                ),
            ],
            options={
                "ordering": ["-at", "-id"],
            },
        ),
        migrations.AddIndex(
            model_name="decision",
            index=models.Index(fields=["instance", "rule", "-at"], name="decision_of_rule"),
        ),
        migrations.AddIndex(
            model_name="loss",
            index=models.Index(fields=["instance", "-at"], name="loss_newest"),
        ),
        migrations.AddIndex(
            model_name="loss",
            index=models.Index(fields=["instance", "client", "-at"], name="loss_of_client"),
        ),
        migrations.AddIndex(
            model_name="loss",
            index=models.Index(fields=["instance", "rule", "-at"], name="loss_of_rule"),
        ),
    ]
