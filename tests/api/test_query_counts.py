"""Number of queries of each page and endpoint: independent of the number of rows, and at most the recorded
number.

SLUICE_RECORD_QUERIES=1 python -m pytest tests/api/test_query_counts.py     # updates query_counts.json
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path

from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from console.choices import Permission, Role
from console.models import Instance, PolicyDraft, StagedRollout
from console.services import audit, broker_reports, drafts, operators, policies
from console.services.actors import Actor
from tests.api.doors import READS, Door
from tests.support.control_plane import person
from tests.support.fake_broker import FakeBroker
from tests.support.seed import seed_decisions, seed_runs, seed_samples

FILE = Path(__file__).with_name("query_counts.json")
RECORDED: dict[str, int] = json.loads(FILE.read_text()) if FILE.exists() else {}


def more_rows(instance: Instance, actor: Actor, turn: int) -> None:
    """Create rows for every list, and another instance."""
    other = policies.ensure_instance(f"other-{turn}")
    broker_reports.record_revision(other, 1, timezone.now())
    for number in range(3):
        user = person(f"person-{turn}-{number}", Role.VIEWER, Role.OPERATOR, instance=instance)
        operators.create_token(actor, user, "ci", lifetime=timedelta(days=1), scope=[Permission.VIEW])
        audit.record(actor, "policy.change", f"try {turn} {number}")
        change = {"client_policy": {"client_max_capacity": 10 + 3 * turn + number}}
        made = policies.change_instance_policy(actor, change, reason=f"turn {turn}").revision
        StagedRollout.objects.create(instance=instance, revision=made, base=made, share=5, state="stopped")
        draft = drafts.create_draft(actor, f"draft {turn} {number}")
        if turn == number == 0:  # doors.py names draft 1
            PolicyDraft.objects.filter(pk=draft.pk).update(id=1)
    seed_decisions(instance)
    seed_samples(instance, hours=1) if turn == 0 else None
    if turn == 0:
        seed_runs(instance)
    else:
        instance.runs.update(state="failed", ended_at=timezone.now())
        seed_runs(instance)


def report_revisions() -> None:
    """Report every newest revision as running now: a broker that is silent for 20 s costs further queries."""
    for instance in Instance.objects.all():
        newest = policies.newest_revision(instance)
        broker_reports.record_revision(instance, newest.number, timezone.now())


def queries(client: Client, door: Door) -> int:
    report_revisions()
    client.get(door.path)  # fills caches of the process, such as content types
    with CaptureQueriesContext(connection) as captured:
        client.get(door.path)
    return len(captured)


def test_queries_don_t_grow_with_rows_and_not_unseen(
    broker: FakeBroker, instance: Instance, actor: Actor
) -> None:
    client = Client()
    client.force_login(person("maria", Role.ADMINISTRATOR))
    more_rows(instance, actor, 0)
    few = {str(door): queries(client, door) for door in READS}
    more_rows(instance, actor, 1)
    assert {str(door): queries(client, door) for door in READS} == few
    if os.environ.get("SLUICE_RECORD_QUERIES"):
        FILE.write_text(json.dumps(dict(sorted(few.items())), indent=1) + "\n")
        return
    unseen = {door: number for door, number in few.items() if number > RECORDED.get(door, -1)}
    assert unseen == {}, "these addresses run more queries than recorded: reduce or record them"


def test_nothing_recorded_is_of_an_address_that_is_gone() -> None:
    assert set(RECORDED) <= {str(door) for door in READS}
