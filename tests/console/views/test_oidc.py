"""Login through OpenID Connect, with a real identity provider in its own process."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from console.choices import Role
from console.models import AuditEvent, ExternalIdentity, Grant
from tests.console.services.test_webhooks import drip_body, flood, host
from tests.support.consoles import await_port, free_port
from tests.support.control_plane import PASSWORD, person
from tests.support.html import minified

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    port = free_port()
    command = [
        str(Path(sys.executable).with_name("oidc-provider-mock")),
        "--port",
        str(port),
        "--require-nonce",
        "true",
    ]
    for sub, name in [("1", "ada"), ("2", "maria"), ("3", "no/name\n")]:
        command += ["--user-claims", json.dumps({"sub": sub, "preferred_username": name})]
    process = subprocess.Popen(command)
    try:
        await_port(port, process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture
def provider(issuer: str, settings: Any, db: None) -> str:
    settings.SLUICE_OIDC_ISSUER = issuer
    settings.SLUICE_OIDC_CLIENT_ID, settings.SLUICE_OIDC_CLIENT_SECRET = "sluice", "a secret"
    settings.SLUICE_OIDC_LABEL = "Example"
    settings.ALLOWED_HOSTS = ["testserver"]
    return issuer


def at_the_provider(browser: Client, sub: str, wanted: str = "") -> str:
    """Log in at the identity provider as `sub`; return the address to which it redirects."""
    there = browser.get("/login/oidc/", {"next": wanted} if wanted else {})
    assert there.status_code == 302, there.content
    answer = httpx.post(there["Location"], data={"sub": sub}, follow_redirects=False)
    assert answer.status_code == 302, answer.text
    return str(answer.headers["Location"])


def path_of(address: str) -> str:
    return address.removeprefix("http://testserver")


def test_off_unless_configured(db: None) -> None:
    browser = Client()
    assert b"/login/oidc/" not in browser.get("/login/").content
    assert [browser.get(path).status_code for path in ("/login/oidc/", "/login/oidc/back/?code=x")] == [
        404,
        404,
    ]


def test_somebody_comes_in_and_has_no_role_until_it_is_given(provider: str) -> None:
    browser = Client()
    assert "Log in at Example" in minified(browser.get("/login/"))
    back = browser.get(path_of(at_the_provider(browser, "1", "/account/")))
    assert (back.status_code, back["Location"]) == (302, "/account/")
    assert b"manages your password and second factor" in browser.get("/account/").content
    assert browser.get("/clients/").status_code == 403
    ada = get_user_model().objects.get(username="ada")
    assert not ada.has_usable_password()
    Grant.objects.create(user=ada, role=Role.VIEWER)
    again = Client()
    again.get(path_of(at_the_provider(again, "1")))
    assert again.get("/clients/").status_code == 200
    assert ExternalIdentity.objects.count() == 1
    assert AuditEvent.objects.filter(action="login", result="done", actor="ada").count() == 2


def test_a_name_of_an_account_here_isn_t_taken_over(provider: str) -> None:
    person("Maria", Role.ADMINISTRATOR)
    browser = Client()
    back = browser.get(path_of(at_the_provider(browser, "2")), follow=True)
    assert "doesn&#x27;t belong to the provider" in back.content.decode()
    assert browser.get("/account/").status_code == 302
    assert AuditEvent.objects.filter(action="login", result="denied").count() == 1
    assert not ExternalIdentity.objects.exists()


def test_what_can_t_be_a_name_is_refused(provider: str) -> None:
    browser = Client()
    assert browser.get(path_of(at_the_provider(browser, "3")))["Location"] == "/login/"
    assert get_user_model().objects.count() == 0


def test_a_closed_account_stays_outside(provider: str) -> None:
    browser = Client()
    browser.get(path_of(at_the_provider(browser, "1")))
    get_user_model().objects.filter(username="ada").update(is_active=False)
    assert browser.get("/account/").status_code == 302
    again = Client()
    assert (
        "The account is closed"
        in again.get(path_of(at_the_provider(again, "1")), follow=True).content.decode()
    )
    assert again.get("/account/").status_code == 302


def test_an_answer_is_good_once_and_in_the_session_that_asked(provider: str) -> None:
    victim, browser = Client(), Client()
    address = path_of(at_the_provider(browser, "1"))
    assert victim.get(address)["Location"] == "/login/"
    assert browser.get(address)["Location"] == "/"
    browser.logout()
    assert browser.get(address)["Location"] == "/login/"
    for bad in ("", "?code=x", "?state=x", "?error=access_denied&state=x", "?code=x&state=x"):
        assert browser.get(f"/login/oidc/back/{bad}")["Location"] == "/login/", bad


def test_one_isn_t_sent_elsewhere_afterwards(provider: str) -> None:
    browser = Client()
    assert browser.get(path_of(at_the_provider(browser, "1", "https://example.org/")))["Location"] == "/"


def test_a_provider_that_is_away_leaves_passwords(provider: str, settings: Any) -> None:
    settings.SLUICE_OIDC_ISSUER = f"http://127.0.0.1:{free_port()}"
    person("vera", Role.VIEWER)
    browser = Client()
    assert browser.get("/login/oidc/")["Location"] == "/login/"
    assert browser.post("/login/", {"username": "vera", "password": PASSWORD}).status_code == 302


@pytest.mark.parametrize("answer", [drip_body, flood])
def test_a_provider_that_answers_without_end_holds_no_thread_beyond_the_deadline(
    answer: Callable[[socket.socket], None], settings: Any, db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from console.services import openid_client

    monkeypatch.setattr(openid_client, "TIMEOUT_S", 1.0)
    with host(answer) as port:
        settings.SLUICE_OIDC_ISSUER = f"http://127.0.0.1:{port}"
        settings.SLUICE_OIDC_CLIENT_ID, settings.SLUICE_OIDC_CLIENT_SECRET = "sluice", "a secret"
        assert Client().get("/login/oidc/")["Location"] == "/login/"
        event = AuditEvent.objects.get(action="login", result="denied")
        assert event.message.startswith("The login at the identity provider failed")
        deadline = time.monotonic() + 60
        while any(thread.name == "bounded-call" for thread in threading.enumerate()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
