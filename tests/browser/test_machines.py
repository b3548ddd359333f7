"""Console with several machines in a browser: instance chooser, table of brokers, a group with changing
members, links in each state.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Console
from tests.browser.pages import OF_MACHINES, PAGES
from tests.browser.test_pages import accessible, open_page
from tests.support.consoles import running_console

Happens = Callable[[str], None]
SEEN_MS = 30_000
"""In which a page says what has happened; it looks each two or five seconds, on a machine that may be
busy.
"""


@pytest.fixture(scope="module")
def console() -> Iterator[Console]:
    """Run a console with several machines in place of the standard console."""
    with running_console("machines") as (address, process):
        yield Console(address, process)


@pytest.fixture(scope="module")
def say(console: Console) -> Happens:
    """Return a function that plays a scene of tests/support/machines.py."""

    def happens(scene: str) -> None:
        process: subprocess.Popen[bytes] = console.process
        assert process.stdin is not None
        process.stdin.write(f"{scene}\n".encode())
        process.stdin.flush()

    return happens


@pytest.fixture(autouse=True)
def well(say: Happens) -> Iterator[None]:
    """Restore all members and links after each test."""
    yield
    for scene in ("back b", "took c", "upgraded c", "linked"):
        say(scene)


def reload_until(page: Page, selector: str, words: str) -> None:
    """Reload a page that isn't live until an element has these words.

    A scene takes effect shortly after `say` returns.
    """
    deadline = time.monotonic() + SEEN_MS / 1_000
    page.reload()
    while words not in " ".join(page.locator(selector).inner_text().split()) and time.monotonic() < deadline:
        page.reload()
    expect(page.locator(selector)).to_contain_text(words)


def row(page: Page, title: str, name: str) -> Locator:
    """Return the row with this name in a table."""
    named = page.locator("td.first bdi", has_text=re.compile(f"^{re.escape(name)}$"))
    return page.locator(f"section[aria-labelledby={title}] tbody tr:not(.note)").filter(has=named)


def test_the_chooser_turns_every_page_to_another_instance_and_back(page: Page) -> None:
    open_page(page, "/clients/")
    shown = page.locator("#clients tbody tr[data-name]")
    expect(shown).to_have_count(18)
    page.get_by_label("Instance", exact=True).select_option("prices")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.locator("body")).to_have_attribute("data-instance", "prices")
    open_page(page, "/clients/")
    expect(shown).to_have_count(2)
    expect(page.locator("#clients")).to_contain_text("price-loader")
    expect(page.get_by_role("columnheader", name="Member")).to_have_count(0)
    open_page(page, "/replication/")
    expect(page.locator("#group")).to_contain_text("This broker isn't in a group")
    expect(page.get_by_label("Instance", exact=True)).to_have_value("prices")
    page.get_by_label("Instance", exact=True).select_option("sluice-1")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.locator("body")).to_have_attribute("data-instance", "sluice-1")


def test_the_brokers_table_says_who_left_and_came_back_while_the_page_is_open(
    page: Page, say: Happens
) -> None:
    open_page(page, "/")
    brokers = page.locator("#brokers")
    expect(brokers).to_contain_text("4 of 4 answer, checked at")
    for name in ("sluice-1/a", "sluice-1/b", "sluice-1/c", "prices"):
        expect(row(page, "brokers-title", name)).to_contain_text("answers")
    pools = page.locator("#pools")
    expect(pools).to_contain_text("shared at b, memory")
    say("away b")
    expect(brokers).to_contain_text("3 of 4 answer", timeout=SEEN_MS)
    expect(row(page, "brokers-title", "sluice-1/b")).to_contain_text("broker_away")
    expect(page.locator("#standings")).to_contain_text(
        "The broker sluice-1/b doesn't answer (broker_away)", timeout=SEEN_MS
    )
    expect(page.locator("#standings")).not_to_contain_text("isn't in force")
    expect(pools).not_to_contain_text("shared at b", timeout=SEEN_MS)
    expect(page.locator("#count-clients")).to_have_text("14")
    accessible(page)
    say("back b")
    expect(brokers).to_contain_text("4 of 4 answer", timeout=SEEN_MS)
    expect(page.locator("#count-clients")).to_have_text("18", timeout=SEEN_MS)
    expect(page.locator("#standings")).not_to_contain_text("sluice-1/b", timeout=SEEN_MS)


def test_a_member_that_is_away_is_said_with_how_old_its_figures_are_and_is_the_same_when_it_is_back(
    page: Page, say: Happens
) -> None:
    open_page(page, "/replication/")
    group = page.locator("#group")
    expect(group).to_contain_text("Every member is active and consistent")
    expect(row(page, "members-title", "b")).to_contain_text("the same")
    say("away b")
    expect(group).to_contain_text("Attention needed: b", timeout=SEEN_MS)
    gone = row(page, "members-title", "b")
    expect(gone).to_contain_text("broker_away")
    expect(gone).to_contain_text(re.compile(r"[\d,]+ records?,\s"))
    expect(group.locator("tr.note")).to_contain_text("The broker sluice-1/b can't be reached")
    reported = re.compile(r"Its figures were reported\s+[\d.]+ (s|min.*)\s+ago")
    expect(group.locator("tr.note")).to_contain_text(reported)
    expect(row(page, "members-title", "c")).to_contain_text("the same")
    accessible(page)
    say("back b")
    expect(group).to_contain_text("Every member is active and consistent", timeout=SEEN_MS)
    expect(group.locator("tr.note")).to_have_count(0)


def test_a_member_that_isnt_waited_for_any_more_says_by_whom_and_what_it_has_confirmed(
    page: Page, say: Happens
) -> None:
    open_page(page, "/replication/")
    slow = row(page, "members-title", "c")
    expect(slow).to_contain_text("sync: acknowledgements wait for it")
    say("downgraded c")
    expect(slow).to_contain_text(
        "downgraded by policy: acknowledgements do not wait for it; it has confirmed record 9,790,102",
        timeout=SEEN_MS,
    )
    expect(slow).to_contain_text("812 entries, 21,098 records, 9.7 s")
    say("upgraded c")
    expect(slow).to_contain_text("sync: acknowledgements wait for it", timeout=SEEN_MS)


def test_a_revision_that_a_member_refuses_is_said_alike_on_every_page_that_tells_of_it(
    page: Page, say: Happens
) -> None:
    open_page(page, "/replication/")
    say("refused c")
    expect(page.locator("#group")).to_contain_text("revision 4 in force on 2 of 3 members", timeout=SEEN_MS)
    expect(page.locator("#group")).to_contain_text("c: The broker runs revision 3")
    expect(page.locator("#standings")).to_contain_text("Revision 4 isn't in force", timeout=SEEN_MS)
    open_page(page, "/policies/")
    expect(page.locator("main")).to_contain_text("Revision 4 in force on 2 of 3 members")
    newest = page.locator("li", has_text="Revision 4").locator(".when")
    expect(newest).to_contain_text("in force on a, b")
    expect(newest).to_contain_text("wanted")
    expect(page.locator("li", has_text="Revision 3").locator(".when").first).to_contain_text("in force on c")
    open_page(page, "/")
    expect(row(page, "brokers-title", "sluice-1/c")).to_contain_text("3, not 4")
    told = {one["name"]: one["revision"] for one in page.request.get("/api/v1/brokers").json()}
    assert told == {"sluice-1/a": 4, "sluice-1/b": 4, "sluice-1/c": 3, "prices": 1}
    say("took c")
    expect(row(page, "brokers-title", "sluice-1/c")).not_to_contain_text("not 4", timeout=SEEN_MS)
    expect(page.locator("#standings")).not_to_contain_text("isn't in force", timeout=SEEN_MS)


def test_links_say_who_carries_them_why_one_is_away_and_which_is_off(page: Page, say: Happens) -> None:
    open_page(page, "/replication/")
    newyork, tokyo = row(page, "links-title", "newyork"), row(page, "links-title", "tokyo")
    expect(newyork).to_have_count(1)
    expect(newyork).to_contain_text("forwarding")
    expect(newyork).to_contain_text("by a; b and c stand by")
    expect(newyork).to_contain_text("41 records, 120 ms")
    expect(tokyo).to_contain_text("off: it keeps its position and pins the log from there")
    expect(tokyo).not_to_contain_text("by a")
    say("cut off")
    expect(newyork).to_contain_text(
        "disconnected: Nobody answers at tcps://ny:9007. See whether it runs there", timeout=SEEN_MS
    )
    expect(newyork).to_contain_text("184,220 records, 5 min 12 s")
    never = row(page, "links-title", "sydney")
    expect(never).to_contain_text("disconnected: There is no secret for sydney.")
    expect(never).to_contain_text("time unknown")
    expect(never).to_contain_text("nothing yet")
    accessible(page)


def test_a_client_whose_member_is_away_isnt_called_disconnected(page: Page, say: Happens) -> None:
    open_page(page, "/clients/delay-mailer/")
    expect(page.locator("#state")).to_have_text("Draining")
    say("away b")
    expect(page.locator("#slow")).to_contain_text(
        "Not known: The broker sluice-1/b can't be reached", timeout=SEEN_MS
    )
    expect(page.locator("#state")).to_have_text("Not known", timeout=SEEN_MS)
    page.reload()
    expect(page.locator("#head")).to_contain_text("Not known")
    expect(page.locator("#head")).to_contain_text("Figures are from")
    expect(page.locator("#head")).not_to_contain_text("isn’t connected")
    say("back b")
    expect(page.locator("#state")).to_have_text("Draining", timeout=SEEN_MS)


def test_the_journal_of_a_member_that_is_away_isnt_called_empty(page: Page, say: Happens) -> None:
    open_page(page, "/journals/")
    page.get_by_role("navigation", name="Members").get_by_role("link", name="b").click()
    expect(page.locator("main")).to_contain_text("At b: 5 segments")
    page.get_by_role("link", name="24 h").click()
    expect(page.locator("main")).to_contain_text("At b: 5 segments")
    say("away b")
    reload_until(page, "main", "The log's contents are known when b answers")
    expect(page.locator("main")).not_to_contain_text("free to go.")
    expect(page.locator("main")).not_to_contain_text("0 segments")


@pytest.mark.parametrize("path", OF_MACHINES)
def test_a_page_about_several_machines_is_accessible_and_fits_a_telephone_while_one_is_away(
    page: Page, say: Happens, path: str
) -> None:
    for scene in ("away b", "refused c", "downgraded c", "cut off"):
        say(scene)
    open_page(page, path)
    accessible(page)
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


@pytest.mark.parametrize("width", [1440, 1024, 400])
def test_every_page_of_a_console_with_a_group_and_links_fits(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    for path in PAGES:
        open_page(page, path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        if path == "/clients/" and width > 400:
            names = page.locator("#clients td.first")
            cut = names.evaluate_all(
                "cells => cells.filter((cell) => cell.scrollWidth > cell.clientWidth)"
                ".map((cell) => cell.innerText)"
            )
            assert cut == []
