"""Problems of groups and links appear in every place that operators check, as brokers report them."""

# ruff: noqa: F401, F811 (a fixture of another module)
from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from broker_core.documents.problems import ProblemEntry
from broker_core.documents.requests import GetStatus
from console.broker_link import link_to
from console.choices import AlertSubject
from console.models import Alert, AlertRule, Instance
from console.queries import readiness, system_conditions
from console.services import alerts, broker_reports
from tests.console.test_members import Plant, plant
from tests.support.fake_broker import make_group, make_member

BEGAN = int(time.time() * 1_000) - 3_600_000


def problem(code: str, subject: str, *, severe: bool = False, since: int = BEGAN) -> ProblemEntry:
    return ProblemEntry(
        code=code,
        subject=subject,
        since=since,
        severe=severe,
        title=f"The {subject} is {code}",
        message="Why.",
        fix="Do it.",
    )


@pytest.fixture(autouse=True)
def redis_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = tuple({"name": name, "ok": True, "problem": ""} for name in ("redis", "worker"))
    monkeypatch.setattr(readiness, "_redis", lambda **_: parts)
    monkeypatch.setattr(readiness, "_workers", list)
    monkeypatch.setattr(system_conditions, "_since", {})


def found_everywhere(page: Client) -> dict[str, Any]:
    """Return the problem codes found in each place."""
    ready = Client().get("/readyz")
    brokers = page.get("/api/v1/brokers").json()
    metrics = {
        (sample.labels["code"], sample.labels["subject"]): sample.value
        for family in text_string_to_metric_families(Client().get("/metrics").content.decode())
        for sample in family.samples
        if sample.name == "sluice_problem_since_seconds"
    }
    return {
        "ready": (ready.status_code, [one for one in ready.json()["parts"] if one["problem"]]),
        "top": page.get("/standing/").content.decode(),
        "brokers": {one["name"]: one for one in brokers},
        "metrics": metrics,
        "page": page.get("/replication/now/").content.decode(),
        "overview": page.get("/").content.decode(),
    }


@pytest.fixture
def page(plant: Plant, operator: Any, instance: Instance) -> Client:
    for member in ("a", "b"):
        broker_reports.record_revision(instance, 1, timezone.now(), member=member)
    plant.a.member, plant.b.member = "a", "b"
    plant.a.group = make_group(make_member("a", alike=None), make_member("b"))
    plant.b.group = structs.replace(plant.a.group, member="b")
    client = Client()
    client.force_login(operator)
    return client


def test_a_member_without_quorum_stands_at_the_top_of_pages_and_everywhere_else(
    plant: Plant,
    page: Client,
    instance: Instance,
) -> None:
    assert "problem" not in page.get("/standing/").content.decode()
    plant.b.problems = [problem("no_quorum", "b", severe=True)]
    plant.a.problems = [problem("member_silent", "b"), problem("link_away", "link.ny", since=BEGAN + 60_000)]
    rule = AlertRule.objects.create(
        instance=instance, name="top", about=AlertSubject.SYSTEM_CONDITION, for_s=60
    )
    alerts.evaluate_alerts(timezone.now())
    told = Alert.objects.get(rule=rule)
    assert told.opened_at is not None, "the problem has lasted for an hour"
    assert told.begun_at == datetime.fromtimestamp(BEGAN / 1_000, UTC)
    assert set(told.members) == {"The b is no_quorum (no_quorum)", "The link.ny is link_away (link_away)"}

    found = found_everywhere(page)
    assert "ProblemEntry" not in page.get("/replication/").content.decode(), (
        "pages of pending changes show only their own problems"
    )
    status, parts = found["ready"]
    assert status == 503 and [(one["name"], one["ok"], one["problem"], one["since"]) for one in parts] == [
        ("group sluice-1/b", False, "no_quorum", BEGAN),
        ("link sluice-1/ny", True, "link_away", BEGAN + 60_000),
    ]
    assert all("entry" not in one for one in parts)
    for code in ("no_quorum", "link_away"):
        for place in ("top", "page", "overview"):
            assert code in found[place] and "Do it." in found[place], (code, place)
    assert "member_silent" not in found["top"], "a member's own report takes precedence"
    assert str(BEGAN) in found["top"] and str(BEGAN) in found["page"]
    b, a = found["brokers"]["sluice-1/b"], found["brokers"]["sluice-1/a"]
    assert (b["code"], b["since"], b["fix"], b["answers"]) == ("no_quorum", BEGAN, "Do it.", True)
    assert a["code"] == "" and [one["code"] for one in a["problems"]] == ["member_silent", "link_away"]
    assert found["metrics"]["no_quorum", "b"] == BEGAN / 1_000
    assert found["metrics"]["link_away", "link.ny"] == (BEGAN + 60_000) / 1_000

    plant.a.problems, plant.b.problems = [], []
    alerts.evaluate_alerts(timezone.now())
    told.refresh_from_db()
    assert told.closed_at is not None
    found = found_everywhere(page)
    assert found["ready"] == (200, []) and found["metrics"] == {}
    assert "Every member is active and consistent" in found["page"]
    assert found["brokers"]["sluice-1/b"]["problems"] == []


def test_what_several_members_report_is_one_problem_since_the_first_saw_it(
    plant: Plant, page: Client
) -> None:
    plant.a.problems = [problem("engine_behind", "", since=BEGAN + 5), problem("member_silent", "c")]
    plant.b.problems = [problem("engine_behind", "", since=BEGAN), problem("member_silent", "c", since=9)]
    merged = link_to("sluice-1").call(GetStatus()).problems
    assert [(one.code, one.subject, one.since) for one in merged] == [
        ("member_silent", "c", 9),
        ("engine_behind", "", BEGAN),
    ]
    assert Client().get("/readyz").status_code == 200
    assert "Every member takes part" not in page.get("/replication/now/").content.decode()


def test_a_members_unknown_lag_is_not_shown_as_none(plant: Plant, page: Client) -> None:
    behind = make_member("a", alike=None, behind=4_561, lag_records=None, lag_ms=None)
    plant.a.group = make_group(behind, make_member("b"))
    text = page.get("/replication/now/").content.decode()
    assert "4,561 entries" in text and "time unknown" in text
    lags = [
        (sample.labels["member"], sample.labels["other"])
        for family in text_string_to_metric_families(Client().get("/metrics").content.decode())
        for sample in family.samples
        if sample.name == "sluice_member_lag_seconds"
    ]
    assert ("a", "a") not in lags and ("a", "b") in lags
