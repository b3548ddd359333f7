"""The page of managed replays."""

from __future__ import annotations

from django.test import Client

from tests.support.fake_broker import FakeBroker


def test_it_shows_progress_time_left_and_what_can_be_done(browser: Client, broker: FakeBroker) -> None:
    text = browser.get("/replays/").content.decode()
    assert 'aria-valuenow="61"' in text
    assert "12 min" in text
    for label in (
        "Pause… nightly",
        "Resume audit-2026",
        "Set rate of nightly",
        "Cancel… nightly",
        "Remove from list: last-week",
    ):
        assert f'aria-label="{label}"' in text
    assert "Resume nightly" not in text
    assert 'hx-trigger="every 2s"' in text


def test_an_onlooker_sees_it_without_buttons(onlooker: Client, broker: FakeBroker) -> None:
    text = onlooker.get("/replays/").content.decode()
    assert "nightly" in text
    assert "Pause… nightly" not in text
    assert "Make the replay" not in text


def test_pausing_is_pending_and_the_other_buttons_do_what_they_say(
    browser: Client, broker: FakeBroker
) -> None:
    browser.post("/replays/nightly/pause/")
    assert b"Pause the replay nightly of" in browser.get("/tray/").content
    browser.post("/replays/nightly/rate/", {"rate": "8X", "rate_max_gap": "10s"})
    browser.post("/replays/nightly/resume/")
    browser.post("/replays/audit-2026/rate/", {"rate": " "})
    steered = ("replay_rate", "replay_resume", "replay_pause")
    assert [(one["do"], one["name"], one.get("rate")) for one in broker.asked if one["do"] in steered] == [
        ("replay_rate", "nightly", "8X"),
        ("replay_resume", "nightly", None),
        ("replay_rate", "audit-2026", None),
    ]
    answer = browser.post("/replays/nobody/pause/", follow=True)
    assert b"The managed replay" in answer.content


def test_one_is_made_from_the_form(browser: Client, broker: FakeBroker) -> None:
    answer = browser.post(
        "/replays/new/",
        {"name": "audit", "client": "board-jfk", "topic": "flights.>", "paused": "on"},
        follow=True,
    )
    assert b"was created for board-jfk" in answer.content
    asked = next(one for one in broker.asked if one["do"] == "replay_create")
    assert (asked["client"], asked["bookmark"], asked["paused"]) == ("board-jfk", "0", True)
