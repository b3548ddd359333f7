"""Every page at three widths in both themes, as pictures to look at: `make screenshots`.

    python -m tests.support.screenshots [DIRECTORY] [PATH…]        # var/screenshots, and every page, without them

The console is the one of the browser tests, with seeded history before a fake broker. Ends with 1 when a page scrolls sideways, or is
taller than ten screens of a telephone.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.browser.conftest import CHROMIUM, FLAGS, log_in
from tests.browser.test_pages import PAGES
from tests.support.consoles import ROOT

SIZES = ((1440, 900), (1024, 768), (400, 800))
MOST_SCREENS = 10
MORE_PAGES = (
    "/pipeline/",
    "/account/",
    "/policies/rules/new/",
    "/policies/drafts/1/",
    "/policies/drafts/1/limits/",
    "/policies/drafts/1/users/new/",
    "/clients/nobody-at-all/",
)
"""Pages which the tests of every page reach in other ways; the draft is made first."""
SETTLES_MS = 700
"""What moves (the feed's first snapshot, plots) is in place after it."""


def main() -> int:
    """Take them all; what is wrong is printed."""
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "var" / "screenshots")
    paths = sys.argv[2:] or [*PAGES, *MORE_PAGES]
    target.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.console_server", str(port), "settled"], cwd=ROOT
    )
    try:
        _await(port, server)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            wrong = [
                said
                for size in SIZES
                for theme in ("light", "dark")
                for said in _take(browser, port, target, paths, size, theme)
            ]
    finally:
        server.terminate()
        server.wait(20)
    print(*wrong, f"{len(list(target.glob('*.png')))} pictures in {target}", sep="\n")
    return 1 if wrong else 0


def _take(
    browser: Browser, port: int, target: Path, paths: list[str], size: tuple[int, int], theme: str
) -> list[str]:
    width, height = size
    context = browser.new_context(
        base_url=f"http://127.0.0.1:{port}", viewport={"width": width, "height": height}, color_scheme=theme
    )  # type: ignore[arg-type]
    page, wrong = context.new_page(), []
    log_in(page)
    page.goto("/policies/drafts/")
    if not page.locator("table a[href*='/drafts/']").count():
        page.get_by_label("Title").first.fill("Larger pool for the desks")
        page.get_by_role("button", name="Draft from the newest revision").click()
        page.locator("h1").wait_for()
    for path in paths:
        page.goto(path)
        page.locator('#feed[data-status="live"], main.bare').first.wait_for()
        page.wait_for_timeout(SETTLES_MS)
        name = path.strip("/").replace("/", "-") or "overview"
        page.screenshot(path=target / f"{name}-{width}-{theme}.png", full_page=True)
        wide, tall = page.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
        )
        if wide > width:
            wrong.append(f"{path} at {width}: {wide} wide")
        if width == SIZES[-1][0] and tall > MOST_SCREENS * height:
            wrong.append(f"{path} at {width}: {tall / height:.1f} screens tall")
    context.close()
    return wrong


def _await(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the console's server did not listen within three minutes")


if __name__ == "__main__":
    sys.exit(main())
