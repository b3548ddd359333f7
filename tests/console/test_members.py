"""One console before a group and another instance: what is asked of all, of one, and by whom each is seen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.test import Client
from django.utils import timezone

from broker_core.documents import requests
from broker_core.errors import OperatorError
from console.broker_addresses import read_addresses
from console.broker_link import BrokerAway, link_to
from console.choices import Role
from console.models import Instance
from console.queries import policies as read
from console.queries.clients import Clients
from console.services import policies, reports
from tests.support.control_plane import person
from tests.support.fake_broker import FakeBroker, make_client


class Plant(NamedTuple):
    """sluice-1 with its members a and b, and `prices`, which is a broker by itself."""

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
    found = Clients(sort="-lag_messages")
    assert [one.name for one in found[0:2]] == ["slower", "slow"]
    assert [one.name for one in found[2:4]] == ["late", "fine"]
    assert len(found) == 4
    assert [one.name for one in Clients(sort="name", member="b")[0:9]] == ["fine", "slower"]
    assert link_to("sluice-1").call(requests.GetStatus()).clients_by_state["live"] == 4


def test_what_concerns_a_client_is_done_by_the_member_that_has_it(plant: Plant) -> None:
    link = link_to("sluice-1")
    assert link.call(requests.GetClient(name="fine")).name == "fine"
    link.call(requests.Disconnect(name="fine", reason="tried"))
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
    with pytest.raises(BrokerAway):  # it may be there: nobody says that there is no such client
        link.call(requests.GetClient(name="fine"))
    assert link.call(requests.GetClient(name="slow")).name == "slow"


def test_a_policy_is_in_force_when_every_listed_member_runs_it(plant: Plant, instance: Instance) -> None:
    now = timezone.now()
    reports.record_revision(instance, 1, now, member="a")
    reports.record_revision(instance, 1, now, member="gone")  # listed no more: nobody waits for it
    state = read.in_force(instance)
    assert (state["converged"], state["why"]) == (False, "b: The broker has never reported.")
    reports.record_revision(instance, 1, now, member="b")
    assert read.in_force(instance)["converged"]
    assert [one["member"] for one in read.in_force_everywhere(now)] == ["", "a", "b"]


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


def test_a_tray_has_the_acts_of_its_own_instance(plant: Plant, operator: Any) -> None:
    page = Client()
    page.force_login(operator)
    planned = page.post("/journals/plan/", {"action": "archive", "age": "7d", "member": "b"})
    assert planned.status_code in (200, 302)
    assert "of b whose newest record" in page.get("/tray/").content.decode()
    page.post("/instance/", {"instance": "prices"})
    assert "of b whose newest record" not in page.get("/tray/").content.decode()
