"""Chromium with the real console: one server and one browser for all tests, and a new browser context for
each test.

Needs Debian's chromium (apt-get install chromium); SLUICE_CHROMIUM names another executable.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.support.console_server import NAME, PASSWORD
from tests.support.consoles import running_console

CHROMIUM = os.environ.get("SLUICE_CHROMIUM", "/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@dataclass
class Console:
    """Address and process of the console's server, and the cookies of its first login."""

    address: str
    process: subprocess.Popen[bytes]
    cookies: list[dict[str, object]] = field(default_factory=list)


@pytest.fixture(scope="session")
def console() -> Iterator[Console]:
    """Run the console on a free port, with seeded history and a fake broker that changes every second."""
    with running_console() as (address, process):
        yield Console(address, process)


@pytest.fixture(scope="module", autouse=True)
def everyone_connected(console: Console) -> None:
    """Reset the broker's clients before each module, since a worker may have run other modules before."""
    os.kill(console.process.pid, signal.SIGUSR1)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Run one browser for all tests."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def context(chromium: Browser, console: Console) -> Iterator[BrowserContext]:
    """Return a new logged-in context. The first test logs in through the form; later tests reuse its
    cookies.
    """
    made = chromium.new_context(base_url=console.address, viewport={"width": 1440, "height": 900})
    made.set_default_timeout(15_000)
    if console.cookies:
        made.add_cookies(console.cookies)  # type: ignore[arg-type]
    else:
        page = made.new_page()
        log_in(page)
        console.cookies = [dict(cookie) for cookie in made.cookies()]
        page.close()
    yield made
    made.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """Open a page; the test fails on any script error or violation of the content security policy."""
    made, problems = context.new_page(), []
    made.on("pageerror", lambda error: problems.append(str(error)))
    made.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    yield made
    assert problems == []


def log_in(page: Page, name: str = NAME, password: str = PASSWORD, wait_for: str = "#feed") -> None:
    """Log in through the form, and wait for an element of the next page."""
    page.goto("/login/")
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()
    page.locator(wait_for).first.wait_for()
