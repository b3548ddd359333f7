"""Common tasks of an operator in a browser: disconnect a client, edit a policy, plan and apply a journal
action.
"""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.test_jobs import discard_pending_changes
from tests.browser.test_pages import open_page


def test_a_client_is_disconnected_as_a_pending_change_with_a_reason(page: Page) -> None:
    discard_pending_changes(page)
    open_page(page, "/clients/feed-publisher/")
    page.get_by_text("Act…").click()
    page.get_by_role("button", name="Disconnect…").click()
    pending = page.locator("#pending-changes")
    expect(pending).to_contain_text("1 client cut off")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_label("Reason")).to_be_focused()  # the browser requires the field
    page.get_by_label("Reason").fill("wrong release")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("feed-publisher was disconnected with the reason.")).to_be_visible()
    expect(page.locator("#state")).to_have_text("Not connected")


def test_a_removal_says_what_is_gone_for_good_and_needs_a_yes(page: Page) -> None:
    discard_pending_changes(page)
    open_page(page, "/journals/")
    page.get_by_role("radio", name="Remove").check()
    page.get_by_role("button", name="Show the plan").click()
    pending = page.locator("#pending-changes")
    expect(pending).to_contain_text("29.6 MiB can no longer be replayed")
    expect(pending).to_contain_text("it is the current segment")
    page.get_by_label("Reason").fill("disk is short")
    page.get_by_role("button", name="Apply").click()
    expect(pending.get_by_role("checkbox")).to_be_focused()
    page.goto("/clients/")  # the plan awaits confirmation on every page
    expect(page.locator("#pending-changes")).to_contain_text("29.6 MiB can no longer be replayed")
    page.get_by_role("button", name="Discard").click()
    expect(page.locator("#pending-changes")).to_be_hidden()


def test_a_policy_is_changed_and_comes_into_force(page: Page) -> None:
    discard_pending_changes(page)
    memory = page.get_by_label("Memory limit of the instance")
    expect(memory).to_have_attribute("placeholder", "now 2.40 GiB")
    memory.fill("1GiB")
    memory.press("Enter")
    expect(page.locator("#pending-changes")).to_contain_text("default → 1.00 GiB")
    page.get_by_label("Reason").fill("less memory on this host")
    page.locator("#pending-changes").get_by_role("checkbox").check()
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("is published and in force")).to_be_visible()
    newest = page.locator("li", has_text="less memory on this host")
    newest.get_by_text("1 change").click()
    expect(newest.locator("ins")).to_have_text("1.00 GiB")


def test_a_decision_unfolds_its_explanation(page: Page) -> None:
    open_page(page, "/decisions/")
    page.get_by_text("delay-mailer was offlined").click()
    expect(page.get_by_text("20,411 messages in its spool")).to_be_visible()
    expect(page.get_by_role("img", name="bytes waiting").first).to_be_visible()
