"""An operator's own account over HTTP: password and second factor."""

from __future__ import annotations

import base64
import re
import time
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.test import Client
from django.utils import timezone
from django_otp.oath import TOTP
from django_otp.plugins.otp_totp.models import TOTPDevice

from console.access.login_limit import MAX_FAILURES
from console.choices import Permission
from console.models import ApiToken, AuditEvent, Grant
from console.services import operators, people
from console.services.actors import SYSTEM, Actor
from console.services.proof import PROOF_S, RECENT_LOGIN_S
from console.services.sessions import LOGIN_AT
from console.web.login_gate import GUESSABLE
from tests.support.control_plane import OWN, PASSWORD
from tests.support.fake_broker import FakeBroker

NEW = "another-quite-long-one"


def come_in(password: str = PASSWORD, name: str = "maria") -> Client:
    client = Client()
    client.post("/login/", {"username": name, "password": password})
    return client


def as_json(path: str) -> dict[str, Any]:
    """Return the content type argument of Django's test client: JSON for API addresses."""
    return {"content_type": "application/json"} if path.startswith("/api/") else {}


def is_in(client: Client) -> bool:
    return client.get("/account/").status_code == 200


def code_of(user: Any, ahead: int = 0) -> str:
    """Return the user's TOTP code `ahead` steps of 30 s from now. Each code is valid once."""
    key = TOTPDevice.objects.filter(user=user).latest("pk").bin_key
    app = TOTP(key, step=30)
    app.time = time.time() + 30 * ahead
    return f"{app.token():06d}"


def with_app(user: Any, client: Client) -> None:
    """Set up the second factor through the account page."""
    page = client.post("/account/totp/begin/", {"password": PASSWORD}).content.decode()
    assert re.search(r'<img src="data:image/svg\+xml[^"]*" alt="QR code of the key"', page)
    assert re.search(r"data-totp-key>([A-Z2-7]{4} ?)+<", page)
    sent = {"code": code_of(user), "proof": shown_proof(page)}
    assert client.post("/account/totp/confirm/", sent).status_code == 302


def test_a_new_password_ends_the_other_sessions(operator: Any) -> None:
    mine, other = come_in(), come_in()
    sent = {"old_password": PASSWORD, "new_password1": NEW, "new_password2": NEW}
    assert mine.post("/account/password/", sent).status_code == 302
    assert (is_in(mine), is_in(other)) == (True, False)
    assert not is_in(come_in())
    assert is_in(come_in(NEW))
    assert AuditEvent.objects.get(action="operator.change_password").actor == "maria"


@pytest.mark.parametrize("meanwhile", ["closed", "reset"])
def test_a_new_password_neither_opens_a_closed_account_nor_replaces_a_reset_one(
    meanwhile: str, operator: Any, viewer: Any, actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An administrator acts while the password is hashed, after the form has read the account."""
    theirs, hashed = come_in(name="vera"), type(viewer).set_password

    def act_and_hash(user: Any, raw: str) -> None:
        monkeypatch.setattr(type(viewer), "set_password", hashed)
        if meanwhile == "closed":
            people.set_active(actor, get_user_model().objects.get(username="vera"), False)
        else:
            shown.append(operators.reset_password("vera", actor))
        hashed(user, raw)

    shown: list[str] = []
    monkeypatch.setattr(type(viewer), "set_password", act_and_hash)
    sent = {"old_password": PASSWORD, "new_password1": NEW, "new_password2": NEW}
    answer = theirs.post("/account/password/", sent)
    viewer.refresh_from_db()
    assert (answer.status_code, "changed in the meantime" in answer.content.decode()) == (422, True)
    assert (viewer.is_active, viewer.check_password(NEW)) == (meanwhile == "reset", False)
    assert viewer.check_password(shown[0] if shown else PASSWORD)
    assert not is_in(theirs)


@pytest.mark.parametrize("way", ["page", "api", "command"])
def test_a_reset_password_ends_tokens_and_sessions(
    way: str, operator: Any, viewer: Any, broker: FakeBroker
) -> None:
    """A password is reset because another person may know it, and that person can have made tokens."""
    token = token_of("vera")
    theirs, others = come_in(name="vera"), token_of("maria")
    assert opens(token)
    if way == "page":
        come_in().post("/access/people/vera/password/", {"password": PASSWORD})
    elif way == "api":
        come_in().post("/api/v1/people/vera/password", OWN, "application/json")
    else:
        call_command("createoperator", "vera", reset=True)
    assert not viewer_password_is(PASSWORD)
    assert (opens(token), opens(others), is_in(theirs)) == (False, True, False)
    event = AuditEvent.objects.filter(action="operator.reset_password").latest("pk")
    assert event.after == {"tokens_ended": 1}


def test_a_token_is_not_made_with_a_password_that_is_reset_meanwhile(
    operator: Any, viewer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An administrator resets the password after the request for a token has proven the old one."""
    digest = operators._digest

    def reset_and_digest(secret: str) -> str:
        monkeypatch.setattr(operators, "_digest", digest)
        operators.reset_password("vera")
        return digest(secret)

    theirs = come_in(name="vera")
    monkeypatch.setattr(operators, "_digest", reset_and_digest)
    answer = theirs.post("/api/v1/tokens", {**OWN, "name": "late"}, "application/json")
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_password")
    assert not ApiToken.objects.filter(user=viewer).exists()


def token_of(name: str) -> str:
    """Return the text of a new token of the account."""
    user = get_user_model().objects.get(username=name)
    lifetime = timedelta(days=1)
    return operators.create_token(SYSTEM, user, "ci", lifetime=lifetime, scope=[Permission.VIEW])[1]


def opens(token: str) -> bool:
    """Return whether the API accepts the token."""
    answer = Client().get("/api/v1/auth/me", headers={"Authorization": f"Bearer {token}"})
    return bool(answer.status_code == 200)


def viewer_password_is(raw: str) -> bool:
    return bool(get_user_model().objects.get(username="vera").check_password(raw))


@pytest.mark.parametrize("path", ["/api/v1/people/vera/grants", "/api/v1/tokens"])
def test_an_account_that_is_closed_while_its_password_is_checked_proves_nothing(
    path: str, operator: Any, viewer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, check = come_in(), type(operator).check_password

    def close_and_check(user: Any, raw: str) -> bool:
        get_user_model().objects.filter(pk=user.pk).update(is_active=False)
        return bool(check(user, raw))

    monkeypatch.setattr(type(operator), "check_password", close_and_check)
    body = (
        {"role": "administrator"}
        if path.endswith("grants")
        else {"name": "ci", "lifetime": "1d", "scope": ["view"]}
    )
    before = Grant.objects.count()
    answer = mine.post(path, {**body, "own_password": PASSWORD}, content_type="application/json")
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_password")
    assert (Grant.objects.count(), ApiToken.objects.count()) == (before, 0)


def test_sessions_and_tokens_of_a_closed_account_stay_ended_when_it_is_opened_again(
    operator: Any, viewer: Any, actor: Actor
) -> None:
    mine, theirs, also = come_in(), come_in(name="vera"), come_in(name="vera")
    _, text = operators.create_token(actor, viewer, "ci", lifetime=timedelta(days=1), scope=["view"])
    people.set_active(actor, viewer, False)
    people.set_active(actor, viewer, True)
    assert (is_in(mine), is_in(theirs), is_in(also)) == (True, False, False)
    assert operators.find_token(text) is None
    assert is_in(come_in(name="vera"))


@pytest.mark.parametrize(
    ("old", "new", "again", "said"),
    [
        ("wrong", NEW, NEW, "entered incorrectly"),
        (PASSWORD, "short", "short", "too short"),
        (PASSWORD, "password1234", "password1234", "too common"),
        (PASSWORD, NEW, NEW + "x", "match"),
    ],
)
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
    statuses = [mine.post("/account/password/", sent).status_code for _ in range(MAX_FAILURES + 5)]
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
    wrong = {"password": "wrong", "code": code_of(operator, 1)}
    assert mine.post("/account/totp/remove/", wrong).status_code == 422
    assert TOTPDevice.objects.exists()
    right = {"password": PASSWORD, "code": code_of(operator, 1)}
    assert mine.post("/account/totp/remove/", right).status_code == 302
    assert is_in(come_in())


def test_an_administrator_switches_off_what_is_lost(operator: Any, viewer: Any) -> None:
    with_app(viewer, come_in(name="vera"))
    admin = come_in()
    assert "Second factor off for vera" in admin.get("/access/").content.decode()
    page = admin.post("/access/people/vera/second-factor/").content.decode()
    assert "Your password" in page
    admin.post("/access/people/vera/second-factor/", {"password": PASSWORD})
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


def shown_proof(page: str) -> str:
    found = re.search(r'name="proof" value="([^"]+)"', page)
    return found.group(1) if found else ""


def shown_key(page: str) -> str:
    found = re.search(r"data-totp-key>([A-Z2-7 ]+)<", page)
    return found.group(1) if found else ""


def app_code(key: str, ahead: int = 0) -> str:
    """Return the TOTP code for this key `ahead` steps of 30 s from now."""
    text = key.replace(" ", "")
    app = TOTP(base64.b32decode(text + "=" * (-len(text) % 8)), step=30)
    app.time = time.time() + 30 * ahead
    return f"{app.token():06d}"


def test_a_stolen_session_is_shown_no_key_and_replaces_no_second_factor(operator: Any) -> None:
    mine = come_in()
    with_app(operator, mine)
    owners = TOTPDevice.objects.get(confirmed=True).key
    for code in ("000000", "123456"):
        page = mine.post("/account/totp/confirm/", {"code": code}).content.decode()
        assert "data-totp-key" not in page
    assert TOTPDevice.objects.get().key == owners


def test_no_page_gives_a_stolen_session_a_key_that_becomes_the_second_factor(operator: Any) -> None:
    """Attack: enter a wrong code to see the key, then confirm that key with a correct code."""
    mine = come_in()
    with_app(operator, mine)
    owners = TOTPDevice.objects.get(confirmed=True).key
    page = mine.post("/account/totp/confirm/", {"code": "000000"}).content.decode()
    TOTPDevice.objects.update(throttling_failure_count=0, throttling_failure_timestamp=None)
    if key := shown_key(page):
        mine.post("/account/totp/confirm/", {"code": app_code(key), "proof": shown_proof(page)})
    assert [one.key for one in TOTPDevice.objects.filter(confirmed=True)] == [owners]


def test_a_session_that_gave_the_password_does_not_replace_a_second_factor_either(operator: Any) -> None:
    mine = come_in()
    with_app(operator, mine)
    owners = TOTPDevice.objects.get(confirmed=True).key
    answer = mine.post("/account/totp/begin/", {"password": PASSWORD})
    assert (answer.status_code, shown_key(answer.content.decode())) == (422, "")
    assert TOTPDevice.objects.get().key == owners


def test_a_code_is_taken_with_the_proof_of_the_first_step_alone(operator: Any) -> None:
    mine, other = come_in(), come_in()
    page = mine.post("/account/totp/begin/", {"password": PASSWORD}).content.decode()
    key, proof = shown_key(page), shown_proof(page)
    for session, sent in ((mine, ""), (mine, proof + "x"), (other, proof), (come_in(), proof)):
        answer = session.post("/account/totp/confirm/", {"code": app_code(key), "proof": sent})
        assert (answer.status_code, shown_key(answer.content.decode())) == (422, "")
    assert not TOTPDevice.objects.filter(confirmed=True).exists()
    wrong = mine.post("/account/totp/confirm/", {"code": "000000", "proof": proof}).content.decode()
    assert (shown_key(wrong), shown_proof(wrong)) == (key, proof)
    TOTPDevice.objects.update(throttling_failure_count=0, throttling_failure_timestamp=None)
    sent = {"code": app_code(key), "proof": proof}
    assert mine.post("/account/totp/confirm/", sent).status_code == 302
    used_again = {"code": app_code(key, 1), "proof": proof}
    assert mine.post("/account/totp/confirm/", used_again).status_code == 422


def test_the_proof_ends_after_minutes_and_with_the_next_key(
    operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = come_in()
    first = mine.post("/account/totp/begin/", {"password": PASSWORD}).content.decode()
    second = mine.post("/account/totp/begin/", {"password": PASSWORD}).content.decode()
    assert shown_key(first) != shown_key(second)
    sent = {"code": app_code(shown_key(first)), "proof": shown_proof(first)}
    assert mine.post("/account/totp/confirm/", sent).status_code == 422
    now = time.time()
    monkeypatch.setattr("django.core.signing.time.time", lambda: now + PROOF_S + 1)
    sent = {"code": app_code(shown_key(second)), "proof": shown_proof(second)}
    assert mine.post("/account/totp/confirm/", sent).status_code == 422
    assert not TOTPDevice.objects.filter(confirmed=True).exists()


def test_where_everybody_must_have_one_each_login_is_shown_a_key_of_its_own(
    operator: Any, settings: Any
) -> None:
    """A thief who knows the password and requests a key first does not learn the owner's key."""
    settings.SLUICE_REQUIRE_TOTP = True
    thief, owner = come_in(), come_in()
    seen = shown_key(thief.get("/login/second-factor/").content.decode())
    taken = shown_key(owner.get("/login/second-factor/").content.decode())
    assert seen != taken
    assert owner.post("/login/second-factor/", {"code": app_code(taken)})["Location"] == "/"
    thief.post("/login/second-factor/", {"code": app_code(seen, 1)})
    assert not is_in(thief)


def test_switching_it_off_takes_a_code_as_well(operator: Any) -> None:
    mine = come_in()
    with_app(operator, mine)
    assert mine.post("/account/totp/remove/", {"password": PASSWORD}).status_code == 422
    assert TOTPDevice.objects.exists()


RIGHT_AND_WRONG: dict[str, tuple[str, dict[str, str], dict[str, str]]] = {
    "login": ("/login/", {"username": "maria", "password": PASSWORD}, {"password": "wrong"}),
    "v1:login": ("/api/v1/auth/login", {"username": "maria", "password": PASSWORD}, {"password": "wrong"}),
    "account_password": (
        "/account/password/",
        {"old_password": PASSWORD, "new_password1": NEW, "new_password2": NEW},
        {"old_password": "wrong"},
    ),
    "account_totp_begin": ("/account/totp/begin/", {"password": PASSWORD}, {"password": "wrong"}),
    "account_totp_confirm": ("/account/totp/confirm/", {"code": "", "proof": ""}, {"code": "000000"}),
    "account_totp_remove": (
        "/account/totp/remove/",
        {"password": PASSWORD, "code": ""},
        {"password": "wrong"},
    ),
    "access_password": ("/access/people/vera/password/", {"password": PASSWORD}, {"password": "wrong"}),
    "access_second_factor": (
        "/access/people/vera/second-factor/",
        {"password": PASSWORD},
        {"password": "wrong"},
    ),
    "access_open": ("/access/people/vera/open/", {"password": PASSWORD}, {"password": "wrong"}),
    "v1:person": (
        "/api/v1/people/vera",
        {"is_active": "true", "own_password": PASSWORD},
        {"own_password": "wrong"},
    ),
    "access_grant": (
        "/access/grants/",
        {"person": "vera", "role": "administrator", "own_password": PASSWORD},
        {"own_password": "wrong"},
    ),
    "access_token": (
        "/access/tokens/",
        {"name": "ci", "lifetime": "1d", "scope": "view", "own_password": PASSWORD},
        {"own_password": "wrong"},
    ),
    "v1:person-grants": (
        "/api/v1/people/vera/grants",
        {"role": "administrator", "own_password": PASSWORD},
        {"own_password": "wrong"},
    ),
    "v1:tokens": ("/api/v1/tokens", {"name": "ci", "own_password": PASSWORD}, {"own_password": "wrong"}),
    "v1:person-password": (
        "/api/v1/people/vera/password",
        {"own_password": PASSWORD},
        {"own_password": "wrong"},
    ),
    "second_factor": ("/login/second-factor/", {"code": ""}, {"code": "000000"}),
}


def test_the_law_covers_every_address_that_compares_a_secret() -> None:
    assert set(RIGHT_AND_WRONG) == GUESSABLE


@pytest.mark.parametrize("name", sorted(RIGHT_AND_WRONG))
def test_a_locked_name_answers_a_right_secret_as_it_answers_a_wrong_one(
    name: str, operator: Any, viewer: Any
) -> None:
    path, right, changed = RIGHT_AND_WRONG[name]
    mine = come_in()
    right = dict(right)
    if name == "account_totp_confirm":
        page = mine.post("/account/totp/begin/", {"password": PASSWORD}).content.decode()
        right = {"code": app_code(shown_key(page)), "proof": shown_proof(page)}
    elif name in ("second_factor", "account_totp_remove"):
        with_app(operator, mine)
        right["code"] = code_of(operator, 1)
        mine.get("/account/")  # consumes the success message, which does not belong to this response
    sender = {"second_factor": come_in, "login": Client}.get(name, lambda: mine)()
    for _ in range(8):
        Client().post("/login/", {"username": "maria", "password": "wrong"})
    before = (get_user_model().objects.get(username="vera").password, TOTPDevice.objects.count())

    def answer(sent: dict[str, str]) -> tuple[int, str]:
        got = (sender.patch if name == "v1:person" else sender.post)(path, sent, **as_json(path))
        said = re.sub(r'name="csrfmiddlewaretoken" value="[^"]*"|nonce-\S+', "", got.content.decode())
        return got.status_code, said

    refused = answer({**right, **changed})
    assert refused[0] == 429
    assert answer(right) == refused
    assert (get_user_model().objects.get(username="vera").password, TOTPDevice.objects.count()) == before
    assert get_user_model().objects.get(username="maria").check_password(PASSWORD)


@pytest.mark.parametrize("name", ["maria", "vera"])
def test_a_stolen_session_of_an_administrator_resets_nobody(name: str, operator: Any, viewer: Any) -> None:
    """A reset shows a new password, with which a thief could take over the account."""
    mine, users = come_in(), get_user_model().objects
    with_app(viewer, come_in(name="vera"))
    before = users.get(username=name).password
    for sent in ({}, {"password": "wrong"}):
        assert mine.post(f"/access/people/{name}/password/", sent).status_code == 422
        mine.post(f"/access/people/{name}/second-factor/", sent)
    for body in ({}, {"own_password": "wrong"}):
        answer = mine.post(f"/api/v1/people/{name}/password", body, content_type="application/json")
        assert answer.status_code == 422
    assert users.get(username=name).password == before
    assert TOTPDevice.objects.filter(user=viewer, confirmed=True).exists()


@pytest.mark.parametrize("own", [None, "", "wrong", PASSWORD])
def test_a_stolen_session_gives_no_role_and_makes_no_token(
    own: str | None, operator: Any, viewer: Any
) -> None:
    """A thief could make another account an administrator and use it to reset the owner's password."""
    mine, own_password = come_in(), {} if own is None else {"own_password": own}
    before = Grant.objects.count()
    grant, token = {"role": "administrator", **own_password}, {"name": "ci", **own_password}
    page_token = {**token, "lifetime": "1d", "scope": "view"}
    answers = [
        mine.post("/access/grants/", {"person": "vera", **grant}),
        mine.post("/access/tokens/", page_token),
        mine.post(
            "/api/v1/people/vera/grants", {**grant, "role": "approver"}, content_type="application/json"
        ),
        mine.post("/api/v1/tokens", token, content_type="application/json"),
    ]
    wanted = [302, 200, 201, 201] if own == PASSWORD else [422] * 4
    assert [answer.status_code for answer in answers] == wanted
    assert (Grant.objects.count() - before, ApiToken.objects.count()) == (
        (2, 2) if own == PASSWORD else (0, 0)
    )


@pytest.mark.parametrize("own", [None, "", "wrong", PASSWORD])
def test_a_stolen_session_opens_no_closed_account(own: str | None, operator: Any, viewer: Any) -> None:
    """A closed account still has its roles, and a thief may know its password."""
    mine, users = come_in(), get_user_model().objects
    users.filter(username="vera").update(is_active=False)
    page = mine.post("/access/people/vera/open/", {} if own is None else {"password": own})
    opened = users.get(username="vera").is_active
    users.filter(username="vera").update(is_active=False)
    body = {"is_active": True, **({} if own is None else {"own_password": own})}
    answer = mine.patch("/api/v1/people/vera", body, content_type="application/json")
    right = own == PASSWORD
    assert (page.status_code, answer.status_code) == ((302, 200) if right else (422, 422))
    assert (opened, users.get(username="vera").is_active) == (right, right)


def test_an_administrator_without_a_password_here_resets_soon_after_the_login(
    operator: Any, viewer: Any
) -> None:
    mine = come_in()
    operator.set_unusable_password()
    operator.save()
    mine.force_login(operator)
    assert mine.post("/access/people/vera/password/").status_code == 200
    session = mine.session
    session[LOGIN_AT] = time.time() - RECENT_LOGIN_S - 1
    session.save()
    assert mine.post("/access/people/vera/password/").status_code == 422


@pytest.mark.parametrize(
    "path", ["/login/", "/api/v1/auth/login", "/account/password/", "/account/totp/begin/"]
)
def test_attempts_during_a_lock_do_not_prolong_it(
    path: str, operator: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, minutes = timezone.now(), 0.0
    monkeypatch.setattr("axes.handlers.proxy.now", lambda: begun + timedelta(minutes=minutes))
    inside = come_in()
    for _ in range(settings.AXES_FAILURE_LIMIT):
        Client().post("/login/", {"username": "maria", "password": "wrong"})
    for minutes in (5, 10, 14.9):
        sent = {"username": "maria", "password": PASSWORD, "old_password": PASSWORD}
        sender = Client() if "log" in path else inside
        assert sender.post(path, sent, **as_json(path)).status_code == 429
    assert AuditEvent.objects.filter(action="login", result="denied").count() >= 11
    minutes = 15.1
    assert is_in(come_in())
