"""Drafts in a browser: keyboard operation from a new draft to a staged rollout, accessibility, and phone
layout.
"""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_pages import AXE, RUN_AXE, open_page


def new_draft(page: Page, title: str) -> str:
    """Create a draft; return its address."""
    open_page(page, "/policies/drafts/")
    page.get_by_label("Title", exact=True).fill(title)
    page.get_by_role("button", name="Draft from the newest revision").click()
    expect(page.get_by_role("heading", name=title, exact=True)).to_be_visible()
    return page.url


def add(page: Page, link: str, **fields: str) -> None:
    """Fill the form of a new entry and save it."""
    page.get_by_role("link", name=link).click()
    for name, value in fields.items():
        field = page.locator(f"[name={name}]")
        if field.evaluate("element => element.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
    page.get_by_role("button", name="Save in the draft").click()
    expect(page.get_by_text("Saved in the draft.")).to_be_visible()


def fill_parts(page: Page) -> None:
    """Add an entry of each type."""
    add(
        page,
        "Add a rule",
        name="behind",
        signal="backlog_bytes",
        limit="64MiB",
        mode="shadow",
        **{"rung-0-action": "warn"},
    )
    add(
        page,
        "Add an entry: ActiveMQ",
        topic="prices.>",
        prefetch_rate_pending_message_limit_strategy="2.5",
        prefetch="1000",
    )
    add(page, "Add an entry: Qpid", topic="stocks.us.*", depth="4235264", message_age="600000")
    add(page, "Add an entitlement", who="group:desk", subscribe="orders.>")


def test_from_a_new_draft_to_a_rollout_and_back(page: Page) -> None:
    open_page(page, "/policies/")
    page.get_by_role("link", name="Drafts", exact=True).focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/policies/drafts/")
    page.get_by_label("Title", exact=True).focus()
    page.keyboard.type("less for one client")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="Change limits and journaled topics").focus()
    page.keyboard.press("Enter")
    page.get_by_label("Maximum share of one client").fill("5")
    page.get_by_role("button", name="Save in the draft").focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Show preview").focus()
    page.keyboard.press("Enter")
    preview = page.locator("#preview")
    expect(preview).to_contain_text("ClientMaxCapacity")
    expect(preview).to_contain_text("board-jfk would be over its capacity.")
    expect(preview).to_contain_text(
        re.compile(r"Clients whose settings change:\s+(\d+) of \1\s+clients")
    )  # other tests disconnect some clients
    page.get_by_label("In force", exact=True).select_option("client")
    page.get_by_label("Client names").fill("desk-*")
    page.get_by_label("Most decisions").fill("3")
    page.get_by_role("button", name="Show preview").click()
    expect(preview).to_contain_text("For clients named desk-* first.")
    page.get_by_role("button", name="Preview changes").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#pending-changes")).to_contain_text("for desk-* first")
    page.get_by_label("Reason").fill("ticket 7")
    page.locator("#pending-changes").get_by_role("checkbox").check()
    page.get_by_role("button", name="Apply").click()
    expect(page.locator("#messages")).to_contain_text("is published for the first clients")
    open_page(page, "/policies/")
    expect(page.get_by_role("heading", name="Staged rollout")).to_be_visible()
    expect(page.locator("#main")).to_contain_text("for desk-* first")
    page.get_by_role("button", name="Stop it…").click()
    expect(page.locator("#pending-changes")).to_contain_text("Restore revision")
    page.get_by_label("Reason").fill("enough")
    page.locator("#pending-changes").get_by_role("checkbox").check()
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("heading", name="Staged rollout")).to_have_count(0)


def test_a_token_is_shown_once(page: Page) -> None:
    address = new_draft(page, "users")
    page.get_by_role("link", name="Add a user").click()
    page.get_by_label("Name", exact=True).fill("maria")
    page.get_by_label("Token", exact=True).select_option("new")
    page.get_by_role("button", name="Save in the draft").click()
    token = page.locator("[data-secret]").inner_text()
    assert len(token) > 30
    page.goto(address)
    expect(page.get_by_text("token set")).to_be_visible()
    assert token not in page.content()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_drafts_pages_are_accessible_and_fit_a_telephone(page: Page, theme: str) -> None:
    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    address = new_draft(page, f"every part, {theme}")
    fill_parts(page)
    page.get_by_role("button", name="Show preview").click()
    expect(page.locator("#preview")).to_contain_text("Differences from")
    for path in (
        "",
        "limits/",
        "transports/tcp/",
        "rules/0/",
        "activemq/0/",
        "users/new/",
        "/policies/drafts/",
    ):
        if path:
            open_page(page, path if path.startswith("/") else address + path)
        page.evaluate(AXE.read_text(encoding="utf-8"))
        assert page.evaluate(RUN_AXE) == [], path
        page.set_viewport_size({"width": 400, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, path
        page.set_viewport_size({"width": 1440, "height": 900})
