"""Logins per address, password hashing beside other requests, proxies, and tokens bound to networks."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from axes.models import AccessAttempt
from django.contrib.auth.hashers import MD5PasswordHasher
from django.contrib.sessions.models import Session
from django.db import connection
from django.test import Client
from rest_framework.test import APIClient

from console.access.login_limit import HASHED_AT_ONCE, MAX_FAILURES, MAX_WAITING
from console.access.networks import parse_networks
from console.models import AuditEvent
from tests.support.control_plane import OWN, PASSWORD
from tests.support.fake_broker import FakeBroker

LOGIN = "/api/v1/auth/login"


def log_in(name: str, password: str = "wrong", **more: Any) -> Any:
    body = {"username": name, "password": password}
    return Client().post(LOGIN, body, content_type="application/json", **more)


def test_one_password_for_many_names_is_stopped_and_others_are_not(operator: Any) -> None:
    statuses = [log_in(f"name-{number}").status_code for number in range(MAX_FAILURES + 40)]
    assert statuses == [401] * MAX_FAILURES + [429] * 40
    refused = log_in("maria", PASSWORD)
    assert (refused.status_code, refused.json()["code"]) == (429, "locked")
    assert int(refused["Retry-After"]) <= 10
    assert Client().post("/login/", {"username": "maria", "password": PASSWORD}).status_code == 429
    elsewhere = log_in("maria", PASSWORD, REMOTE_ADDR="192.0.2.1")
    assert elsewhere.status_code == 200
    assert AccessAttempt.objects.count() == MAX_FAILURES
    # Each failure has its own audit event. Refused attempts share one event per minute, or two if a minute
    # ends during the test.
    events = AuditEvent.objects.filter(result="denied").count()
    assert MAX_FAILURES + 1 <= events <= MAX_FAILURES + 2


def test_the_login_page_counts_as_the_api_does(operator: Any) -> None:
    page = Client()
    for number in range(MAX_FAILURES):
        page.post("/login/", {"username": f"name-{number}", "password": "wrong"})
    refused = page.post("/login/", {"username": "maria", "password": PASSWORD})
    assert refused.status_code == 429
    assert "Too many logins from this address" in refused.content.decode()


def test_forwarded_addresses_of_strangers_count_for_nothing(operator: Any) -> None:
    for number in range(MAX_FAILURES):
        log_in(f"name-{number}", headers={"X-Forwarded-For": f"192.0.2.{number}"})
    assert log_in("maria", PASSWORD, headers={"X-Forwarded-For": "192.0.2.200"}).status_code == 429
    assert set(AuditEvent.objects.values_list("source", flat=True)) == {"127.0.0.1"}


def test_a_configured_proxy_says_who_comes(operator: Any, settings: Any) -> None:
    settings.SLUICE_TRUSTED_PROXIES = parse_networks(["127.0.0.1"])
    for number in range(MAX_FAILURES):
        log_in(f"name-{number}", headers={"X-Forwarded-For": "198.51.100.1, 192.0.2.7"})
    assert log_in("maria", PASSWORD, headers={"X-Forwarded-For": "192.0.2.7"}).status_code == 429
    assert log_in("maria", PASSWORD, headers={"X-Forwarded-For": "192.0.2.8"}).status_code == 200
    assert AuditEvent.objects.filter(action="login", source="192.0.2.7").count() == MAX_FAILURES
    assert AuditEvent.objects.get(action="login", result="done").source == "192.0.2.8"


def test_only_configured_proxies_say_that_it_was_tls(operator: Any, settings: Any) -> None:
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    settings.SLUICE_TRUSTED_PROXIES = parse_networks(["10.0.0.1"])
    said = {"X-Forwarded-Proto": "https"}
    assert not Client().get("/login/", headers=said).wsgi_request.is_secure()
    assert Client(REMOTE_ADDR="10.0.0.1").get("/login/", headers=said).wsgi_request.is_secure()


@pytest.mark.django_db(transaction=True)
def test_hashing_takes_turns_and_holds_up_nobody_else(
    operator: Any, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logins beyond the queue's limit are refused immediately, and other requests continue during password
    hashing.
    """
    let_go, at_once, most = threading.Event(), 0, 0
    encode, lock = MD5PasswordHasher.encode, threading.Lock()

    def held(self: Any, *args: Any, **more: Any) -> str:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        assert let_go.wait(60)
        with lock:
            at_once -= 1
        return str(encode(self, *args, **more))

    api = Client()
    api.force_login(operator)
    monkeypatch.setattr(MD5PasswordHasher, "encode", held)
    beyond, busy = 5, threading.Semaphore(0)

    def one(number: int) -> int:
        try:
            answer = log_in("maria", PASSWORD, REMOTE_ADDR=f"192.0.2.{number}")
            if answer.status_code == 503:
                assert answer.json()["code"] == "login_busy"
                assert answer["Retry-After"]
                busy.release()
            return int(answer.status_code)
        finally:
            connection.close()

    wanted = HASHED_AT_ONCE + MAX_WAITING + beyond
    with ThreadPoolExecutor(wanted) as threads:
        answers = [threads.submit(one, number) for number in range(wanted)]
        for _ in range(beyond):
            assert busy.acquire(timeout=60)
        assert api.get("/api/v1/clients").status_code == 200
        let_go.set()
        statuses = sorted(answer.result() for answer in answers)
    assert statuses == [200] * (HASHED_AT_ONCE + MAX_WAITING) + [503] * beyond
    assert most == HASHED_AT_ONCE


def test_bad_tokens_lock_out_no_good_one_and_no_password(api: APIClient, broker: FakeBroker) -> None:
    good = api.post("/api/v1/tokens", {**OWN, "name": "ci"}).data["token"]
    bad = [f"slc_{number:08x}_nonsense" for number in range(2 * MAX_FAILURES)]
    bad += [good[:-1] + ("a" if good[-1] != "a" else "b")]
    for text in bad:
        assert Client().get("/api/v1/clients", headers={"Authorization": f"Bearer {text}"}).status_code == 401
    assert Client().get("/api/v1/clients", headers={"Authorization": f"Bearer {good}"}).status_code == 200
    assert log_in("maria", PASSWORD).status_code == 200


def test_a_locked_name_s_tokens_go_on(api: APIClient, broker: FakeBroker) -> None:
    good = api.post("/api/v1/tokens", {**OWN, "name": "ci"}).data["token"]
    for _ in range(MAX_FAILURES + 1):
        log_in("maria")
    assert log_in("maria", PASSWORD).status_code == 429
    assert Client().get("/api/v1/clients", headers={"Authorization": f"Bearer {good}"}).status_code == 200


def test_a_token_may_be_bound_to_networks(api: APIClient, broker: FakeBroker) -> None:
    made = api.post("/api/v1/tokens", {**OWN, "name": "ci", "networks": ["192.0.2.0/24", "2001:db8::1"]}).data
    assert made["networks"] == ["192.0.2.0/24", "2001:db8::1"]
    sent = {"Authorization": f"Bearer {made['token']}"}
    for address, status in [
        ("192.0.2.77", 200),
        ("2001:db8::1", 200),
        ("192.0.3.1", 401),
        ("2001:db8::2", 401),
    ]:
        answer = Client(REMOTE_ADDR=address).get("/api/v1/clients", headers=sent)
        assert answer.status_code == status, address
    assert "from this address" in answer.json()["detail"]


@pytest.mark.parametrize("networks", [["192.0.2.300"], ["example.org"], ["10.0.0.0/33"], ["10.0.0.1"] * 21])
def test_what_isn_t_a_network_is_refused(api: APIClient, networks: list[str]) -> None:
    answer = api.post("/api/v1/tokens", {**OWN, "name": "ci", "networks": networks})
    assert (answer.status_code, answer.json()["code"]) in ((400, "bad_networks"), (400, "bad_request"))


def test_the_access_page_makes_a_bound_token(operator: Any) -> None:
    browser = Client()
    browser.force_login(operator)
    sent = {"name": "ci", "lifetime": "1d", "scope": "view", "networks": "192.0.2.0/24, 2001:db8::1", **OWN}
    page = browser.post("/access/tokens/", sent).content.decode()
    assert re.search(r"slc_[0-9a-f]{8}_", page)
    assert "192.0.2.0/24, 2001:db8::1" in page


def test_the_key_of_a_session_stands_nowhere_in_the_database(operator: Any) -> None:
    browser = Client()
    browser.post("/login/", {"username": "maria", "password": PASSWORD})
    cookie = browser.cookies["sessionid"].value
    assert browser.get("/access/").status_code == 200
    rows = list(Session.objects.values_list("session_key", "session_data"))
    assert len(rows) == 1
    assert not any(cookie in text for row in rows for text in row)
    thief = Client()
    thief.cookies["sessionid"] = rows[0][0]
    assert thief.get("/access/").status_code == 302
    browser.post("/logout/")
    assert not Session.objects.exists()
