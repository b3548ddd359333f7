"""The settings page: personal preferences that apply to every page, and installation settings with their
sources.
"""

from __future__ import annotations

from typing import Any

from django.test import Client

from tests.support.fake_broker import FakeBroker
from tests.support.html import minified

WANTED = {"theme": "dark", "clock": "utc", "density": "comfortable", "range": "24h"}


def test_what_one_saves_holds_on_every_page_and_for_nobody_else(
    browser: Client, onlooker: Client, broker: FakeBroker
) -> None:
    assert browser.post("/settings/save/", WANTED).status_code == 302
    page = browser.get("/").content.decode()
    for told in ('data-theme-saved="dark"', 'data-clock-saved="utc"', 'data-density="comfortable"'):
        assert told in page
    assert '?range=24h" aria-current="true"' in page
    assert '?range=3h" aria-current="true"' in browser.get("/?range=3h").content.decode(), (
        "the range in the URL takes precedence"
    )
    assert 'data-theme-saved="auto"' in onlooker.get("/").content.decode()


def test_what_isnt_a_choice_is_refused_and_nothing_is_kept(browser: Client, broker: FakeBroker) -> None:
    assert browser.post("/settings/save/", {**WANTED, "range": "9y"}).status_code == 422
    assert 'data-theme-saved="auto"' in browser.get("/settings/").content.decode()


def test_the_installations_values_say_whether_they_are_set(
    browser: Client, broker: FakeBroker, monkeypatch: Any
) -> None:
    monkeypatch.setenv("SLUICE_SMTP_URL", "smtp://user:secret@host")
    page = minified(browser.get("/settings/"))
    assert "SLUICE_SMTP_URL" in page and ">environment<" in page and "secret@" not in page


def test_what_is_never_and_for_ever_is_said_so(browser: Client, broker: FakeBroker, settings: Any) -> None:
    settings.SLUICE_SESSION_IDLE_MINUTES = 0
    settings.SLUICE_AUDIT_RETENTION_DAYS = {"*": 0, "login": 365}
    page = browser.get("/settings/").content.decode()
    assert (
        ">for ever, logins 365 days<" in page and ">never<" in page and "SLUICE_HOUR_RETENTION_DAYS" in page
    )
