"""Permissions are checked on the instance that the response describes: checks for every address."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.conf import settings
from django.test import Client

from broker_core.documents.instance import DatabaseEntry
from console.broker_addresses import read_addresses
from console.choices import TOKEN_PERMISSIONS, Permission, Role
from console.models import Instance
from console.queries.message_flow import METER, FlowMeter
from console.services import operators
from console.services.actors import SYSTEM
from console.services.policies import ensure_instance
from tests.api.doors import DOORS, send
from tests.api.test_doors import (
    everything_of,
    logged_in,
    looking_at,
    of_instance,
    takes_instance,
)
from tests.support.control_plane import person
from tests.support.fake_broker import FakeBroker, make_client, make_snapshot
from tests.support.seed import seed_history
from tests.support.seed_pipeline import seed_runs_of_jobs

NUMBERS = re.compile(rb"\d+([.:]\d+)*")
"""Figures and times, which differ between two requests."""
API = [door for door in DOORS if isinstance(door.need, Permission) and takes_instance(door)]


class TwoInstances(NamedTuple):
    """The installation's instance `sluice-1`, and `prices`; each has its own broker and clients."""

    own: FakeBroker
    prices: FakeBroker
    own_rows: Instance
    prices_rows: Instance


@pytest.fixture
def two(instance: Instance, settings: Any, tmp_path: Path) -> Iterator[TwoInstances]:
    METER.clear()
    settings.SLUICE_LAKE_DIRECTORY = tmp_path / "lake"
    run = Path(settings.SLUICE_RUN_DIRECTORY)
    settings.SLUICE_BROKERS = read_addresses(["prices=unix:"], run)
    prices = ensure_instance("prices")
    with (
        FakeBroker(run / "sluice-1.sock", "sluice-1") as own,
        FakeBroker(run / "prices.sock", "prices") as other,
    ):
        own.clients = [make_client("only-here", "offlined", 50), *own.clients[5:]]
        for one in other.durables:
            one["bookmark"] = "prices|1|"
        for replay in other.replays:
            replay["position"] = "prices|1|"
        yield TwoInstances(own, other, instance, prices)


def token_headers(user: Any, scope: Iterable[Permission] = TOKEN_PERMISSIONS) -> dict[str, str]:
    _, token = operators.create_token(SYSTEM, user, "test", lifetime=timedelta(days=1), scope=scope)
    return {"HTTP_AUTHORIZATION": f"Bearer {token}"}


@pytest.fixture
def petra(two: TwoInstances) -> Client:
    """Return a client with a token for an account that has all rights on `prices` and none on `sluice-1`."""
    return Client(**token_headers(person("petra", Role.ADMINISTRATOR, instance=two.prices_rows)))


def test_the_live_window_and_the_flow_describe_the_requested_instance(
    two: TwoInstances, petra: Client
) -> None:
    told = petra.get("/api/v1/live?view=clients&sort=name&instance=prices")
    assert told.status_code == 200, told.content
    assert told.json()["status"]["instance"] == "prices"
    assert told.json()["order"] == sorted(one.name for one in two.prices.clients)
    assert petra.get("/api/v1/live?instance=prices").json()["status"]["instance"] == "prices"
    flow = petra.get("/api/v1/flow?instance=prices").json()
    assert sum(one["members"] for one in flow["clients"]) == sum(
        bool(one.subscriptions) for one in two.prices.clients
    )
    assert two.own.asked == []
    for path in ("live", "flow"):
        assert petra.get(f"/api/v1/{path}").status_code == 403
        assert petra.get(f"/api/v1/{path}?instance=sluice-1").status_code == 403


def test_the_live_window_hides_the_clients_out_of_scope_on_the_requested_instance(two: TwoInstances) -> None:
    user = person("sam", Role.VIEWER, instance=two.prices_rows, client_pattern="board-*")
    answer = Client(**token_headers(user, [Permission.VIEW])).get("/api/v1/live?view=clients&instance=prices")
    assert answer.json()["order"] == ["board-jfk"]


def test_reading_with_instance_answers_as_a_session_on_that_instance(
    two: TwoInstances, petra: Client
) -> None:
    seed_history("sluice-1")
    two.own.asked.clear()
    there = looking_at(logged_in(person("maria", Role.ADMINISTRATOR, instance=two.prices_rows)), "prices")
    doors = [one for one in API if one.method == "GET"]
    assert len(doors) > 30
    for door in doors:
        asked = send(petra, of_instance(door, "prices"))
        assert two.own.asked == [], door
        assert asked.status_code not in (401, 403), door
        assert b"sluice-1" not in asked.content and b"only-here" not in asked.content, door
        METER.clear()
        assert NUMBERS.sub(b"#", asked.content) == NUMBERS.sub(b"#", send(there, door).content), door
        METER.clear()


def test_writing_with_instance_reaches_no_other_instance(two: TwoInstances, petra: Client) -> None:
    seed_history("sluice-1")
    two.own.asked.clear()
    before = everything_of(two.own_rows)
    for door in API:
        if door.method != "GET":
            answer = send(petra, of_instance(door, "prices"))
            assert answer.status_code != 500, door
            assert two.own.asked == [], door
            assert b"sluice-1" not in answer.content and b"only-here" not in answer.content, door
    assert everything_of(two.own_rows) == before


def test_a_page_of_one_instance_shows_nothing_of_another(two: TwoInstances) -> None:
    seed_history("sluice-1")
    seed_runs_of_jobs()
    two.own.database = DatabaseEntry(code="database_away", message="only-here", fix="only-here")
    user = person("petra", Role.ADMINISTRATOR, instance=two.prices_rows)
    there = looking_at(logged_in(user), "prices")
    for door in DOORS:
        if door.method == "GET" and not door.path.startswith("/api/") and isinstance(door.need, Permission):
            answer = send(there, door)
            content = b"".join(answer.streaming_content) if answer.streaming else answer.content
            assert b"sluice-1" not in content and b"only-here" not in content, door


def test_an_operator_of_one_instance_controls_its_replays_on_the_page(two: TwoInstances) -> None:
    user = person("otto", Role.OPERATOR, instance=two.prices_rows)
    there = looking_at(logged_in(user), "prices")
    made = there.post("/replays/new/", {"name": "audit", "client": "board-jfk", "topic": "flights.>"})
    assert made.status_code == 302
    assert any(one["name"] == "audit" for one in two.prices.replays)
    assert there.post("/replays/nightly/pause/").status_code == 302
    assert two.own.asked == []


def test_an_idempotency_key_belongs_to_one_instance_and_member(two: TwoInstances) -> None:
    there = looking_at(logged_in(person("maria", Role.ADMINISTRATOR)), "sluice-1")

    def ask(query: str) -> Any:
        return there.post(
            f"/api/v1/pipeline/lake{query}", "{}", "application/json", headers={"Idempotency-Key": "k"}
        )

    first = ask("")
    assert first.status_code == 202
    assert ask("?instance=sluice-1").json()["id"] == first.json()["id"]
    looking_at(there, "prices")
    assert (ask("").status_code, ask("").json()["code"]) == (422, "idempotency_key_reused")
    assert ask("?instance=sluice-1").json()["id"] == first.json()["id"]


def test_brokers_of_the_requested_instance_are_listed_alone(two: TwoInstances) -> None:
    there = logged_in(person("maria", Role.VIEWER))
    assert [one["name"] for one in there.get("/api/v1/brokers").json()] == ["sluice-1", "prices"]
    assert [one["name"] for one in there.get("/api/v1/brokers?instance=prices").json()] == ["prices"]


def test_rates_of_the_flow_are_those_of_one_instance() -> None:
    meter = FlowMeter()
    one, other = (
        make_snapshot(at, make_client("feed", published_topics={"a": number}, connected_at=5), instance=name)
        for at, number, name in ((1_000, 10, "sluice-1"), (2_000, 900, "prices"))
    )
    later = make_snapshot(
        3_000, make_client("feed", published_topics={"a": 30}, connected_at=5), instance="sluice-1"
    )
    assert meter.rates(one).span_ms is None
    assert meter.rates(other).span_ms is None
    rates = meter.rates(later)
    assert (rates.span_ms, rates.published) == (2_000, {("feed", 5, "a"): 10.0})


def test_runs_of_the_pipeline_are_shown_to_those_who_may_view_their_instance(two: TwoInstances) -> None:
    seed_runs_of_jobs()
    shelf = Path(settings.SLUICE_LAKE_DIRECTORY) / "runs"
    (run,) = [one.name for one in shelf.iterdir() if "-capacity-" in one.name]
    record = json.loads((shelf / run / "run.json").read_bytes())
    assert record["instance"] == "sluice-1"
    paths = [f"/pipeline/{run}/", f"/pipeline/{run}/hours.csv", f"/pipeline/{run}/plots/hours.0.svg"]
    user = person("petra", Role.ADMINISTRATOR, instance=two.prices_rows)
    there = looking_at(logged_in(user), "prices")
    assert [there.get(path).status_code for path in paths] == [404, 404, 404]
    assert run not in there.get("/pipeline/").content.decode()
    here = logged_in(person("maria", Role.ADMINISTRATOR, instance=two.own_rows))
    assert [here.get(path).status_code for path in paths] == [200, 200, 200]
    assert run in here.get("/pipeline/").content.decode()
