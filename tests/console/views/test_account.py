"""One's own account: the password, and a second factor; over HTTP, as a browser does it."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from django.test import Client
from django_otp.oath import TOTP
from django_otp.plugins.otp_totp.models import TOTPDevice

from console.access.login_limit import MOST_FAILURES
from console.models import AuditEvent
from tests.support.control_plane import PASSWORD

NEW = "another-quite-long-one"


def come_in(password: str = PASSWORD, name: str = "maria") -> Client:
    client = Client()
    client.post("/login/", {"username": name, "password": password})
    return client


def is_in(client: Client) -> bool:
    return client.get("/account/").status_code == 200


def code_of(user: Any, ahead: int = 0) -> str:
    """The app's code of now, or of `ahead` steps of 30 s later; a code is good once."""
    key = TOTPDevice.objects.filter(user=user).latest("pk").bin_key
    app = TOTP(key, step=30)
    app.time = time.time() + 30 * ahead
    return f"{app.token():06d}"


def with_app(user: Any, client: Client) -> None:
    """Switch it on, through the page."""
    page = client.post("/account/totp/begin/", {"password": PASSWORD}).content.decode()
    assert re.search(r'<img src="data:image/svg\+xml[^"]*" alt="QR code of the key"', page)
    assert re.search(r"data-totp-key>([A-Z2-7]{4} ?)+<", page)
    assert client.post("/account/totp/confirm/", {"code": code_of(user)}).status_code == 302


def test_a_new_password_ends_the_other_sessions(operator: Any) -> None:
    mine, other = come_in(), come_in()
    sent = {"old_password": PASSWORD, "new_password1": NEW, "new_password2": NEW}
    assert mine.post("/account/password/", sent).status_code == 302
    assert (is_in(mine), is_in(other)) == (True, False)
    assert not is_in(come_in())
    assert is_in(come_in(NEW))
    assert AuditEvent.objects.get(action="operator.change_password").actor == "maria"


@pytest.mark.parametrize(("old", "new", "again", "said"), [
    ("wrong", NEW, NEW, "entered incorrectly"),
    (PASSWORD, "short", "short", "too short"),
    (PASSWORD, "password1234", "password1234", "too common"),
    (PASSWORD, NEW, NEW + "x", "match"),
])  # fmt: skip
def test_a_password_is_held_to_the_rules(operator: Any, old: str, new: str, again: str, said: str) -> None:
    mine = come_in()
    answer = mine.post(
        "/account/password/", {"old_password": old, "new_password1": new, "new_password2": again}
    )
    assert (answer.status_code, said in answer.content.decode()) == (422, True)
    assert is_in(come_in())


def test_the_old_password_can_t_be_guessed_from_a_session(operator: Any) -> None:
    mine = come_in()
    sent = {"old_password": "wrong", "new_password1": NEW, "new_password2": NEW}
    statuses = [mine.post("/account/password/", sent).status_code for _ in range(MOST_FAILURES + 5)]
    assert set(statuses) == {422, 429}
    assert mine.post("/account/password/", {**sent, "old_password": PASSWORD}).status_code == 429


def test_with_the_app_a_login_takes_its_code_and_each_code_once(operator: Any) -> None:
    with_app(operator, come_in())
    half = come_in()
    assert not is_in(half)
    used = code_of(operator)
    assert (
        "isn’t" in (said := half.post("/login/second-factor/", {"code": used}).content.decode())
        or "isn&#x27;t" in said
    )
    TOTPDevice.objects.update(throttling_failure_count=0, throttling_failure_timestamp=None)
    answer = half.post("/login/second-factor/", {"code": code_of(operator, 1)})
    assert (answer.status_code, answer["Location"]) == (302, "/")
    assert is_in(half)
    assert AuditEvent.objects.filter(action="operator.second_factor_on").count() == 1


def test_codes_can_t_be_guessed(operator: Any) -> None:
    with_app(operator, come_in())
    half = come_in()
    for _ in range(9):
        half.post("/login/second-factor/", {"code": "000000"})
    assert half.post("/login/second-factor/", {"code": code_of(operator, 1)}).status_code == 429
    assert not is_in(half)
    assert Client().post("/login/", {"username": "maria", "password": PASSWORD}).status_code == 429


def test_without_the_password_there_is_no_second_page(operator: Any) -> None:
    assert Client().get("/login/second-factor/")["Location"] == "/login/"
    with_app(operator, come_in())
    half = come_in()
    operator.set_password(NEW)
    operator.save()
    assert half.post("/login/second-factor/", {"code": code_of(operator, 1)})["Location"] == "/login/"
    assert not is_in(half)


def test_switching_it_off_takes_the_password(operator: Any) -> None:
    mine = come_in()
    with_app(operator, mine)
    assert mine.post("/account/totp/remove/", {"password": "wrong"}).status_code == 422
    assert TOTPDevice.objects.exists()
    assert mine.post("/account/totp/remove/", {"password": PASSWORD}).status_code == 302
    assert is_in(come_in())


def test_an_administrator_switches_off_what_is_lost(operator: Any, viewer: Any) -> None:
    with_app(viewer, come_in(name="vera"))
    admin = come_in()
    assert "Second factor off for vera" in admin.get("/access/").content.decode()
    admin.post("/access/people/vera/second-factor/")
    assert is_in(come_in(name="vera"))
    event = AuditEvent.objects.get(action="operator.second_factor_off")
    assert (event.actor, event.object) == ("maria", "operator vera")


def test_where_everybody_must_have_one_the_first_login_shows_the_key(operator: Any, settings: Any) -> None:
    settings.SLUICE_REQUIRE_TOTP = True
    half = come_in()
    assert not is_in(half)
    assert "data-totp-key" in half.get("/login/second-factor/").content.decode()
    assert half.post("/login/second-factor/", {"code": code_of(operator)})["Location"] == "/"
    assert is_in(half)
    again = come_in()
    assert "data-totp-key" not in again.get("/login/second-factor/").content.decode()


def test_the_api_takes_the_code_with_the_password(operator: Any, viewer: Any, settings: Any) -> None:
    with_app(operator, come_in())
    body = {"username": "maria", "password": PASSWORD}

    def log_in(**more: str) -> Any:
        return Client().post("/api/v1/auth/login", {**body, **more}, content_type="application/json")

    assert (log_in().status_code, log_in().json()["code"]) == (401, "second_factor_needed")
    assert log_in(code="000000").json()["code"] == "bad_code"
    TOTPDevice.objects.update(throttling_failure_count=0, throttling_failure_timestamp=None)
    assert log_in(code=code_of(operator, 1)).status_code == 200
    settings.SLUICE_REQUIRE_TOTP = True
    refused = log_in(username="vera")
    assert (refused.status_code, refused.json()["code"]) == (403, "second_factor_missing")
