"""Map of the log in a browser: its actions become pending changes with a preview."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.test_jobs import discard_pending_changes
from tests.browser.test_pages import open_page


def test_acts_from_the_map_become_pending_changes(page: Page) -> None:
    discard_pending_changes(page)
    open_page(page, "/journals/")
    expect(page.get_by_role("img", name="On disk: 2 segments, 256 MiB")).to_be_visible()
    page.get_by_role("button", name="Remove… what is older than 7 days").click()
    expect(page.locator("#pending-changes")).to_contain_text("29.6 MiB can no longer be replayed")
    page.get_by_role("button", name="Release: disconnect… spool of board-jfk").click()
    expect(page.locator("#pending-changes")).to_contain_text("1 client cut off")
    expect(page.locator("#pending-changes")).to_contain_text("2 changes")
    page.get_by_role("button", name="Discard").click()
    expect(page.locator("#pending-changes")).to_be_hidden()
    page.get_by_role("link", name="24 h").click()
    expect(page.get_by_role("link", name="24 h")).to_have_attribute("aria-current", "true")
