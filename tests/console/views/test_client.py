"""The page of one client, and disconnecting the client."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from console.models import AuditEvent, ClientSample, Decision, Instance, LossRecord
from tests.support.fake_broker import FakeBroker, make_client, make_subscription
from tests.support.html import minified
from tests.support.seed import seed_decisions, seed_hours


def test_a_logged_on_client_is_shown_with_its_subscriptions(browser: Client, broker: FakeBroker) -> None:
    text = browser.get("/clients/board-jfk/").content.decode()
    assert "Offlined" in text
    assert "flights.&gt;" in text
    assert "184,220" in text


@pytest.mark.parametrize(("heartbeat_ms", "text"), [(10_000, "10.0 s"), (None, "–")])
def test_a_client_is_shown_with_its_heartbeat(
    browser: Client, broker: FakeBroker, heartbeat_ms: int | None, text: str
) -> None:
    broker.clients = [make_client("one", heartbeat_ms=heartbeat_ms)]
    page = minified(browser.get("/clients/one/").content.decode())
    assert f'<dd data-figure="heartbeat_ms">{text}</dd>' in page


def test_a_client_that_logged_off_keeps_its_page(
    browser: Client, broker: FakeBroker, instance: Instance
) -> None:
    seed_decisions(instance)
    text = browser.get("/clients/old-dashboard/").content.decode()
    assert "Not connected" in text
    assert "over ClientMessageAgeLimit" in text
    assert "17 messages" in text


def test_a_client_that_never_was_isnt_found(browser: Client, broker: FakeBroker) -> None:
    answer = browser.get("/clients/nobody-at-all/")
    assert answer.status_code == 404
    assert b"Unknown client" in answer.content


def test_while_the_broker_is_away_nobody_is_said_never_to_have_been(
    browser: Client, instance: Instance
) -> None:
    assert browser.get("/clients/nobody-at-all/").status_code == 200


def test_a_gone_client_says_when_it_was_last_seen(
    browser: Client, broker: FakeBroker, instance: Instance
) -> None:
    at = timezone.now().replace(microsecond=0) - timedelta(minutes=5)
    ClientSample.objects.create(instance=instance, client="went", at=at, state="live")
    assert b"last seen at" in browser.get("/clients/went/").content


def test_what_was_only_recorded_never_looks_done(
    browser: Client, broker: FakeBroker, instance: Instance
) -> None:
    at = timezone.now()
    Decision.objects.create(
        instance=instance, at=at, client="x", action="disconnect", mode="shadow", reason="slow_client_age"
    )
    for path in ("/", "/decisions/", "/clients/x/"):
        text = browser.get(path).content.decode()
        assert "Would be disconnected" in text and "recorded only" in text
        assert ">Disconnected<" not in text.replace('<option value="disconnect">Disconnected<', "")


def test_its_samples_are_handed_to_the_plot(browser: Client, instance: Instance) -> None:
    at = timezone.now().replace(microsecond=0) - timedelta(minutes=5)
    ClientSample.objects.create(instance=instance, client="slow", at=at, state="offlined", lag_messages=42)
    assert b'"lag_messages": 42' in browser.get("/clients/slow/").content


def test_its_hours_are_shown_once_the_pipeline_wrote_them(
    browser: Client, instance: Instance, settings: Any, tmp_path: Path
) -> None:
    settings.SLUICE_LAKE_DIRECTORY = tmp_path
    assert b"Not computed yet" in browser.get("/clients/board-jfk/").content
    seed_hours(instance)
    text = browser.get("/clients/board-jfk/").content.decode()
    assert "hourly-plot" in text
    assert '"lag_messages_max"' in text


def test_a_name_from_outside_is_never_markup(browser: Client, broker: FakeBroker) -> None:
    broker.clients.append(
        make_client(
            "x",
            subscriptions=[
                make_subscription(id="<script>1</script>", topic="<b>", filter="<img>", bookmark=""),
            ],
        )
    )
    text = browser.get("/clients/x/").content.decode()
    assert "<script>1" not in text
    assert "&lt;script&gt;1" in text


def apply(browser: Client, reason: str = "wrong release", **more: str) -> Any:
    """Apply the pending changes as previewed."""
    held = browser.get("/tray/").content.decode()
    found = re.search(r'name="plan" value="(\w+)"', held)
    form = {"reason": reason, "plan": found[1] if found else "", **more}
    return browser.post("/tray/apply/", form, follow=True)


def test_an_operator_disconnects_as_a_pending_change_with_a_reason(
    browser: Client, broker: FakeBroker
) -> None:
    browser.post("/clients/board-jfk/disconnect/")
    assert not [request for request in broker.asked if request["do"] == "disconnect"]
    assert b"messages" in browser.get("/tray/").content
    answer = apply(browser)
    assert {"do": "disconnect", "name": "board-jfk", "reason": "wrong release"} in broker.asked
    assert b"was disconnected with the reason" in answer.content
    assert AuditEvent.objects.get(action="client.disconnect").reason == "wrong release"
    assert b"Take out" not in browser.get("/tray/").content


def test_without_a_reason_nothing_is_disconnected_and_the_plan_stays(
    browser: Client, broker: FakeBroker
) -> None:
    browser.post("/clients/board-jfk/disconnect/")
    assert b"A reason is required" in apply(browser, " ").content
    assert not [request for request in broker.asked if request["do"] == "disconnect"]
    assert b"Disconnect board-jfk" in browser.get("/tray/").content


def test_a_client_that_went_meanwhile_is_said_and_blocks(browser: Client, broker: FakeBroker) -> None:
    browser.post("/clients/nobody/disconnect/")
    assert b"is logged on" in browser.get("/tray/").content
    assert b"Remove 1" in apply(browser).content


def test_an_onlooker_may_not_disconnect(onlooker: Client, broker: FakeBroker) -> None:
    assert onlooker.post("/clients/board-jfk/disconnect/", {"reason": "x"}).status_code == 403
    assert (
        b"Disconnect"
        not in onlooker.get("/clients/board-jfk/").content.split(b"<h1>")[1].split(b"Connection")[0]
    )


def test_its_subscriptions_are_paused_and_resumed_and_it_is_offlined(
    browser: Client, broker: FakeBroker
) -> None:
    browser.post("/clients/carrier-aa/pause/")
    assert b"are paused" in apply(browser).content
    text = browser.get("/clients/carrier-aa/").content.decode()
    assert "/carrier-aa/resume/" in text and "/carrier-aa/pause/" not in text
    browser.post("/clients/carrier-aa/resume/")
    apply(browser)
    text = browser.get("/clients/carrier-aa/").content.decode()
    assert "/carrier-aa/resume/" not in text and "/carrier-aa/pause/" in text
    browser.post("/clients/carrier-aa/offline/")
    assert b"was offlined" in apply(browser).content
    browser.post("/clients/carrier-aa/offline/")
    assert b"is already offlined" in browser.get("/tray/").content
    assert [one["do"] for one in broker.asked if one["do"] in ("pause", "resume", "offline")] == [
        "pause",
        "resume",
        "offline",
    ]
    results = (
        AuditEvent.objects.filter(action__startswith="client.").order_by("at").values_list("action", "result")
    )
    assert list(results) == [
        ("client.pause", "done"),
        ("client.resume", "done"),
        ("client.offline", "done"),
    ]


def test_the_slow_section_asks_for_itself_and_an_onlooker_gets_no_buttons(
    onlooker: Client, broker: FakeBroker
) -> None:
    text = onlooker.get("/clients/carrier-aa/").content.decode()
    assert 'hx-get="/clients/carrier-aa/slow/"' in text and 'hx-trigger="every 2s"' in text
    assert "/pause/" not in text
    assert onlooker.post("/clients/carrier-aa/pause/").status_code == 403
    assert b"Not connected" in onlooker.get("/clients/nobody/slow/").content


def test_every_rule_that_may_act_is_shown_with_when_or_why_not(browser: Client, broker: FakeBroker) -> None:
    for path in ("/clients/board-jfk/", "/clients/board-jfk/slow/"):
        text = minified(browser.get(path))
        assert "900 B of 1000 B" in text and "at this rate in <b>10.0 s</b>, then disconnect it." in text
        assert "0 B of 1000 B; at the limit, disconnect it." in text


def test_the_page_tells_losses_from_messages_that_the_log_keeps(
    browser: Client, broker: FakeBroker, instance: Instance
) -> None:
    for cause in ("kept_in_log", "discarded"):
        LossRecord.objects.create(
            instance=instance,
            at=timezone.now(),
            client="board-jfk",
            subscription="s",
            cause=cause,
            messages=1,
        )
    text = minified(browser.get("/clients/board-jfk/"))
    assert re.search(r"stored in the log <span[^>]*>not lost</span>", text)
    assert text.count("not lost") == 1
