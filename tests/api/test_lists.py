from __future__ import annotations

import csv
import io
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.test import APIClient

from broker_core.safe_text import escape_line
from broker_core.safe_text import to_csv_cell as cell
from console.models import Decision, Instance
from console.services import audit
from console.services.actors import Actor
from tests.support.fake_broker import FakeBroker


def rows(answer: Any) -> list[dict[str, str]]:
    assert answer["Content-Type"].startswith("text/csv")
    return list(csv.DictReader(io.StringIO(answer.content.decode())))


@pytest.fixture
def events(operator: Any, actor: Actor) -> None:
    for number in range(25):
        audit.record(
            actor, "policy.change" if number % 2 else "journal.archive", f"try {number}", after={"n": number}
        )


def test_rows_that_come_meanwhile_neither_hide_nor_repeat_others(
    api: APIClient, actor: Actor, events: None
) -> None:
    page = api.get("/api/v1/audit", {"page_size": 10}).data
    seen = [event["object"] for event in page["results"]]
    while page["next"]:
        audit.record(actor, "policy.change", "one that came meanwhile")
        page = api.get(page["next"]).data
        seen += [event["object"] for event in page["results"]]
    assert seen == [f"try {number}" for number in reversed(range(25))]


def test_csv_is_the_whole_filtered_list(api: APIClient, events: None) -> None:
    found = rows(api.get("/api/v1/audit", {"format": "csv", "action": "policy", "page_size": 2}))
    assert [event["object"] for event in found] == [f"try {number}" for number in range(23, 0, -2)]
    assert found[0]["after"] == '{"n":23}'


def test_clients_are_csv_by_the_accept_header(api: APIClient, broker: FakeBroker) -> None:
    found = rows(api.get("/api/v1/clients?sort=-lag_messages", HTTP_ACCEPT="text/csv"))
    assert (len(found), found[0]["name"], found[0]["lag_messages"]) == (18, "board-jfk", "184220")


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "\t=1"])
def test_what_a_spreadsheet_would_run_is_a_text(text: str) -> None:
    assert cell(text) == f"'{escape_line(text)}"
    assert cell(-1) == -1


def test_a_name_from_outside_forges_no_row_and_no_formula_of_a_csv(api: APIClient, actor: Actor) -> None:
    attacks = ["a\r\nforged,row", "\x1b[2Jx", "\u00a0=1+1", "\uff1d1+1", "\n@SUM(A1)", "=1+1"]
    for text in attacks:
        audit.record(actor, "policy.change", "x", reason=text)
    answer = api.get("/api/v1/audit", {"format": "csv", "action": "policy"})
    text = answer.content.decode()
    assert len(text.splitlines()) == len(attacks) + 1 and "\x1b" not in text
    reasons = [one["reason"] for one in rows(answer)]
    assert not [one for one in reasons if one.lstrip().startswith(("=", "+", "-", "@", "\uff1d"))]


@pytest.mark.parametrize("query", [{"since": "yesterday"}, {"result": "maybe"}])
def test_a_filter_that_can_t_be_read_is_refused(query: dict[str, str], api: APIClient, events: None) -> None:
    answer = api.get("/api/v1/audit", query)
    assert (answer.status_code, list(answer.json()["details"]["fields"])) == (400, list(query))


def test_the_audit_is_searched_by_any_text_and_by_time(api: APIClient, actor: Actor, events: None) -> None:
    audit.record(actor, "client.disconnect", "sluice-1: client x", reason="misbehaving release")
    found = api.get("/api/v1/audit", {"search": "MISBEHAVING"}).data["results"]
    assert [event["object"] for event in found] == ["sluice-1: client x"]
    later = (timezone.now() + timedelta(minutes=1)).isoformat()
    assert api.get("/api/v1/audit", {"since": later}).data["results"] == []


def test_decisions_are_filtered_as_on_their_page(api: APIClient, operator: Any, instance: Instance) -> None:
    for number, reason in enumerate(("slow_client_age", "slow_client_disk")):
        Decision.objects.create(
            instance=instance,
            at=timezone.now(),
            client=f"c{number}",
            action="disconnect",
            reason=reason,
            revision=number,
        )
    found = api.get("/api/v1/decisions", {"reason": "slow_client_disk", "revision": 1}).data["results"]
    assert [one["client"] for one in found] == ["c1"]
    browser = Client()
    browser.force_login(operator)
    page = browser.get("/decisions/?reason=slow_client_disk").content
    assert (b"/clients/c1/" in page, b"/clients/c0/" in page) == (True, False)


def test_an_answer_that_didn_t_change_isn_t_sent_again(api: APIClient, events: None) -> None:
    first = api.get("/api/v1/people/maria")
    again = api.get("/api/v1/people/maria", HTTP_IF_NONE_MATCH=first["ETag"])
    assert (again.status_code, again.content) == (304, b"")
