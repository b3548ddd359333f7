"""An operator's own account in a browser: a new password, an authenticator app, login with a code, and
recovery.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

from django_otp.oath import TOTP
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.browser.conftest import Console, log_in
from tests.browser.test_jobs import discard_pending_changes
from tests.browser.test_pages import AXE, RUN_AXE
from tests.support.console_server import PASSWORD

WHO, NEW = "paula", "seven-quiet-herons"
STEP_S = 30


class App:
    """Authenticator app with the key that the page displayed."""

    def __init__(self, key: str) -> None:
        text = key.replace(" ", "")
        self._key = base64.b32decode(text + "=" * (-len(text) % 8))

    def code(self, ahead: int = 0) -> str:
        """Return the code `ahead` steps from now. Each code is valid once, and the console accepts the
        next one early.
        """
        made = TOTP(self._key, step=STEP_S)
        made.time = time.time() + STEP_S * ahead
        return f"{made.token():06d}"

    def wrong(self) -> str:
        """Return a code that is invalid now and soon."""
        good = {self.code(ahead) for ahead in range(-3, 4)}
        return next(code for code in map(str, range(100_000, 100_020)) if code not in good)


@contextmanager
def browser_of(chromium: Browser, console: Console) -> Iterator[Page]:
    """Open a page in a separate browser context.

    Refused requests are expected, so only script errors fail the test.
    """
    context, problems = (
        chromium.new_context(base_url=console.address, viewport={"width": 1440, "height": 900}),
        [],
    )
    context.set_default_timeout(15_000)
    page = context.new_page()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "console", lambda said: problems.append(said.text) if "Content Security Policy" in said.text else None
    )
    yield page
    context.close()
    assert problems == []


def accessible(page: Page) -> None:
    """Check accessibility in both themes, and that the page fits the width of a phone."""
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
        page.evaluate(AXE.read_text(encoding="utf-8"))
        assert page.evaluate(RUN_AXE) == [], f"{page.url}, {theme}"
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400, page.url
    page.set_viewport_size({"width": 1440, "height": 900})


def change_password(page: Page, old: str, new: str, again: str | None = None) -> None:
    """Fill in the password form and submit it."""
    page.get_by_label("Old password").fill(old)
    page.get_by_label("New password", exact=True).fill(new)
    page.get_by_label("New password confirmation").fill(new if again is None else again)
    page.get_by_role("button", name="Change").click()


def give_password(page: Page, password: str) -> None:
    """Submit user name and password on the login page."""
    page.goto("/login/")
    page.get_by_label("Username").fill(WHO)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Log in").click()


def give_code(page: Page, code: str, button: str) -> None:
    """Enter the app's code and submit it."""
    page.get_by_label("Code of your authenticator app").fill(code)
    with page.expect_navigation():
        page.get_by_role("button", name=button).click()


def give_good_code(page: Page, code: str, button: str, done: re.Pattern[str]) -> None:
    """Submit a code until the console accepts it. After a wrong code, the console checks the next one a
    second later.
    """
    for _ in range(5):
        give_code(page, code, button)
        if done.search(page.url) and not page.locator(".errors").count():
            return
        page.wait_for_timeout(1_100)
    raise AssertionError("the code was never taken")


def is_out(page: Page) -> None:
    """Check that the session has ended."""
    page.goto("/account/")
    expect(page).to_have_url(re.compile("/login/"))


def test_password_and_second_factor_from_the_first_to_the_lost_app(
    chromium: Browser, console: Console, context: BrowserContext
) -> None:
    with browser_of(chromium, console) as mine, browser_of(chromium, console) as other:
        for page in (mine, other):
            log_in(page, WHO)
        mine.get_by_role("link", name=WHO, exact=True).click()
        expect(mine.get_by_role("heading", name="Your account")).to_be_visible()
        accessible(mine)

        change_password(mine, "not-my-password", NEW)
        expect(mine.locator(".errors")).to_contain_text("old password was entered incorrectly")
        accessible(mine)
        change_password(mine, PASSWORD, "short")
        expect(mine.locator(".errors")).to_contain_text("too short")
        change_password(mine, PASSWORD, NEW, NEW + "x")
        expect(mine.locator(".errors")).to_contain_text("match")
        change_password(mine, PASSWORD, NEW)
        expect(mine.locator("#messages")).to_contain_text("Your password was changed")
        is_out(other)
        give_password(other, PASSWORD)
        expect(other.get_by_role("alert")).to_contain_text("correct username and password")
        accessible(other)

        mine.get_by_label("Your password").fill("not-my-password")
        mine.get_by_role("button", name="Show the key").click()
        expect(mine.locator(".errors")).to_contain_text("password is wrong")
        mine.get_by_label("Your password").fill(NEW)
        mine.get_by_role("button", name="Show the key").click()
        expect(mine.get_by_alt_text("QR code of the key")).to_be_visible()
        app = App(mine.locator("[data-totp-key]").inner_text())
        accessible(mine)
        give_code(mine, app.wrong(), "Enable")
        expect(mine.locator(".errors")).to_contain_text("isn't your app's current code")
        accessible(mine)
        give_good_code(mine, app.code(), "Enable", re.compile("/account/$"))
        expect(mine.locator("#messages")).to_contain_text("login now requires a code")
        accessible(mine)

        mine.get_by_role("button", name="Log out").click()
        is_out(mine)
        give_password(mine, NEW)
        expect(mine).to_have_url(re.compile("/login/second-factor/"))
        accessible(mine)
        is_out(other)  # the password alone does not log in
        give_code(mine, app.wrong(), "Log in")
        expect(mine.locator(".errors")).to_contain_text("isn't your app's current code")
        accessible(mine)
        give_good_code(mine, app.code(1), "Log in", re.compile(r":\d+/$"))
        expect(mine.locator("#feed")).to_be_visible()

        give_password(other, NEW)  # the operator has lost the app
        give_code(other, app.code(1), "Log in")
        expect(other.locator(".errors")).to_contain_text("was used already")
        admin = context.new_page()
        admin.goto("/access/")
        admin.get_by_role("button", name=f"Second factor off for {WHO}").click()
        admin.get_by_label("Your password").fill(PASSWORD)
        admin.get_by_role("button", name=f"Second factor off for {WHO}").first.click()
        expect(admin.get_by_role("button", name=f"Second factor off for {WHO}")).to_have_count(0)
        give_password(other, NEW)
        expect(other.locator("#feed")).to_be_visible()
        other.goto("/account/")
        expect(other.get_by_role("button", name="Show the key")).to_be_visible()


def test_a_token_of_ones_own_is_shown_once_and_revoked(page: Page) -> None:
    discard_pending_changes(page)
    page.goto("/access/")
    card = page.get_by_role("region", name="Create an API token")
    card.locator("[name=name]").fill("for a report")
    card.locator("input[type=checkbox]").first.check()
    card.get_by_label("Your own password").fill(PASSWORD)
    card.get_by_role("button", name="Make").click()
    secret = page.locator("[data-secret]").inner_text()
    assert secret.startswith("slc_")
    accessible(page)
    page.goto("/access/")
    assert secret not in page.content()
    page.get_by_role("button", name="Revoke for a report").click()
    page.get_by_label("Reason").fill("the report is written")
    page.locator("#pending-changes").get_by_role("button", name="Apply").click()
    expect(page.get_by_role("button", name="Revoke for a report")).to_have_count(0)
