"""Settings of a STOMP transport: changed in a draft, applied by a real broker, seen by a client."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import stomp
from playwright.sync_api import Page, expect

from tests.browser.conftest import Console
from tests.browser.test_drafts import new_draft
from tests.browser.test_pages import open_page
from tests.support.consoles import running_console


@pytest.fixture(scope="module")
def console() -> Iterator[Console]:
    """Run a console with a real broker."""
    with running_console("real") as (address, process):
        yield Console(address, process)


class Heard(stomp.ConnectionListener):  # type: ignore[misc]
    """Listener that queues MESSAGE, RECEIPT and ERROR frames."""

    def __init__(self) -> None:
        self.frames: queue.Queue[Any] = queue.Queue()
        self.failed, self.ended = False, threading.Event()

    def on_message(self, frame: Any) -> None:
        self.frames.put(frame)

    def on_receipt(self, frame: Any) -> None:
        self.frames.put(frame)

    def on_error(self, frame: Any) -> None:
        self.failed = True
        self.frames.put(frame)

    def on_disconnected(self) -> None:
        self.ended.set()

    def next(self, kind: str = "") -> Any:
        """Return the next frame, or the next frame of a type."""
        while True:
            frame = self.frames.get(timeout=30)
            if not kind or frame.cmd == kind:
                return frame


@contextmanager
def client(port: int, name: str) -> Iterator[tuple[Any, Heard]]:
    """Connect a stomp.py client; yield the connection and its listener."""
    connection, heard = stomp.Connection12([("127.0.0.1", port)]), Heard()
    connection.set_listener("", heard)
    connection.connect(wait=True, headers={"client-id": name})
    try:
        yield connection, heard
    finally:
        if heard.failed:  # the broker closes the connection after an ERROR
            assert heard.ended.wait(30)
        else:
            connection.disconnect()


def subscribe(connection: Any, heard: Heard) -> None:
    connection.subscribe(
        "/topic/t", id="s", ack="client", headers={"prefetch-count": "2", "receipt": "there"}
    )
    assert heard.next().cmd == "RECEIPT"


def sent(port: int, *bodies: str) -> Any:
    """Publish the bodies to topic `t`; return the reply to the last one."""
    return sent_to(port, "/topic/t", *bodies)


def sent_to(port: int, destination: str, *bodies: str) -> Any:
    """Send the bodies to a destination; return the reply to the last one."""
    with client(port, "writer") as (connection, heard):
        for number, body in enumerate(bodies):
            connection.send(destination, body, receipt=str(number))
        for _ in bodies:
            frame = heard.next()
        return frame


def fall_behind(port: int) -> None:
    """Subscribe without acknowledging, and check that the broker sends an error."""
    with client(port, "desk") as (connection, heard):
        subscribe(connection, heard)
        sent(port, *map(str, range(20)))
        assert heard.next("ERROR").headers["message"] == "slow_client_backlog"


def test_what_a_draft_sets_a_client_sees_when_it_is_published(page: Page) -> None:
    open_page(page, "/policies/")
    transports = page.request.get("/api/v1/transports").json()
    listed = transports["results"] if isinstance(transports, dict) else transports
    port = next(one["running"]["port"] for one in listed if one["name"] == "stomp")
    assert sent(port, "x" * 5_000).cmd == "RECEIPT"
    fall_behind(port)
    with client(port, "desk") as (connection, heard):
        subscribe(connection, heard)
        sent(port, "live")
        back = heard.next()
        assert back.body == "live" and back.headers["x-sluice-missed"]

    draft = new_draft(page, "back where they were")
    page.get_by_role("link", name="Add a transport").click()
    kind, resume = page.get_by_label("Kind", exact=True), page.locator("[name=resume]")
    origins = page.locator("[name=origins]")
    for chosen, shown, hidden in (
        ("tcp", (), (resume, origins)),
        ("stomp", (resume,), (origins,)),
        ("stomp-ws", (resume, origins), ()),
    ):
        kind.select_option(chosen)
        for field in shown:
            expect(field).to_be_visible()
        for field in hidden:
            expect(field).to_be_hidden()
    page.goto(draft)
    page.get_by_role("link", name="Change transport stomp", exact=True).click()
    resume.select_option("last-acked")
    page.get_by_label("Largest body").fill("4096")
    page.get_by_role("button", name="Save in the draft").click()
    expect(page.get_by_role("row", name="stomp stomp 127.0.0.1")).to_contain_text("resume last-acked")
    page.get_by_role("button", name="Show preview").click()
    for words in ("stomp: resume", "last-acked", "stomp: max body", "4096"):
        expect(page.locator("#preview")).to_contain_text(words)
    page.get_by_role("button", name="Preview changes").click()
    page.get_by_label("Reason").fill("they ask for it")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator("#messages")).to_contain_text("is published")

    refused = sent(port, "x" * 5_000)
    assert (refused.cmd, refused.headers["message"]) == ("ERROR", "frame_too_large")
    fall_behind(port)
    with client(port, "desk") as (connection, heard):
        subscribe(connection, heard)
        back = heard.next()
        assert (back.body, back.headers["redelivered"]) == ("0", "true")
