"""A console with a group and another instance: requests to one or all members, merged replies."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from django.test import Client
from django.utils import timezone
from msgspec import structs
from rest_framework.test import APIClient

from broker_core.documents import requests
from broker_core.documents.clients import Health
from broker_core.documents.instance import RefusedRevision
from broker_core.errors import OperatorError
from console.broker_addresses import read_addresses
from console.broker_link import BrokerUnavailable, link_to
from console.choices import AlertSubject, Role
from console.models import Action, ActionRun, Alert, AlertRule, Instance, PolicyDraft, RevisionReport
from console.queries import policies as read
from console.queries.clients import ClientSequence
from console.queries.policies import REPORT_FRESH
from console.services import alerts, broker_reports, policies
from console.services.actions import event_interest
from console.services.actions.scheduler import start_due_runs
from console.services.actions.triggers import TriggerEvent
from console.services.actors import Actor, access_of
from console.services.pending_changes.service import add_policy_change, apply_changes, list_changes
from tests.support.control_plane import person
from tests.support.fake_broker import FakeBroker, make_client, make_group, make_member, make_pool
from tests.support.html import minified


class Plant(NamedTuple):
    """Fake brokers: members a and b of sluice-1, and the standalone broker `prices`."""

    a: FakeBroker
    b: FakeBroker
    prices: FakeBroker


@pytest.fixture
def plant(instance: Instance, tmp_path_factory: pytest.TempPathFactory, settings: Any) -> Iterator[Plant]:
    run = Path(settings.SLUICE_RUN_DIRECTORY)
    paths = {name: run / f"{name}.sock" for name in ("a", "b", "prices")}
    settings.SLUICE_BROKERS = read_addresses(
        [f"sluice-1/a=unix:{paths['a']}", f"sluice-1/b=unix:{paths['b']}", f"prices=unix:{paths['prices']}"],
        run,
    )
    policies.ensure_instance("prices")
    with (
        FakeBroker(paths["a"], "sluice-1") as a,
        FakeBroker(paths["b"], "sluice-1") as b,
        FakeBroker(paths["prices"], "prices") as prices,
    ):
        a.clients = [make_client("slow", lag=9), make_client("late", lag=1)]
        b.clients = [make_client("slower", lag=90), make_client("fine")]
        prices.clients = [make_client("elsewhere")]
        yield Plant(a, b, prices)


def test_a_page_of_all_members_is_sorted_over_them_and_cut_once(plant: Plant) -> None:
    found = ClientSequence(sort="-lag_messages")
    assert [one.name for one in found[0:2]] == ["slower", "slow"]
    assert [one.name for one in found[2:4]] == ["late", "fine"]
    assert len(found) == 4
    assert [one.name for one in ClientSequence(sort="name", member="b")[0:9]] == ["fine", "slower"]
    assert link_to("sluice-1").call(requests.GetStatus()).clients_by_state["live"] == 4


def test_a_preview_that_lacks_a_members_clients_says_so_and_needs_the_tick(
    plant: Plant, operator: Any, settings: Any
) -> None:
    actor = Actor("person", "maria", operator.pk, access=access_of(operator))
    add_policy_change(actor, {"client_policy": {"client_max_capacity": 5}})
    settings.SLUICE_BROKERS = tuple(
        dataclasses.replace(one, path=Path("/nowhere")) if one.member == "b" else one
        for one in settings.SLUICE_BROKERS
    )
    (warning,) = [one for one in list_changes(actor).warnings if "are unknown" in one]
    assert warning.startswith("Affected clients on b are unknown: The broker sluice-1/b")
    with pytest.raises(OperatorError, match="confirm"):
        apply_changes(actor, "why", confirmed=False, plan=list_changes(actor).digest)
    api = APIClient()
    api.force_authenticate(operator)
    said = api.post(f"/api/v1/drafts/{PolicyDraft.objects.get().pk}/preview", {}).data
    assert said["effect"]["clients"] == 2 and said["away"].startswith("The broker sluice-1/b")
    page = Client()
    page.force_login(operator)
    assert "Affected clients on b are unknown" in page.get("/tray/").content.decode()


def test_what_concerns_a_client_is_done_by_the_member_that_has_it(plant: Plant) -> None:
    link = link_to("sluice-1")
    assert link.call(requests.GetClient(name="fine")).name == "fine"
    link.call(requests.DisconnectClient(name="fine", reason="tried"))
    assert [one.name for one in plant.b.clients] == ["slower"]
    with pytest.raises(OperatorError, match="unknown_client"):
        link.call(requests.GetClient(name="nobody"))
    with pytest.raises(OperatorError, match="unknown_member"):
        link_to("sluice-1", "c")
    with pytest.raises(OperatorError, match="unknown_member"):
        link.call(requests.ShutDown())


def test_a_member_that_is_away_hides_only_what_it_has(plant: Plant, tmp_path: Path, settings: Any) -> None:
    a, _, prices = settings.SLUICE_BROKERS
    settings.SLUICE_BROKERS = (a, *read_addresses(["sluice-1/b=unix:/nowhere/b.sock"], tmp_path), prices)
    link = link_to("sluice-1")
    assert {one.name for one in link.call(requests.ListClients())} == {"slow", "late"}
    with pytest.raises(BrokerUnavailable):  # the client may be at b
        link.call(requests.GetClient(name="fine"))
    assert link.call(requests.GetClient(name="slow")).name == "slow"


def test_an_answer_names_the_members_whose_part_it_lacks(
    plant: Plant, operator: Any, instance: Instance, tmp_path: Path, settings: Any
) -> None:
    page = Client()
    page.force_login(operator)
    for member in ("a", "b"):
        broker_reports.record_revision(instance, 1, timezone.now() + timedelta(hours=1), member=member)

    def missing(path: str) -> tuple[list[str], str]:
        answer = page.get(f"/api/v1/{path}")
        assert answer.status_code == 200, answer.content
        told = answer.json()
        assert isinstance(told, list) or path == "flow" or "missing" in told
        named = told.get("missing", []) if isinstance(told, dict) else []
        return [f"{one['member']} {one['code']}" for one in named], answer.headers.get("Sluice-Missing", "")

    now = ("status", "clients", "replays", "durables", "flow")
    stored = ("decisions", "ledger", "statistics", "clients/slow/history")
    assert {path: missing(path) for path in (*now, *stored)} == dict.fromkeys((*now, *stored), ([], ""))
    a, _, prices = settings.SLUICE_BROKERS
    settings.SLUICE_BROKERS = (a, *read_addresses(["sluice-1/b=unix:/nowhere/b.sock"], tmp_path), prices)
    for path in now:
        named = ["b broker_away"] if path in ("status", "clients", "replays") else []
        assert missing(path) == (named, "b"), path
    RevisionReport.objects.filter(member="b").update(seen_at=timezone.now() - REPORT_FRESH * 2)
    for path in stored:
        named = ["b broker_away"] if path != "clients/slow/history" else []
        assert missing(path) == (named, "b"), path
    assert missing("decisions?member=a") == ([], "")
    file = page.get("/api/v1/clients?format=csv")
    assert (file["Sluice-Missing"], file["Content-Disposition"]) == (
        "b",
        'attachment; filename="clients-without-b.csv"',
    )
    assert page.get("/api/v1/clients?member=b").json()["code"] == "broker_away"
    assert page.get("/api/v1/decisions?instance=prices").json()["missing"] == []


def test_the_page_of_the_group_says_what_each_member_says_and_who_cannot_be_asked_and_why(
    plant: Plant, operator: Any, tmp_path: Path, settings: Any
) -> None:
    page = Client()
    page.force_login(operator)
    both = [make_member("a", alike=None), make_member("b")]
    plant.a.group = make_group(*both)
    plant.b.group = structs.replace(
        make_group(*both), member="b", state="engine_lost", why="Another log.", fix="Mend it."
    )
    told = minified(page.get("/replication/now/"))
    assert "engine_lost" in told and "<bdi>b</bdi>: Another log. Mend it." in told
    plant.b.group = structs.replace(make_group(*both), member="b")
    assert "Every member is active and consistent" in minified(page.get("/replication/now/"))
    _, b, prices = settings.SLUICE_BROKERS
    dead = read_addresses(["sluice-1/a=unix:/nowhere/a.sock"], tmp_path)
    settings.SLUICE_BROKERS = (*dead, b, prices)
    told = minified(page.get("/replication/now/"))
    assert "b is taking part" in told and "Attention needed: <bdi>a</bdi></p>" in told
    assert "reported by other members" in told and "The broker sluice-1/a can&#x27;t be reached" in told
    settings.SLUICE_BROKERS = (*dead, *read_addresses(["sluice-1/b=unix:/nowhere/b.sock"], tmp_path))
    told = minified(page.get("/replication/"))
    assert told.count("can&#x27;t be reached") >= 2 and "manage.py runbroker" in told


def test_an_event_that_all_members_hear_starts_one_run_and_a_schedule_on_journals_one_for_each(
    plant: Plant, instance: Instance
) -> None:
    now = timezone.now()
    Action.objects.filter(instance=instance).delete()
    made = {"instance": instance, "started_at": now}
    heard = Action.objects.create(
        name="heard",
        when=[{"on": "publish", "topic": "t"}, {"on": "startup"}],
        steps=[{"do": "event", "name": "x"}],
        **made,
    )
    event = TriggerEvent("publish", {"AMPS_TOPIC": "t"}, {"topic": "t", "filter": ""}, once="log|7|0")
    for member_name in ("a", "b", "a"):
        event_interest.start_runs_for_events(
            "sluice-1", [event, dataclasses.replace(event, once="log|7|1")], member_name
        )
    assert sorted(ActionRun.objects.filter(action=heard).values_list("member", flat=True)) == ["a", "a"]
    for member_name in ("a", "b"):  # each member reports its own start
        event_interest.start_runs_for_events("sluice-1", [TriggerEvent("startup")], member_name)
    assert ActionRun.objects.filter(action=heard).count() == 4
    for name, step in (("tidy", {"do": "archive", "age": "7d"}), ("tell", {"do": "event", "name": "y"})):
        Action.objects.create(name=name, when=[{"on": "schedule", "every": "1m"}], steps=[step], **made)
    due = now + timedelta(seconds=61)
    start_due_runs(due), start_due_runs(due)
    fired = ActionRun.objects.exclude(due_at=None).values_list("action__name", "member")
    assert sorted(fired) == [("tell", ""), ("tidy", "a"), ("tidy", "b")]


def test_an_alert_about_a_client_stays_open_while_its_member_is_away(
    plant: Plant, actor: Actor, instance: Instance, tmp_path: Path, settings: Any
) -> None:
    alerts.create(actor, AlertRule(instance=instance, name="slow", about=AlertSubject.STALLED, for_s=30))
    plant.b.clients = [structs.replace(plant.b.clients[0], health=Health.STALLED)]
    now = timezone.now()
    alerts.evaluate_alerts(now)
    alerts.evaluate_alerts(now + timedelta(seconds=60))
    assert Alert.objects.get().opened_at is not None
    whole = settings.SLUICE_BROKERS
    settings.SLUICE_BROKERS = (
        whole[0],
        *read_addresses(["sluice-1/b=unix:/nowhere/b.sock"], tmp_path),
        whole[2],
    )
    alerts.evaluate_alerts(now + timedelta(seconds=70))
    assert Alert.objects.get().closed_at is None
    settings.SLUICE_BROKERS, plant.b.clients = whole, []
    alerts.evaluate_alerts(now + timedelta(seconds=80))
    assert Alert.objects.get().closed_at is not None


def test_a_policy_is_in_force_when_every_listed_member_runs_it(plant: Plant, instance: Instance) -> None:
    now = timezone.now()
    broker_reports.record_revision(instance, 1, now, member="a")
    broker_reports.record_revision(instance, 1, now, member="gone")  # no longer listed
    state = read.policy_status(instance)
    assert (state["converged"], state["why"]) == (False, "b: The broker has never reported.")
    broker_reports.record_revision(instance, 1, now, member="b")
    assert read.policy_status(instance)["converged"]
    assert [one["member"] for one in read.installation_policy_status(now)] == ["", "a", "b"]


def test_a_member_that_cant_follow_a_policy_says_so_in_the_api_and_on_the_overview(
    plant: Plant, operator: Any
) -> None:
    sentence = "Transport tcp can't listen on 192.0.2.1."
    plant.b.refused = RefusedRevision(revision=2, code="port_taken", message=sentence, fix="Set its host.")
    page = Client()
    page.force_login(operator)
    found = {one["name"]: one for one in page.get("/api/v1/brokers").json()}
    b = found["sluice-1/b"]
    assert (b["answers"], b["revision"], b["refused_revision"], b["code"], b["problem"], b["fix"]) == (
        True,
        1,
        2,
        "port_taken",
        sentence,
        "Set its host.",
    )
    assert {
        (one["refused_revision"], one["code"]) for name, one in found.items() if name != "sluice-1/b"
    } == {(0, "")}
    assert "</bdi> can't follow revision 2: Transport tcp" in minified(page.get("/"))
    told = page.get("/api/v1/status").json()["refused"]
    assert told["revision"] == 2 and told["message"].endswith(sentence)


def test_one_members_start_doesnt_move_what_the_groups_intervals_count_from(instance: Instance) -> None:
    def begun(member: str) -> Any:
        event_interest.on_broker_started("sluice-1", member)
        instance.refresh_from_db()
        return instance.started_at

    first = begun("a")
    assert first is not None and begun("b") == begun("a") == first
    assert begun("") > first  # a standalone broker counts from its own start


def test_the_pages_are_about_the_instance_that_was_chosen(plant: Plant, operator: Any) -> None:
    page = Client()
    page.force_login(operator)
    assert "sluice-1/b" in page.get("/").content.decode()
    assert page.post("/instance/", {"instance": "prices"}).status_code == 302
    assert b'data-instance="prices"' in page.get("/policies/").content
    assert page.get("/api/v1/status").json()["instance"] == "prices"
    assert page.get("/api/v1/status", {"instance": "sluice-1"}).json()["instance"] == "sluice-1"
    assert page.post("/instance/", {"instance": "nowhere"}).status_code == 403

    of_prices = person("petra", Role.VIEWER, instance=Instance.objects.get(name="prices"))
    page.force_login(of_prices)
    assert page.post("/instance/", {"instance": "sluice-1"}).status_code == 403
    assert page.post("/instance/", {"instance": "prices"}).status_code == 302
    assert {one["name"] for one in page.get("/api/v1/brokers", {"instance": "prices"}).json()} == {"prices"}


def test_pending_changes_are_listed_by_instance(plant: Plant, operator: Any) -> None:
    page = Client()
    page.force_login(operator)
    planned = page.post("/journals/plan/", {"action": "archive", "age": "7d", "member": "b"})
    assert planned.status_code in (200, 302)
    assert "of b whose newest record" in page.get("/tray/").content.decode()
    page.post("/instance/", {"instance": "prices"})
    assert "of b whose newest record" not in page.get("/tray/").content.decode()


def test_each_members_own_limits_are_shown_and_what_all_know_is_listed_once(
    plant: Plant, operator: Any
) -> None:
    page = Client()
    page.force_login(operator)
    for broker, limit in ((plant.a, 2 << 30), (plant.b, 2 << 30)):
        broker.answers["status"] = told(broker, limit)
    assert "now 2.00 GiB each" in minified(page.get("/policies/"))
    plant.b.answers["status"] = told(plant.b, 1 << 30)
    text = minified(page.get("/policies/"))
    assert "now a 2.00 GiB, b 1.00 GiB" in text
    assert "<bdi>b</bdi>: 7 B of 1.00 GiB in use" in text
    pools = page.get("/api/v1/status").json()["pools"]
    assert [(one["member"], one["memory_limit"]) for one in pools] == [("a", 2 << 30), ("b", 1 << 30)]

    known = {
        "client": "slower",
        "name": "nightly",
        "topic": "t",
        "filter": None,
        "bookmark": "0",
        "behind": 3,
        "created_at": 1,
    }
    plant.a.durables = [{**known, "connected": False, "seen_at": 9}]
    plant.b.durables = [{**known, "connected": True, "seen_at": 8}]
    assert [one["connected"] for one in page.get("/api/v1/durables").json()] == [True]
    names = [one["name"] for one in page.get("/api/v1/replays").json()["results"]]
    assert sorted(names) == sorted(set(names))
    assert '<dt>Member</dt><dd><bdi data-figure="member">' in minified(page.get("/clients/slower/"))


def told(broker: FakeBroker, limit: int) -> dict[str, Any]:
    """Return a status reply whose pool has this memory limit."""
    status: dict[str, Any] = msgspec.to_builtins(broker.snapshot().status)
    pool = make_pool("instance", memory_used=7, memory_limit=limit)
    return {"ok": True, "result": {**status, "member": broker.path.stem, "pools": [pool]}}
