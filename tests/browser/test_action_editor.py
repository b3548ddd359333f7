"""The editor of actions in a browser: keyboard operation, preview of the next firings while typing, and
the plan before a run.
"""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.test_pages import open_page


def test_an_action_is_made_by_keyboard_alone(page: Page) -> None:
    open_page(page, "/journals/")
    page.keyboard.press("g")
    page.keyboard.press("x")
    page.wait_for_url("**/actions/")
    page.get_by_role("link", name="New action").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/actions/new/")
    page.get_by_label("Name", exact=True).focus()
    page.keyboard.type("nightly truncation")
    page.locator("#add-when-button").focus()
    page.keyboard.press("Enter")
    page.locator("#when-0-every").focus()
    page.keyboard.type("02:15Z")
    expect(page.locator("#when-0-every-firings")).to_contain_text("02:15 UTC")
    page.get_by_label("Add to: Steps, in this order").focus()
    page.keyboard.type("Trunc")
    page.locator("#add-steps-button").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#steps-0")).to_contain_text("Truncate statistics or decisions")
    expect(page.locator("#when-0-every")).to_have_value("02:15Z")
    page.get_by_label("Name", exact=True).focus()
    page.keyboard.press("Enter")  # saves, and does not press the first button, which removes a part
    expect(page.get_by_text("nightly truncation is saved.")).to_be_visible()
    expect(page.get_by_role("heading", name="Next firings")).to_be_visible()


def test_steps_change_places(page: Page) -> None:
    open_page(page, "/actions/new/")
    for kind in ("do.event", "do.rotate_log"):
        count = page.locator("#steps-title + ol > li").count()
        page.select_option("#add-steps", kind)
        page.locator("#add-steps-button").click()
        expect(page.locator("#steps-title + ol > li")).to_have_count(count + 1)
    page.locator("#steps-0-name").fill("done")
    page.get_by_role("button", name="Move Raise a custom event down").click()
    expect(page.locator("#steps-0")).to_contain_text("Rotate the log")
    expect(page.locator("#steps-1-name")).to_have_value("done")
    page.get_by_role("button", name="Remove Rotate the log").click()
    expect(page.locator("#steps-0-name")).to_have_value("done")


def test_the_plan_is_shown_before_the_run(page: Page) -> None:
    open_page(page, "/actions/")
    page.get_by_role("link", name="weekly archive").click()
    page.get_by_role("button", name="Show the plan").click()
    expect(page.locator("#plan")).to_contain_text("archive 1 segment older than 1w")
    expect(page.get_by_role("button", name="Run it")).to_be_visible()
