"""Messages in a browser: viewing, following, replaying from a message, and publishing."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.test_jobs import discard_pending_changes
from tests.browser.test_pages import open_page

ROWS = "#messages-list > li"


def test_a_topic_is_looked_at_and_a_replay_begins_at_a_record(page: Page) -> None:
    open_page(page, "/messages/")
    page.get_by_role("link", name="orders.fix").click()
    page.locator(ROWS).first.locator("summary").first.click()
    row = page.locator(ROWS).first
    expect(row).to_contain_text("MsgType")
    row.get_by_text("Hexadecimal").click()
    expect(row.get_by_label("The body in hexadecimal")).to_contain_text("38 3d 46 49 58")
    row.get_by_role("link", name="Replay from here…").click()
    expect(page.get_by_label("Topic or pattern")).to_have_value("orders.fix")
    expect(page.get_by_label("From", exact=True)).not_to_have_value("0")


def test_what_comes_is_shown_while_one_follows_and_no_longer(page: Page) -> None:
    open_page(page, "/messages/?topic=flights.UA")
    before = page.locator(ROWS).first.get_attribute("data-bookmark")
    page.get_by_role("button", name="Follow", exact=True).click()
    expect(page.locator(ROWS).first).not_to_have_attribute("data-bookmark", before or "", timeout=12_000)
    page.get_by_role("button", name="Stop following").click()
    expect(page.get_by_role("button", name="Follow", exact=True)).to_be_visible()
    marks = page.locator(ROWS).evaluate_all("rows => rows.map((row) => row.dataset.bookmark)")
    assert len(marks) == len(set(marks))


def test_more_than_the_page_takes_is_said_and_it_keeps_a_bounded_number(page: Page) -> None:
    open_page(page, "/messages/?topic=flights.UA")
    row = page.locator(ROWS).first.evaluate("row => row.outerHTML")
    turns = {"count": 0}

    def answer(route) -> None:  # type: ignore[no-untyped-def]
        turns["count"] += 1
        many = row * (400 if turns["count"] > 1 else 0)
        route.fulfill(
            body=f'<div data-after="sluice-1|{turns["count"]}|" data-passed="7">{many}</div>',
            content_type="text/html",
        )

    page.route("**/messages/follow/**", answer)
    page.get_by_role("button", name="Follow", exact=True).click()
    expect(page.locator("#passed")).to_contain_text("14 records of the log were skipped", timeout=12_000)
    expect(page.locator("#passed")).to_contain_text("older ones were removed")
    assert page.locator(ROWS).count() == 500


def test_a_message_is_published_by_hand_as_a_pending_change(page: Page) -> None:
    discard_pending_changes(page)
    open_page(page, "/messages/?topic=orders.nvfix")
    body = page.get_by_label("Body", exact=True)
    body.fill("{")
    page.get_by_role("button", name="Preview changes").click()
    expect(page.locator("#pending-changes")).to_contain_text("The message isn’t JSON")
    body.fill('{"hello": "desk"}')
    page.get_by_role("button", name="Preview changes").click()
    expect(page.locator("#pending-changes")).to_contain_text("Publish 16 B to orders.nvfix")
    page.get_by_label("Reason").fill("ticket 11")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator("#messages")).to_contain_text("The message was published to orders.nvfix.")
    expect(page.locator(ROWS).first).to_contain_text('{"hello": "desk"}')
