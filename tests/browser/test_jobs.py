"""Urgent tasks of an operator, each within a number of inputs: a click, a filled field, a pressed key.

`Hands` counts the inputs, and tests use only `Hands` to operate a page.
"""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.test_pages import open_page


class Hands:
    """Input to a page: counts the inputs and the page loads."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.acts = self.loads = 0
        page.on("load", lambda _: self._loaded())

    def _loaded(self) -> None:
        self.loads += 1

    def click(self, target: Locator) -> None:
        self.acts += 1
        target.click()

    def fill(self, target: Locator, text: str) -> None:
        self.acts += 1
        target.fill(text)

    def choose(self, target: Locator, word: str) -> None:
        self.acts += 1
        target.select_option(word)

    def press(self, target: Locator, key: str) -> None:
        self.acts += 1
        target.press(key)


@pytest.fixture
def hands(page: Page) -> Hands:
    return Hands(page)


def discard_pending_changes(page: Page) -> None:
    """Discard pending changes that an earlier test has left."""
    open_page(page, "/policies/")
    discard = page.get_by_role("button", name="Discard")
    if discard.is_visible():
        discard.click()
        expect(page.locator("#pending-changes")).to_be_hidden()


def test_a_pools_limit_of_one_transport(page: Page, hands: Hands) -> None:
    discard_pending_changes(page)
    hands.acts = hands.loads = 0
    open_page(page, "/policies/")
    limit = page.get_by_label("Memory limit of websocket")
    hands.fill(limit, "300MiB")
    hands.press(limit, "Enter")
    pending = page.locator("#pending-changes")
    expect(pending).to_contain_text("MessageMemoryLimit")
    expect(pending).to_contain_text("1 client cut off")  # from the broker's preview
    yes = pending.get_by_role("checkbox")
    assert yes.count() == 1
    hands.fill(page.get_by_label("Reason"), "ticket 8")
    yes.check()  # not counted: required only if clients are disconnected
    hands.click(page.get_by_role("button", name="Apply"))
    expect(page.get_by_text(re.compile("Revision \\d+ is published"))).to_be_visible()
    page.wait_for_load_state()  # the text appears before the page's load event
    assert (hands.acts, hands.loads) == (4, 2)


def test_a_rule_for_a_topic_and_a_group_of_clients(page: Page, hands: Hands) -> None:
    discard_pending_changes(page)
    hands.acts = 0
    hands.click(page.get_by_role("link", name="New rule…"))
    hands.choose(page.get_by_label("Signal"), "oldest_age")
    hands.fill(page.get_by_label("Topic or pattern"), "flights.>")
    hands.fill(page.get_by_label("Client names"), "board-*")
    hands.fill(page.get_by_label("Limit"), "20")
    expect(page.locator("#rule-now")).to_contain_text("interpreted as 20.0 s")
    expect(page.locator("#rule-now")).to_contain_text("past it now")
    hands.choose(page.locator("main").get_by_label("Act"), "disconnect")
    hands.choose(page.get_by_label("Mode"), "shadow")
    hands.click(page.get_by_role("button", name="Preview changes"))
    expect(page.locator("#pending-changes")).to_contain_text(
        "When the oldest age of flights.> for board-* passes 20.0 s, disconnect it"
    )
    hands.fill(page.get_by_label("Reason"), "ticket 9")
    page.locator("#pending-changes").get_by_role("checkbox").check()
    hands.click(page.get_by_role("button", name="Apply"))
    expect(page.get_by_text(re.compile("Revision \\d+ is published"))).to_be_visible()
    assert hands.acts <= 10


def test_an_archive_is_planned_and_applied(page: Page, hands: Hands) -> None:
    discard_pending_changes(page)
    hands.acts = 0
    open_page(page, "/journals/")
    age = page.get_by_role("textbox", name="Segments whose newest record is older than")
    hands.fill(age, "7d")
    hands.press(age, "Enter")
    expect(page.locator("#pending-changes")).to_contain_text("move to the archive directory")
    reason = page.get_by_label("Reason")
    hands.fill(reason, "ticket 10")
    hands.press(reason, "Enter")  # presses "Apply", although the button "Remove" comes first
    expect(page.locator("#messages")).to_contain_text("Archive")
    assert hands.acts == 4


def test_the_worst_client_is_found_in_one_look(page: Page, hands: Hands) -> None:
    open_page(page, "/")
    worst = page.locator("main .page-head").get_by_role("link", name="board-jfk")
    expect(worst).to_be_visible()
    assert worst.evaluate("link => link.getBoundingClientRect().bottom < innerHeight")
    assert hands.acts == 0
