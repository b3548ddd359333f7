"""@stomp/stompjs, as published, in Chromium, against a real broker process from a page of another origin."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, sync_playwright

from broker_core.config import PolicyDocument, TransportSettings
from tests.browser.conftest import CHROMIUM, FLAGS
from tests.support.rules import policy_with, rule
from tests.support.transports_process import broker_process

HERE = Path(__file__).parent
STOMPJS = HERE / "node" / "node_modules" / "@stomp" / "stompjs" / "bundles" / "stomp.umd.js"
FILES = {"/": ("text/html", HERE / "stompjs.html"), "/stomp.umd.js": ("text/javascript", STOMPJS)}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which(CHROMIUM) is None or not STOMPJS.exists(),
        reason="`make test` installs Chromium and Node's clients",
    ),
]


class Handler(BaseHTTPRequestHandler):
    """Serves the page and the client, as an application's web server does."""

    def do_GET(self) -> None:
        kind, path = FILES.get(self.path, ("text/plain", None))
        self.send_response(200 if path is not None else 404)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.end_headers()
        self.wfile.write(path.read_bytes() if path is not None else b"")

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@pytest.fixture
def origin() -> Iterator[str]:
    """Serve the page; yield its origin."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def page(origin: str) -> Iterator[Page]:
    """Load the client in a page; fail at the end if a script error occurred."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        made, problems = browser.new_page(), []
        made.on("pageerror", lambda error: problems.append(str(error)))
        made.set_default_timeout(120_000)
        made.goto(f"{origin}/")
        yield made
        browser.close()
        assert problems == []


def policy(origin: str, port: int = 0) -> PolicyDocument:
    transport = TransportSettings("stomp-ws", "stomp-ws", port, origins=(origin,))
    return replace(policy_with(rule("disconnect")), transports=(transport,))


def test_a_page_publishes_acknowledges_reconnects_and_learns_that_it_is_slow(page: Page, origin: str) -> None:
    def until(condition: str) -> None:
        page.wait_for_function(f"() => {condition}", polling=50)

    def heard(name: str) -> Any:
        return page.evaluate(f"heard.{name}")

    desk = {"destination": "/topic/desk", "ack": "client-individual", "prefetch-count": "1", "acks": True}
    with broker_process(policy(origin)) as ports:
        port = ports["stomp-ws"]
        page.evaluate("([url, wanted]) => start(url, wanted)", [f"ws://127.0.0.1:{port}/ws", desk])
        until("heard.receipts.length === 1")
        page.evaluate("publish('/topic/desk', ['one', 'gr\u00fcn', 'three'])")
        until("heard.bodies.length === 3")  # with a window of one, none comes before the last is acknowledged
        assert heard("bodies") == ["one", "gr\u00fcn", "three"]
        until("heard.pings >= 2 && heard.pongs >= 2")
        assert (heard("connects"), heard("closes")) == (1, 0)
    until("heard.closes >= 1")  # the broker has ended
    with broker_process(policy(origin, port)):
        until("heard.receipts.length === 2")
        page.evaluate("publish('/topic/desk', ['four'])")
        until("heard.bodies.length === 4")
        slow = {"destination": "/topic/t", "ack": "client", "prefetch-count": "2"}
        page.evaluate("wanted => change(wanted)", slow)
        until("heard.receipts.length === 3")
        page.evaluate("publish('/topic/t', [...Array(20).keys()].map(String))")
        until("heard.errors.includes('slow_client_backlog')")
        until("heard.receipts.length === 4")  # and it is back by itself
        page.evaluate("publish('/topic/t', ['live'])")
        until("heard.bodies.includes('live')")
        assert heard("errors")[-1] == "slow_client_backlog"
        # Two at most were sent before it was over its limit, as the frames came. It acknowledged neither, so
        # both are missed.
        assert heard("bodies")[4:] in (["0", "live"], ["0", "1", "live"])
        assert heard("missed").startswith(f"[{heard('bookmarks')[4]}:")
