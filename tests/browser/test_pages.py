"""Checks for every page in a browser: no script errors, no CSP violations, accessible, no horizontal
scrolling.
"""

from __future__ import annotations

import os
import re
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.browser.conftest import Console, log_in
from tests.browser.pages import ABSENT, DRAFT_PARTS, FAILING, FURTHER, LOGIN, PAGES, PAST

AXE = Path(__file__).parent / "vendor" / "axe-core-4.14.1" / "axe.min.js"
RUN_AXE = """async () => {
  const found = await axe.run({ resultTypes: ["violations"] });
  const summary = (node) => node.target.join(" ") + " " + node.failureSummary;
  return found.violations.map((one) => `${one.id}: ${one.nodes.map(summary).join(" | ")}`);
}"""


def open_page(page: Page, path: str) -> None:
    """Open a page and wait for the first snapshot of its feed."""
    page.goto(path)
    expect(page.locator("#feed")).to_have_attribute("data-status", "live")


def accessible(page: Page) -> None:
    """Check the accessibility of the current page in both themes."""
    page.evaluate(AXE.read_text(encoding="utf-8"))  # a script tag would violate the CSP, which is also tested
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
        assert page.evaluate(RUN_AXE) == [], (page.url, theme)


@pytest.mark.parametrize("path", (*PAGES, *FURTHER))
def test_a_page_is_accessible(page: Page, path: str) -> None:
    open_page(page, path)
    accessible(page)


def test_kept_runs_are_accessible_and_fit_a_telephone(page: Page) -> None:
    open_page(page, "/pipeline/")
    links = page.locator("main table a[href^='/pipeline/']")
    found = [link.get_attribute("href") or "" for link in links.all()]
    assert len(found) == 2  # one has tables and plots, one failed
    page.set_viewport_size({"width": 400, "height": 800})
    for path in found:
        open_page(page, path)
        accessible(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_a_draft_its_parts_its_preview_and_its_mistakes_are_accessible(context: BrowserContext) -> None:
    page = context.new_page()  # browsers log a rejected form as a console error
    open_page(page, "/policies/drafts/")
    page.get_by_label("Title").first.fill("Accessible")
    page.get_by_role("button", name="Draft from the newest revision").click()
    page.wait_for_url(re.compile(r"/drafts/\d+/$"))
    draft = page.url
    page.get_by_role("button", name="Show preview").click()
    expect(page.locator("main")).to_contain_text("Differences from the newest revision")
    accessible(page)
    for part in DRAFT_PARTS:
        open_page(page, f"{draft}{part}/")
        accessible(page)
    page.locator("main input[name=name]").fill("")
    page.get_by_role("button", name="Save in the draft").click()
    expect(page.locator("main [aria-invalid=true]").first).to_be_visible()
    accessible(page)


def test_refusals_failures_and_pages_without_a_session_are_accessible_and_fit_a_telephone(
    context: BrowserContext,
) -> None:
    page = context.new_page()  # browsers log a rejected request as a console error
    page.set_viewport_size({"width": 400, "height": 800})

    def looked_at(words: str) -> None:
        expect(page.get_by_role("heading", level=1)).to_contain_text(words)
        accessible(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, page.url

    words = (
        "Unknown client",
        "There is no page",
        "Internal error of the console",
        "The database hasn’t answered",
    )
    for path, said in zip((*ABSENT, *FAILING), words, strict=True):
        page.goto(path)
        looked_at(said)
    open_page(page, "/settings/")
    context.clear_cookies(name="csrftoken")
    page.get_by_role("button", name="Save").click()
    looked_at("Nothing was done")
    context.clear_cookies()
    page.goto(LOGIN)
    looked_at("Log in")
    log_in(page, "viewer")
    page.goto("/access/")
    looked_at("Not allowed")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_moment_that_is_over_is_accessible_fits_a_telephone_and_leads_back(page: Page, theme: str) -> None:
    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    open_page(page, "/clients/board-jfk/")
    page.get_by_label("Time zone").select_option("utc")
    page.locator(".top .at summary").click()
    wanted = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    page.locator("#at").fill(wanted.strftime("%Y-%m-%dT%H:%M:%S"))
    page.get_by_role("button", name="Show").click()
    page.wait_for_url(lambda url: "at=" in url)
    query = f"?at={wanted:%Y-%m-%dT%H:%M:%SZ}"
    for path in PAST:
        page.goto(path + query.replace(":", "%3A"))
        expect(page.locator(".past")).to_contain_text("As it was at")
        page.evaluate(AXE.read_text(encoding="utf-8"))
        assert page.evaluate(RUN_AXE) == [], path
    page.set_viewport_size({"width": 400, "height": 800})
    for path in ("/policies/", "/clients/"):
        page.goto(path + query)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.get_by_role("link", name="Back to now").click()
    expect(page.locator("#feed")).to_have_attribute("data-status", "live")


def test_moments_are_told_by_the_clock_that_one_chooses(page: Page) -> None:
    open_page(page, "/decisions/")
    first = page.locator("main time").first
    page.get_by_label("Time zone").select_option("utc")
    expect(page.locator("#now")).to_contain_text("UTC")
    expect(first).to_have_attribute("title", re.compile(r" UTC \("))
    page.reload()
    expect(page.get_by_label("Time zone")).to_have_value("utc")


def test_a_session_that_ended_is_said_at_the_top_and_rows_are_dimmed(page: Page) -> None:
    open_page(page, "/clients/")
    page.context.clear_cookies()
    expect(page.locator("#standings")).to_contain_text("Your session ended", timeout=12_000)
    expect(page.locator("body.blind")).to_have_count(1)
    accessible(page)


@pytest.mark.parametrize("path", PAGES)
def test_a_page_fits_a_telephone(page: Page, path: str) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    open_page(page, path)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_with_500_clients_no_page_of_a_telephone_is_taller_than_ten_screens(
    page: Page, console: Console
) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    os.kill(console.process.pid, signal.SIGUSR2)
    try:
        open_page(page, "/clients/")
        expect(page.locator("#count-clients")).to_have_text("500")
        for path in PAGES:
            open_page(page, path)
            drawn = {"/": ".heat-row", "/clients/": "tr[data-name]", "/flow/": ".flow-node"}.get(path, "h1")
            expect(page.locator(f"main {drawn}").first).to_be_visible()
            assert page.evaluate("document.documentElement.scrollHeight") <= 8_000, path
    finally:
        os.kill(console.process.pid, signal.SIGUSR1)


def test_the_menu_of_a_telephone_leads_on(page: Page) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    open_page(page, "/")
    journals = page.locator("nav[aria-label=Pages] a", has_text="Journals")
    expect(journals).to_be_hidden()
    page.get_by_role("button", name="Menu").click()
    journals.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("The log has")


def test_the_theme_follows_the_system_until_one_is_chosen(page: Page) -> None:
    page.emulate_media(color_scheme="dark")
    open_page(page, "/")
    html = page.locator("html")
    expect(html).to_have_attribute("data-theme", "dark")
    page.emulate_media(color_scheme="light")
    expect(html).to_have_attribute("data-theme", "light")
    page.get_by_role("button", name="Dark").click()
    expect(html).to_have_attribute("data-theme", "dark")
    page.reload()
    expect(html).to_have_attribute("data-theme", "dark")
    expect(page.get_by_role("button", name="Dark")).to_have_attribute("aria-pressed", "true")


def test_settings_hold_until_a_switch_of_this_browser_and_again_when_saved(context: BrowserContext) -> None:
    context.clear_cookies()
    page = context.new_page()
    log_in(page, "viewer")  # no other test changes this account's settings
    html = page.locator("html")
    for theme, other in (("Dark", "Light"), ("Light", "Dark")):
        open_page(page, "/settings/")
        page.get_by_label("Theme", exact=True).select_option(theme)
        page.get_by_label("Time zone").last.select_option("utc")
        page.get_by_role("button", name="Save").click()
        expect(page.locator("#messages")).to_contain_text("Saved")
        expect(html).to_have_attribute("data-theme", theme.lower())
        expect(page.locator("#zone")).to_have_value("utc")
        page.get_by_role("button", name=other).click()
        open_page(page, "/flow/")
        expect(html).to_have_attribute("data-theme", other.lower())


def test_the_keyboard_leads_everywhere(page: Page) -> None:
    open_page(page, "/")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("g")
    page.keyboard.press("c")
    page.wait_for_url("**/clients/")
    expect(page.locator("#clients tbody tr[data-name]").first).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_label("Search clients")).to_be_focused()
    page.keyboard.type("jfk g c")  # in a field, shortcuts are plain letters
    expect(page.get_by_label("Search clients")).to_have_value("jfk g c")
    page.keyboard.press("Escape")
    expect(page.get_by_label("Search clients")).to_have_value("")
    expect(page.locator("#clients tbody tr[data-name]").nth(1)).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/clients/*/")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()


def test_an_onlooker_sees_no_way_to_change_things(context: BrowserContext) -> None:
    context.clear_cookies()
    page = context.new_page()
    log_in(page, "viewer")
    page.goto("/journals/")
    expect(page.get_by_role("button", name="Show the plan")).to_have_count(0)
    page.goto("/policies/")
    expect(page.get_by_role("button", name="Save as a new revision")).to_have_count(0)
