"""System conditions: components that are unavailable, restarts, and policies that are not in force."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from broker_core.documents.instance import DatabaseEntry
from console.models import Instance, RevisionReport
from console.queries import system_conditions
from console.queries.readiness import ComponentStatus
from console.services import policies
from console.services.actors import Actor
from tests.support.fake_broker import FakeBroker

ALL = ("database", "redis", "worker", "broker")


@pytest.fixture(autouse=True)
def remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_conditions, "_since", {})


def only(monkeypatch: pytest.MonkeyPatch, *away: str) -> None:
    """Make all components available except `away`."""
    parts: list[ComponentStatus] = [{"name": name, "ok": name not in away, "problem": ""} for name in ALL]
    monkeypatch.setattr(system_conditions, "check_components", lambda *, write: parts)


def heard(instance: Instance, *, pid: int, ago: timedelta = timedelta(), number: int = 1) -> None:
    at = timezone.now() - ago
    RevisionReport.objects.create(instance=instance, number=number, pid=pid, reported_at=at, seen_at=at)


def test_nothing_is_said_when_all_is_well(instance: Instance, monkeypatch: Any) -> None:
    only(monkeypatch)
    heard(instance, pid=1)
    assert system_conditions.current_conditions() == []


def test_a_dead_broker_is_said_since_it_was_last_heard(instance: Instance, monkeypatch: Any) -> None:
    only(monkeypatch, "broker")
    heard(instance, pid=1, ago=timedelta(minutes=40))
    (found,) = system_conditions.current_conditions()
    assert (found.key, found.severe, found.blind) == ("broker", True, True)
    assert found.since is not None and timezone.now() - found.since >= timedelta(minutes=40)


def test_what_is_away_keeps_its_beginning_until_it_is_back(instance: Instance, monkeypatch: Any) -> None:
    only(monkeypatch, "redis")
    heard(instance, pid=1)
    first, again = (
        system_conditions.current_conditions()[0].since,
        system_conditions.current_conditions()[0].since,
    )
    assert first == again
    only(monkeypatch)
    assert system_conditions.current_conditions() == []
    only(monkeypatch, "redis")
    assert system_conditions.current_conditions()[0].since != first


def test_a_restart_is_said_for_a_while_and_a_first_start_never(instance: Instance, monkeypatch: Any) -> None:
    only(monkeypatch)
    heard(instance, pid=1, ago=timedelta(minutes=10))
    assert system_conditions.current_conditions() == []
    heard(instance, pid=2, ago=timedelta(minutes=5))
    heard(instance, pid=2)
    (found,) = system_conditions.current_conditions()
    assert (found.key, found.severe) == ("restart", False)
    since = timezone.now() - timedelta(days=90)
    assert system_conditions.broker_restarts(instance, since) == [found.since]


def test_a_policy_that_isnt_in_force_is_said_once_the_broker_had_its_time(
    instance: Instance, actor: Actor, monkeypatch: Any
) -> None:
    only(monkeypatch)
    heard(instance, pid=1)
    policies.change_instance_policy(actor, {"client_policy": {"client_max_capacity": 20}})
    assert system_conditions.current_conditions() == []
    monkeypatch.setattr(system_conditions, "APPLY_TIMEOUT", timedelta())
    (found,) = system_conditions.current_conditions()
    assert found.word == "Revision 2 isn't in force"
    assert "runs revision 1" in found.sentence


def test_decisions_that_the_database_lacks_are_shown_for_a_while(
    instance: Instance, broker: FakeBroker, api: APIClient
) -> None:
    heard(instance, pid=1)
    dropped_at = time.time_ns() // 1_000_000 - 5_000
    broker.database = DatabaseEntry(dropped=12_345, dropped_at=dropped_at)
    (found,) = [one for one in system_conditions.current_conditions() if one.key == "dropped"]
    assert (found.key, found.word) == ("dropped", "Decisions are missing in the console")
    assert "discarded 12,345 decisions, losses and events" in found.sentence
    assert api.get("/api/v1/status").json()["database"]["dropped"] == 12_345
    broker.database = DatabaseEntry(dropped=12_345, dropped_at=dropped_at - 3_600_000)
    assert "dropped" not in [one.key for one in system_conditions.current_conditions()]


def test_a_broker_that_runs_the_policy_on_its_own_disk_is_said_everywhere(
    instance: Instance, broker: FakeBroker, client: Client, api: APIClient
) -> None:
    heard(instance, pid=1)
    broker.database = DatabaseEntry(
        away_since=1,
        code="policy_from_disk",
        message="Revision 1 is in force as stored.",
        fix="Start it.",
        policy="disk",
    )
    (found,) = [one for one in system_conditions.current_conditions() if one.key == "database of broker"]
    assert "runs the policy on its own disk" in found.word and found.severe and found.fix == "Start it."
    assert found.since == datetime.fromtimestamp(0.001, UTC), (
        "the broker reports the time, so it survives a restart of the console"
    )
    parts = {part["name"]: part for part in client.get("/readyz").json()["parts"]}
    assert (
        parts["database of broker"]["problem"] == "policy_from_disk" and not parts["database of broker"]["ok"]
    )
    (entry,) = api.get("/api/v1/brokers").json()
    assert (entry["answers"], entry["code"], entry["fix"]) == (True, "policy_from_disk", "Start it.")
    assert entry["since"] == parts["database of broker"]["since"] == 1
    assert api.get("/api/v1/status").json()["database"]["policy"] == "disk"
