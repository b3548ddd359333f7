"""What an upgrade makes of rows that are there."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

pytestmark = pytest.mark.django_db(transaction=True)
DUE = datetime(2026, 11, 21, 0, 30, tzinfo=UTC)


def migrated_to(name: str) -> Any:
    """The tables and their models as of a migration."""
    executor = MigrationExecutor(connection)
    executor.migrate([("console", name)])
    return MigrationExecutor(connection).loader.project_state([("console", name)]).apps


def test_a_schedule_becomes_an_action_with_its_runs() -> None:
    newest = MigrationExecutor(connection).loader.graph.leaf_nodes("console")[0][1]
    try:
        old = migrated_to("0002_access")
        instance = old.get_model("console", "Instance").objects.create(name="old")
        schedules = old.get_model("console", "Schedule")
        weekly = schedules.objects.create(
            instance=instance, name="weekly", kind="archive", parameters={"age": "7d"}, weekday=5
        )
        schedules.objects.create(
            instance=instance, name="daily", kind="pipeline", hour=3, minute=5, enabled=False,
            parameters={"job": "lake", "options": {"skip-gaps": "yes"}},
        )  # fmt: skip
        run = old.get_model("console", "ActionRun").objects.create(
            instance=instance,
            kind="archive",
            actor="weekly",
            actor_kind="schedule",
            schedule=weekly,
            due_at=DUE,
            state="succeeded",
        )
        new = migrated_to("0005_schedules_gone")
        actions = {action.name: action for action in new.get_model("console", "Action").objects.all()}
        assert actions["weekly"].when == [{"on": "schedule", "every": "Saturday at 00:30Z"}]
        assert actions["weekly"].steps == [{"do": "archive", "age": "7d"}]
        assert actions["weekly"].started_at == DUE
        assert actions["daily"].when == [{"on": "schedule", "every": "03:05Z"}]
        assert actions["daily"].steps == [{"do": "pipeline", "job": "lake", "options": "skip-gaps=yes"}]
        assert not actions["daily"].enabled
        kept = new.get_model("console", "ActionRun").objects.get(pk=run.pk)
        assert (kept.action_id, kept.due_at) == (actions["weekly"].pk, DUE)
    finally:
        migrated_to(newest)
