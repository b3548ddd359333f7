"""The command palette (Ctrl-K) by keyboard: to a page, a section, a client; accessible while open."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.browser.test_pages import AXE, RUN_AXE, open_page


def test_the_palette_leads_to_pages_parts_and_clients(page: Page) -> None:
    open_page(page, "/journals/")
    page.keyboard.press("Control+k")
    field = page.get_by_role("combobox", name="Page, part of this page, or client")
    expect(field).to_be_focused()
    page.keyboard.type("segm")
    expect(page.locator("#palette-list [role=option]").first).to_contain_text("Segments")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Segments")).to_be_focused()
    page.keyboard.press("Control+k")
    page.keyboard.type("board")
    option = page.get_by_role("option", name=re.compile("board-jfk"))
    expect(option).to_contain_text("stalled")
    while option.get_attribute("aria-selected") != "true":
        page.keyboard.press("ArrowDown")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    assert page.evaluate(RUN_AXE) == []
    page.keyboard.press("Enter")
    page.wait_for_url("**/clients/board-jfk/")
    page.get_by_role("button", name=re.compile("Ctrl K")).click()
    page.keyboard.type("nothing is called so at all")
    expect(page.locator("#palette-said")).to_have_text("No match")
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    page.keyboard.type("audit")
    page.keyboard.press("Enter")
    page.wait_for_url("**/audit/")
