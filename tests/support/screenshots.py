"""Take pictures of every page at three widths in both themes: `make screenshots`.

    python -m tests.support.screenshots [DIRECTORY] [PATH…] [--address URL --operator NAME | --machines]

First the console of the browser tests, with seeded history before a fake broker. Then the pages on several
machines, before a group with one disconnected member (machines-…png); with --machines these alone. With
--address a running console; its operator's password is read from SLUICE_PASSWORD. The exit code is 1 if a
page scrolls sideways, or is taller than ten screens of a telephone.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.conftest import CHROMIUM, FLAGS, log_in
from tests.browser.pages import (
    ABSENT,
    DRAFT_PARTS,
    FAILING,
    FURTHER,
    LOGIN,
    OF_MACHINES,
    PAGES,
    PAST,
    SECOND_FACTOR,
)
from tests.support.console_server import NAME, PASSWORD, WITH_APP
from tests.support.consoles import ROOT, await_port, free_port

SIZES = {1440: 900, 1024: 768, 400: 800}
"""Heights of the window by its width."""
MAX_SCREENS = 10
AWAY = ("away b", "downgraded c", "refused c", "cut off")
"""Scenes of these pictures (tests/support/machines.py)."""
MORE_PAGES = (
    *FURTHER,
    "/policies/drafts/1/",
    *(f"/policies/drafts/1/{part}/" for part in (*DRAFT_PARTS, "transports/tcp")),
    *ABSENT,
    *FAILING,
)
"""Pages which the tests of every page reach in other ways; the draft is made first."""
OTHERS = {"login": "", "login-second-factor": WITH_APP, "refused": "viewer"}
"""Pictures that aren't the operator's, but a stranger's or another person's, whose password alone is
given.
"""
SETTLES_MS = 700
"""Delay after which moving parts (the feed's first snapshot, plots) are in place."""


def main() -> int:
    """Take all pictures and print the problems found."""
    asked = _asked()
    asked.directory.mkdir(parents=True, exist_ok=True)
    wrong: list[str] = []
    if not asked.machines:
        with _console(asked.address) as address:
            wrong += _all(address, asked)
    if asked.machines or not (asked.paths or asked.address):
        asked.machines, asked.paths = True, asked.paths or list(OF_MACHINES)
        with _console(None, "machines", scenes=AWAY) as address:
            wrong += _all(address, asked)
    print(*wrong, f"{len(list(asked.directory.glob('*.png')))} pictures in {asked.directory}", sep="\n")
    return 1 if wrong else 0


def _all(address: str, asked: argparse.Namespace) -> list[str]:
    """Take pictures of one console in each width and theme; return the problems found."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        return [
            said
            for width in asked.widths
            for theme in ("light", "dark")
            for said in _take(browser, address, asked, (width, SIZES[width]), theme)
        ]


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.screenshots",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "directory",
        nargs="?",
        type=Path,
        default=ROOT / "var" / "screenshots",
        help="where pictures are put, named PAGE-WIDTH-THEME.png (default: %(default)s)",
    )
    parser.add_argument(
        "paths", nargs="*", metavar="path", help="a page, such as /clients/ (default: every page)"
    )
    parser.add_argument(
        "--widths",
        type=int,
        nargs="+",
        choices=SIZES,
        default=list(SIZES),
        help="of the window, in pixels (default: all)",
    )
    parser.add_argument("--address", help="a console that runs, such as http://127.0.0.1:8000")
    parser.add_argument("--machines", action="store_true", help="a console over several machines alone")
    parser.add_argument("--operator", default=NAME, help="who logs in there (default: %(default)s)")
    asked = parser.parse_args()
    asked.password = os.environ.get("SLUICE_PASSWORD", PASSWORD)
    return asked


@contextlib.contextmanager
def _console(address: str | None, kind: str = "settled", scenes: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the address of the running console, or of one started for this, after the scenes."""
    if address is not None:
        yield address
        return
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.console_server", str(port), kind],
        cwd=ROOT,
        stdin=subprocess.PIPE,
    )
    try:
        await_port(port, server)
        assert server.stdin is not None
        server.stdin.write("".join(f"{scene}\n" for scene in scenes).encode())
        server.stdin.flush()
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.communicate(timeout=20)


def _take(
    browser: Browser, address: str, asked: argparse.Namespace, size: tuple[int, int], theme: str
) -> list[str]:
    width, height = size
    context = browser.new_context(
        base_url=address, viewport={"width": width, "height": height}, color_scheme=theme
    )  # type: ignore[arg-type]
    page, wrong = context.new_page(), []
    log_in(page, asked.operator, asked.password)
    page.goto("/policies/drafts/")
    if not page.locator("table a[href*='/drafts/']").count():
        page.get_by_label("Title").first.fill("Larger pool for the desks")
        page.get_by_role("button", name="Draft from the newest revision").click()
        page.locator("h1").wait_for()
    every = {_name(path): path for path in asked.paths} if asked.paths else _every(page)
    if asked.machines:
        every = {f"machines-{name}": path for name, path in every.items()}
    if not (asked.paths or asked.address):
        every |= {_name(SECOND_FACTOR): SECOND_FACTOR, "refused": "/access/"}
    for name, path in every.items():
        if name in OTHERS:
            context.clear_cookies()
            if OTHERS[name]:
                log_in(page, OTHERS[name], wait_for="#feed, [name=code]")
        page.goto(path)
        page.locator('#feed[data-status="live"], main.login, .past').first.wait_for()
        page.wait_for_timeout(SETTLES_MS)
        page.screenshot(path=asked.directory / f"{name}-{width}-{theme}.png", full_page=True)
        wide, tall = page.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
        )
        if wide > width:
            wrong.append(f"{path} at {width}: {wide} wide")
        if width == min(SIZES) and tall > MAX_SCREENS * height:
            wrong.append(f"{path} at {width}: {tall / height:.1f} screens tall")
    context.close()
    return wrong


def _name(path: str) -> str:
    """Return the file name of a page's picture."""
    return "-".join(re.findall(r"[a-z0-9]+", path)) or "overview"


def _every(page: Page) -> dict[str, str]:
    """Return name and path of every page, including made-up addresses; the login is last because it ends the
    session.
    """
    every = {_name(path): path for path in (*PAGES, *MORE_PAGES)}
    page.goto("/pipeline/")
    for link in page.locator("main table a[href^='/pipeline/']").all():
        path = link.get_attribute("href") or ""
        every.setdefault(f"pipeline-run-{link.inner_text()}", path)
    at = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    every |= {f"{_name(path)}-past": f"{path}?at={at}" for path in PAST}
    return every | {_name(LOGIN): LOGIN}


if __name__ == "__main__":
    sys.exit(main())
