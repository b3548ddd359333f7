"""The clients' table with an operator's columns, and actions on all clients that match its filter."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from msgspec import structs

from broker_core.errors import OperatorError
from console.models import Instance, PendingChange, SavedClientView
from console.services import client_table
from console.services.actors import Actor, access_of
from console.services.pending_changes import bulk, service
from tests.support.fake_broker import FakeBroker


def test_columns_are_kept_for_the_person_and_an_address_says_otherwise(
    browser: Client, onlooker: Client, broker: FakeBroker
) -> None:
    answer = browser.post(
        reverse("clients_columns"),
        {"query": "health=stalled&sort=name", "column": ["user", "protocol", "name", "x"]},
    )
    assert answer["Location"] == "/clients/?health=stalled&sort=name&columns=protocol,user"
    assert b'data-key="protocol"' in browser.get("/clients/").content
    assert b'data-key="protocol"' not in browser.get("/clients/?columns=").content
    assert b'data-key="protocol"' not in onlooker.get("/clients/").content
    browser.post(reverse("clients_columns"), {"query": ""})
    assert b'data-key="protocol"' not in browser.get("/clients/").content


def test_a_view_is_saved_opened_renamed_and_deleted_by_its_owner_alone(
    browser: Client, onlooker: Client, broker: FakeBroker
) -> None:
    query = "q=desk&delivery=offlined&sort=-lag_ms&columns=user&page=3&health=no-such&next=//elsewhere"
    answer = browser.post(reverse("clients_views"), {"name": " Desks ", "query": query})
    assert answer["Location"] == "/clients/?q=desk&delivery=offlined&sort=-lag_ms&columns=user"
    view = SavedClientView.objects.get()
    assert view.name == "Desks" and b"<bdi>Desks</bdi>" in browser.get("/clients/").content
    assert b"Desks" not in onlooker.get("/clients/").content
    for change in ({"name": "Mine"}, {"delete": "1"}):
        onlooker.post(reverse("clients_view", args=[view.pk]), change)
    view.refresh_from_db()
    assert view.name == "Desks"
    browser.post(reverse("clients_views"), {"name": "Other", "query": ""})
    browser.post(reverse("clients_view", args=[view.pk]), {"name": "Other"})
    assert "You already have a view “Other”." in browser.get("/clients/").content.decode()
    browser.post(reverse("clients_view", args=[view.pk]), {"name": "<b>\u202e"})
    assert "<bdi>&lt;b&gt;\u202e</bdi>" in browser.get("/clients/").content.decode()
    gone = browser.post(reverse("clients_view", args=[view.pk]), {"delete": "1"})
    assert gone["Location"].startswith("/clients/?q=desk") and SavedClientView.objects.get().name == "Other"


def test_views_are_bounded(browser: Client, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_table, "MAX_VIEWS", 1)
    for name in ("one", "two", "one"):
        browser.post(reverse("clients_views"), {"name": name, "query": f"q={name}"})
    assert [(one.name, one.query) for one in SavedClientView.objects.all()] == [("one", "q=one")]
    browser.post(reverse("clients_views"), {"name": "x" * 41, "query": ""})
    assert SavedClientView.objects.count() == 1


@pytest.fixture
def maria(operator: Any) -> Actor:
    return Actor("person", "maria", operator.pk, access=access_of(operator))


def test_an_act_on_all_that_match_is_one_item_that_names_and_counts_them(
    maria: Actor, browser: Client, broker: FakeBroker, instance: Instance
) -> None:
    for kind in ("pause_all", "disconnect_all"):
        browser.post(
            reverse("pending_changes_matching"), {"kind": kind, "search": "carrier", "delivery": "live"}
        )
    pause, cut = service.list_changes(maria).planned
    chosen = [one.name for one in broker.clients if "carrier" in one.name]
    assert pause.preview.title == f"Pause {len(chosen)} clients that matched “carrier”, live"
    assert cut.preview.headline == f"{len(chosen)} clients cut off" and cut.preview.warnings
    (line, *_) = cut.preview.lines
    assert line.count == len(chosen) and len(line.names) == 12 and set(line.names) < set(chosen)
    service.remove_change(maria, cut.item.pk)
    # Clients that connected in the meantime are not affected. Disconnected ones are reported. A client that
    # cannot be changed blocks no other.
    late = structs.replace(broker.clients[-1], name="carrier-late")
    broker.clients = [one for one in broker.clients if one.name != chosen[0]] + [late]
    (pause,) = service.list_changes(maria).planned
    assert "1 have disconnected in the meantime." in [one.sentence for one in pause.preview.lines]
    (outcome,) = service.apply_changes(
        maria, "because", confirmed=True, plan=service.list_changes(maria).digest
    )
    paused = [one["name"] for one in broker.asked if one["do"] == "pause"]
    assert outcome.done and sorted(paused) == sorted(chosen[1:]) and not PendingChange.objects.exists()


def test_too_many_and_nobody_are_refused_in_words(
    maria: Actor, browser: Client, broker: FakeBroker, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MAX_MATCHING", 3)
    with pytest.raises(OperatorError) as caught:
        bulk.matching_clients(maria, None)
    assert caught.value.code == "too_many_matching"
    with pytest.raises(OperatorError) as caught:
        bulk.matching_clients(maria, ["desk-*"], search="carrier")
    assert caught.value.code == "nobody_matches"
    answer = browser.post(
        reverse("pending_changes_matching"),
        {"kind": "pause_all", "search": "carrier"},
        headers={"HX-Request": "true"},
    )
    assert b"Narrow the filter." in answer.content and not PendingChange.objects.exists()
    browser.post(reverse("pending_changes_matching"), {"kind": "pause_all", "health": "no such"})
    assert not PendingChange.objects.exists()
