"""A rule on the page with a real broker: in shadow it needs no confirmation, enforced it needs one and
then acts.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Console
from tests.browser.test_pages import open_page
from tests.browser.test_transport_settings import client, sent_to
from tests.support.consoles import running_console

SEEN_MS = 30_000


@pytest.fixture(scope="module")
def console() -> Iterator[Console]:
    """Run a console with a real broker."""
    with running_console("real") as (address, process):
        yield Console(address, process)


def new_rule(page: Page, signal: str, topic: str, limit: str, mode: str) -> None:
    open_page(page, "/policies/rules/new/")
    page.get_by_label("Signal").select_option(signal)
    page.get_by_label("Topic or pattern").fill(topic)
    page.get_by_label("Limit").fill(limit)
    page.locator("main").get_by_label("Act").select_option("disconnect")
    page.get_by_label("Mode").select_option(mode)
    page.get_by_role("button", name="Preview changes").click()


@pytest.mark.parametrize(("signal", "topic"), [("backlog_messages", "u"), ("waiting_messages", "v")])
def test_a_rule_that_is_carried_out_needs_the_tick_and_cuts_off_whom_the_preview_named(
    page: Page, signal: str, topic: str
) -> None:
    open_page(page, "/policies/")
    transports = page.request.get("/api/v1/transports").json()
    listed = transports["results"] if isinstance(transports, dict) else transports
    port = next(one["running"]["port"] for one in listed if one["name"] == "stomp")
    pending = page.locator("#pending-changes")
    with client(port, "desk") as (connection, heard):
        connection.subscribe(
            f"/topic/{topic}", id="s", ack="client", headers={"prefetch-count": "2", "receipt": "there"}
        )
        assert heard.next().cmd == "RECEIPT"
        sent_to(port, f"/topic/{topic}", *map(str, range(20)))

        new_rule(page, signal, topic, "5", "shadow")
        expect(pending).to_contain_text("1 client would be acted on (recorded only)", timeout=SEEN_MS)
        assert pending.get_by_role("checkbox").count() == 0
        page.get_by_role("button", name="Discard").click()
        expect(pending).to_be_hidden()

        new_rule(page, signal, topic, "6", "enforce")
        expect(pending).to_contain_text("1 client disconnected", timeout=SEEN_MS)
        expect(pending).to_contain_text("Client desk will be disconnected")
        page.get_by_label("Reason").fill("it lags")
        page.get_by_role("button", name="Apply").click()
        expect(pending.get_by_role("checkbox")).to_be_focused()  # required; nothing was sent
        assert not heard.failed
        pending.get_by_role("checkbox").check()
        page.get_by_role("button", name="Apply").click()
        expect(page.locator("#messages")).to_contain_text("is published and in force", timeout=SEEN_MS)
        assert heard.next("ERROR").headers["message"] == "slow_client_backlog"
