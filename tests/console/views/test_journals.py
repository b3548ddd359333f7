"""Journal pages: a plan becomes a pending change, and runs only if it is still current."""

from __future__ import annotations

import pytest
from django.test import Client

from console.models import ActionRun
from console.services import runs
from tests.console.views.test_client import apply
from tests.support.fake_broker import FakeBroker
from tests.support.html import minified


@pytest.fixture(autouse=True)
def _no_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the queue: other tests cover workers."""
    monkeypatch.setattr(runs, "enqueue", lambda run: None)


def test_segments_are_listed_newest_first_with_who_needs_them(browser: Client, broker: FakeBroker) -> None:
    text = browser.get("/journals/").content.decode()
    assert text.index("1,120,001") < text.index("840,001 –") < text.index("1 – 280,000")
    assert "replay of lake-loader" in text


def test_a_plan_says_what_is_chosen_what_is_not_and_why(browser: Client, broker: FakeBroker) -> None:
    answer = browser.post(
        "/journals/plan/", {"action": "archive", "age": "7d"}, headers={"HX-Request": "true"}
    )
    text = answer.content.decode()
    assert "needed by replay of lake-loader and by the spool of board-jfk" in text
    assert "1 segment, 29.6 MiB move to the archive directory" in text
    assert not ActionRun.objects.exists()


def test_a_plan_without_scripts_is_on_the_page(browser: Client, broker: FakeBroker) -> None:
    answer = browser.post(
        "/journals/plan/",
        {"action": "archive", "age": "7d"},
        headers={"Referer": "http://testserver/journals/"},
        follow=True,
    )
    assert answer.redirect_chain[-1][0] == "/journals/"
    assert b"Archive segments whose newest record is older than" in answer.content


def test_an_age_that_cant_be_read_is_said(browser: Client, broker: FakeBroker) -> None:
    answer = browser.post(
        "/journals/plan/", {"action": "archive", "age": "soon"}, headers={"HX-Request": "true"}
    )
    assert b"is not an age" in answer.content


def test_nothing_old_enough_blocks_pending_changes(browser: Client, broker: FakeBroker) -> None:
    browser.post("/journals/plan/", {"action": "archive", "age": "52w"})
    assert b"No segment is older" in browser.get("/tray/").content
    apply(browser)
    assert not ActionRun.objects.exists()


def test_applying_a_plan_starts_a_run(browser: Client, broker: FakeBroker) -> None:
    browser.post("/journals/plan/", {"action": "compress", "age": "7d"})
    answer = apply(browser)
    run = ActionRun.objects.get()
    assert (run.kind, run.actor, run.parameters["age"]) == ("compress", "maria", "1w")
    assert b"started" in answer.content


def test_a_plan_that_no_longer_holds_starts_nothing_and_stays(browser: Client, broker: FakeBroker) -> None:
    browser.post("/journals/plan/", {"action": "compress", "age": "7d"})
    answer = apply(browser, plan="another")
    assert b"changed since the preview" in answer.content
    assert not ActionRun.objects.exists()
    assert b"Compress segments" in browser.get("/tray/").content


def test_removing_needs_a_yes_and_a_wrong_word_discards_nothing(browser: Client, broker: FakeBroker) -> None:
    browser.post("/journals/plan/", {"action": "remove", "age": "7d"})
    assert b"no longer be replayed" in browser.get("/tray/").content
    answer = apply(browser)
    assert (
        b"Confirm the warnings of the change first" in answer.content
        and b'value="wrong release"' in answer.content
    )
    assert not ActionRun.objects.exists()
    apply(browser, confirmed="on")
    assert ActionRun.objects.get().kind == "remove"


def test_a_second_run_of_a_kind_is_refused_with_its_reason_and_stays(
    browser: Client, broker: FakeBroker
) -> None:
    for _ in range(2):
        browser.post("/journals/plan/", {"action": "compress", "age": "7d"})
        answer = apply(browser)
    assert b"is in progress" in answer.content
    assert ActionRun.objects.count() == 1
    assert b"Remove 1" in browser.get("/tray/").content


def test_the_map_names_tiers_holders_and_acts(browser: Client, broker: FakeBroker) -> None:
    text = minified(browser.get("/journals/?range=7d"))
    assert "2 holders keep 128 MiB" in text
    assert "Release: disconnect… spool of board-jfk" in text
    assert "Archive… what is older than 7 days" in text
    assert browser.get("/journals/?range=nonsense").context["range"] == "all"


def test_an_onlooker_sees_the_map_without_acts(onlooker: Client, broker: FakeBroker) -> None:
    page, _, _ = minified(onlooker.get("/journals/")).partition("<dialog")  # the help mentions the actions
    assert "2 holders keep 128 MiB" in page and "Release" not in page and "Archive…" not in page


def test_a_log_of_thousands_of_segments_is_a_page_of_a_hundred(browser: Client, broker: FakeBroker) -> None:
    (one, *_) = broker.do_journals({})
    many = [{**one, "name": f"i.{n}.journal", "first_sequence": n} for n in range(1, 2_001)]
    broker.answers["journals"] = {"ok": True, "result": many}
    answer = browser.get("/journals/?page=3")
    assert len(answer.context["page"].object_list) == 100
    assert len(answer.content) < 200_000
