"""What an operator does in the browser: disconnect, edit a policy, plan and apply a journal action."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.browser.test_pages import open_page


def test_a_client_is_disconnected_with_a_reason(page: Page) -> None:
    open_page(page, "/clients/feed-publisher/")
    page.get_by_role("button", name="Disconnect…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Disconnect").click()
    expect(dialog).to_be_visible()  # the browser itself asks for the reason
    dialog.get_by_label("Reason").fill("wrong release")
    dialog.get_by_role("button", name="Disconnect").click()
    expect(page.get_by_text("feed-publisher was disconnected and told why.")).to_be_visible()
    expect(page.locator("#state")).to_have_text("Not connected")


def test_the_plan_comes_first_and_removing_needs_the_instances_name(page: Page) -> None:
    open_page(page, "/journals/")
    page.get_by_role("radio", name="Remove").check()
    page.get_by_role("button", name="Show the plan").click()
    expect(page.get_by_role("heading", name="Plan: remove 1 segment, 29.6 MiB")).to_be_visible()
    expect(page.locator("#plan").get_by_text("it is the current segment")).to_be_visible()
    page.get_by_label("Instance name").fill("not-it")
    page.get_by_role("button", name="Remove 1 segment").click()
    expect(page.get_by_text("Nothing was removed")).to_be_visible()


def test_a_policy_is_changed_and_comes_into_force(page: Page) -> None:
    open_page(page, "/policies/")
    form = page.locator("#instance form")
    expect(form.get_by_label("Memory limit")).to_have_attribute("placeholder", "default, now 2.40 GiB")
    form.get_by_label("Memory limit").fill("1GiB")
    form.get_by_label("Reason for this change").fill("less memory on this host")
    form.get_by_role("button", name="Save as a new revision").click()
    expect(page.get_by_text("is saved and in force")).to_be_visible()
    newest = page.locator("li", has_text="less memory on this host")
    newest.get_by_text("1 change").click()
    expect(newest.locator("ins")).to_have_text("1.00 GiB")


def test_a_decision_unfolds_its_explanation(page: Page) -> None:
    open_page(page, "/decisions/")
    page.get_by_text("delay-mailer was offlined").click()
    expect(page.get_by_text("20,411 messages in its spool")).to_be_visible()
    expect(page.get_by_role("img", name="bytes waiting").first).to_be_visible()
