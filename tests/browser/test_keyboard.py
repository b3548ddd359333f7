"""The tasks of test_jobs.py with the keyboard alone: focus is always visible and never trapped."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.test_jobs import discard_pending_changes
from tests.browser.test_pages import open_page

FOCUS = """() => {
  const at = document.activeElement, style = getComputedStyle(at), box = at.getBoundingClientRect();
  return {
    said: at.outerHTML.slice(0, 160),
    lost: at === document.body,
    ringed: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0,
    seen: box.width > 0 && box.height > 0 && box.bottom > 0 && box.top < innerHeight
      && box.right > 0 && box.left < innerWidth,
  };
}"""


class Keys:
    """Keyboard input to a page.

    `acts` counts filled fields, chosen options and keys with an effect. `moves` counts steps between them.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.acts = self.moves = 0

    def press(self, key: str) -> None:
        self.acts += 1
        self.page.keyboard.press(key)

    def write(self, text: str) -> None:
        """Type into the focused field, or the first letters of an option into a select."""
        self.acts += 1
        self.page.keyboard.type(text)

    def go(self, letter: str, url: str) -> None:
        self.moves += 1
        self.page.keyboard.press("g")
        self.page.keyboard.press(letter)
        self.page.wait_for_url(url)
        expect(self.page.locator("#feed")).to_have_attribute("data-status", "live")

    def find(self, words: str) -> None:
        """Go to a search result by Ctrl-K."""
        self.moves += 1
        self.page.keyboard.press("Control+k")
        self.page.keyboard.type(words)
        expect(self.page.locator("#palette-list [role=option]").first).to_contain_text(words)
        self.page.keyboard.press("Enter")
        expect(self.page.locator("#palette")).to_be_hidden()

    def tab(self, back: bool = False) -> None:
        self.moves += 1
        self.page.keyboard.press("Shift+Tab" if back else "Tab")
        focus = self.page.evaluate(FOCUS)
        assert focus["lost"] or (focus["ringed"] and focus["seen"]), focus

    def reach(self, target: Locator, most: int, back: bool = False) -> None:
        """Press Tab until the target has the focus, at most `most` times."""
        for _ in range(most):
            self.tab(back)
            if target.evaluate("one => one === document.activeElement"):
                return
        raise AssertionError(f"{target} isn't reached in {most} steps")


@pytest.fixture
def keys(page: Page) -> Keys:
    discard_pending_changes(page)
    return Keys(page)


def applied(keys: Keys, reason: str) -> None:
    """Confirm the risk in the focused pending changes, enter the reason and apply."""
    tick, field = keys.page.locator("#pending-changes [name=confirmed]"), keys.page.get_by_label("Reason")
    if tick.count():
        expect(tick).to_be_focused()
        keys.page.keyboard.press("Space")  # not counted: required only if clients are disconnected
        keys.reach(field, 1)
    expect(field).to_be_focused()
    keys.write(reason)
    keys.press("Enter")


def test_a_pools_limit_of_one_transport(page: Page, keys: Keys) -> None:
    open_page(page, "/")
    keys.go("p", "**/policies/")
    keys.find("Limits")
    limit = page.get_by_label("Memory limit of websocket")
    keys.reach(limit, 20)
    keys.write("320MiB" if limit.input_value() == "310MiB" else "310MiB")
    keys.press("Enter")
    expect(page.locator("#pending-changes")).to_contain_text("MessageMemoryLimit")
    applied(keys, "ticket 11")
    expect(page.get_by_text(re.compile("Revision \\d+ is published"))).to_be_visible()
    assert keys.acts == 4


def test_a_rule_for_a_topic_and_a_group_of_clients(page: Page, keys: Keys) -> None:
    open_page(page, "/")
    keys.find("New rule…")
    page.wait_for_url("**/rules/new/")
    keys.reach(page.get_by_label("Signal"), 40)
    keys.write("oldest age")
    for label, text in {"Topic or pattern": "flights.>", "Client names": "board-*", "Limit": "20"}.items():
        keys.reach(page.get_by_label(label), 1)
        keys.write(text)
    expect(page.locator("#rule-now")).to_contain_text("interpreted as 20.0 s")
    keys.reach(page.locator("main").get_by_label("Act"), 1)
    keys.write("disconnect")
    keys.reach(page.get_by_label("Mode"), 1)
    keys.write("recorded")
    keys.reach(page.get_by_role("button", name="Preview changes"), 1)
    keys.press("Enter")
    expect(page.locator("#pending-changes")).to_contain_text(
        "When the oldest age of flights.> for board-* passes 20.0 s, disconnect it"
    )
    applied(keys, "ticket 12")
    expect(page.get_by_text(re.compile("Revision \\d+ is published"))).to_be_visible()
    assert keys.acts <= 10


def test_an_archive_is_planned_and_applied(page: Page, keys: Keys) -> None:
    open_page(page, "/")
    keys.go("j", "**/journals/")
    keys.find("Plan")
    keys.reach(page.get_by_role("textbox", name="Segments whose newest record is older than"), 3)
    keys.write("7d")
    keys.press("Enter")
    expect(page.locator("#pending-changes")).to_contain_text("move to the archive directory")
    applied(keys, "ticket 13")
    expect(page.locator("#messages")).to_contain_text("Archive")
    assert keys.acts == 4


def test_the_worst_client_is_looked_at_and_planned_for_and_the_plan_is_taken_out(
    page: Page, keys: Keys
) -> None:
    open_page(page, "/")
    keys.reach(page.get_by_role("link", name="Skip to the content"), 1)
    keys.press("Enter")
    worst = page.locator("main .page-head").get_by_role("link", name="board-jfk")
    keys.reach(worst, 2)
    keys.press("Enter")
    page.wait_for_url("**/clients/board-jfk/")
    menu = page.locator("#acts summary")
    keys.reach(menu, 31)
    keys.press("Enter")
    keys.tab()
    keys.press("Escape")
    expect(menu).to_be_focused()
    keys.press("Enter")
    keys.reach(page.get_by_role("button", name=re.compile("Disconnect…")), 6)
    keys.press("Enter")
    expect(
        page.locator("#pending-changes").locator("[name=confirmed], #pending-reason").first
    ).to_be_focused()
    keys.press("Escape")
    expect(menu).to_be_focused()
    keys.find("Pending changes")
    keys.reach(page.get_by_role("button", name=re.compile("Remove 1")), 3, back=True)
    keys.press("Enter")
    expect(page.locator("#pending-changes")).to_be_hidden()
    expect(menu).to_be_focused()


@pytest.mark.parametrize("path", ("/", "/clients/", "/policies/"))
def test_tab_goes_once_around_a_page_in_its_order(page: Page, path: str) -> None:
    open_page(page, path)
    keys, passed = Keys(page), list[str]()
    for _ in range(400):
        keys.tab()
        at = page.evaluate(FOCUS)
        if at["lost"]:
            break
        passed.append(at["said"])
    assert page.evaluate(FOCUS)["lost"], "the focus is never trapped"  # nothing holds it fast
    assert "skip" in passed[0]
    assert page.locator("[tabindex]").evaluate_all("every => every.every(one => one.tabIndex <= 0)")
