"""What an upgrade makes of rows that are there."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

from console.models import AuditLink
from console.services import audit, audit_chain
from console.services.actors import Actor
from tests.console.services.test_audit_chain import by_hand

pytestmark = pytest.mark.django_db(transaction=True)
DUE = datetime(2026, 11, 21, 0, 30, tzinfo=UTC)
AT_ONCE = 1_000
"""Events are taken in so many at a time."""


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


def test_audit_events_from_before_become_a_chain_that_goes_on(actor: Actor) -> None:
    newest = MigrationExecutor(connection).loader.graph.leaf_nodes("console")[0][1]
    try:
        old = migrated_to("0022_identities").get_model("console", "AuditEvent")
        said = {"é": [1, 2.0, 2.5, None, {"deep": True}], "large": 2**53, "text": '"quoted"\n' + "x" * 2_000}
        old.objects.bulk_create(
            old(
                actor_kind="person", actor=f"maria {number}", action="login" if number % 3 else "policy.publish",
                object="sluice-1", before=said if number % 2 else None, after=number, reason="wörd", source="::1",
                expires_at=(None, DUE, DUE + timedelta(days=10_000))[number % 3],
            )
            for number in range(AT_ONCE + 3)
        )  # fmt: skip
        taken = list(old.objects.order_by("pk").values_list("pk", flat=True))
        migrated_to(newest)
        found = audit_chain.verify(timezone.now())
        assert (found.events, found.links, found.broken) == (len(taken), len(taken), None)
        links = list(AuditLink.objects.order_by("number"))
        assert [link.event_id for link in links] == taken
        assert [link.number for link in links] == list(range(1, len(taken) + 1))
        assert (links[0].former, found.head) == ("", links[-1].digest)

        audit.record(actor, "policy.publish", "sluice-1")
        found = audit_chain.verify(timezone.now())
        assert (found.events, found.broken) == (len(taken) + 1, None)
        with transaction.atomic():  # taken back, since it drops triggers as well
            by_hand("UPDATE console_auditevent SET actor = 'somebody else' WHERE id = %s", taken[AT_ONCE])
            broken = audit_chain.verify(timezone.now()).broken
            transaction.set_rollback(True)
        assert broken is not None
        assert (broken.event_id, broken.why) == (taken[AT_ONCE], "the event isn't what was written")
    finally:
        migrated_to(newest)


def test_a_database_without_audit_events_begins_an_empty_chain(actor: Actor) -> None:
    newest = MigrationExecutor(connection).loader.graph.leaf_nodes("console")[0][1]
    try:
        migrated_to("0022_identities")
    finally:
        migrated_to(newest)
    assert audit_chain.verify(timezone.now()) == audit_chain.Verified(0, 0, "", None)
    audit.record(actor, "policy.publish", "sluice-1")
    assert audit_chain.verify(timezone.now()).broken is None
