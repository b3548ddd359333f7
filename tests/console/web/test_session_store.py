"""Sessions expire without use, and the use of a token is recorded without a write on GET."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from django.conf import settings
from django.contrib.sessions.models import Session
from django.test import Client
from django.urls import resolve

from console.access import last_used
from console.choices import Permission, Role
from console.models import ApiToken
from console.services import operators, sessions
from console.services.actors import SYSTEM
from console.web.session_store import stored_key
from tests.support.control_plane import person

IDLE_S = settings.SLUICE_SESSION_IDLE_MINUTES * 60
NO_REDIS = "unix:///nowhere/redis.sock"


class Clock:
    """Replacement of `time.time` in the middleware and the login."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("console.web.middleware.time.time", made)
    return made


@pytest.fixture
def link(redis_url: str) -> Iterator[Any]:
    with redis.Redis.from_url(redis_url) as connection:
        connection.flushdb()
        yield connection


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Point the store at a missing Redis."""
    monkeypatch.setattr("console.access.last_used.redis_connection", lambda: redis.Redis.from_url(NO_REDIS))


@pytest.fixture
def maria(db: None, clock: Clock) -> Client:
    client = Client()
    client.force_login(person("maria", Role.ADMINISTRATOR))
    return client


def welcome(client: Client, path: str = "/access/") -> bool:
    return client.get(path).status_code == 200


def test_session_in_use_goes_on(maria: Client, clock: Clock, link: Any) -> None:
    for _ in range(5):
        clock.now += IDLE_S - 60
        assert welcome(maria)


def test_session_nobody_uses_ends_and_stays_ended(maria: Client, clock: Clock, link: Any) -> None:
    assert welcome(maria)
    cookie = maria.cookies[settings.SESSION_COOKIE_NAME].value
    clock.now += IDLE_S + last_used.REPORT_INTERVAL_S + 5
    assert not welcome(maria)
    maria.cookies[settings.SESSION_COOKIE_NAME] = cookie
    assert not welcome(maria)
    assert Session.objects.filter(pk=stored_key(cookie)).exists()


def test_what_open_pages_ask_by_themselves_is_no_use(maria: Client, clock: Clock, link: Any) -> None:
    for path in ("/api/v1/auth/me", "/runs/list/"):
        clock.now += IDLE_S / 2 - 1
        assert welcome(maria, path), path
    clock.now += last_used.REPORT_INTERVAL_S + 5
    assert not welcome(maria)


def test_every_address_that_pages_ask_again_and_again_is_known() -> None:
    polled = set()
    for template in (Path(settings.BASE_DIR) / "templates").rglob("*.html"):
        text = template.read_text(encoding="utf-8")
        for tag in re.findall(r"<\w+[^<]*?hx-trigger=\"[^\"]*every [^>]*", text):
            for asked in re.findall(r"hx-get=\"([^\"]*)\"", tag):
                names = re.findall(r"\{% url '(\w+)'", asked)
                assert names, f"{template}: the polled address must be a url tag in this template"
                polled |= set(names)
        # Scripts poll the addresses in data-url attributes.
        polled |= set(re.findall(r"data-url=\"\{% url '(\w+)'", text))
    assert polled == sessions.POLLED_BY_PAGES
    assert {resolve("/runs/list/").url_name} <= polled


def test_another_process_knows_of_the_use_by_redis(maria: Client, clock: Clock, link: Any) -> None:
    clock.now += IDLE_S - 60
    assert welcome(maria)
    last_used.clear_cache()
    clock.now += IDLE_S - 60
    assert welcome(maria)
    (key,) = link.keys("sluice:session:*")
    assert maria.cookies[settings.SESSION_COOKIE_NAME].value not in key.decode()


def test_without_redis_this_process_remembers(maria: Client, clock: Clock, away: None) -> None:
    clock.now += IDLE_S - 60
    assert welcome(maria)
    clock.now += IDLE_S - 60
    assert welcome(maria)


def test_without_redis_and_after_a_restart_a_session_counts_from_its_login(
    maria: Client, clock: Clock, away: None
) -> None:
    clock.now += IDLE_S - 60
    assert welcome(maria)
    last_used.clear_cache()
    assert welcome(maria)
    last_used.clear_cache()
    clock.now += 120
    assert not welcome(maria)


def test_use_doesn_t_move_the_end_of_a_session(maria: Client, clock: Clock, settings: Any, link: Any) -> None:
    settings.SESSION_COOKIE_AGE = 2 * IDLE_S
    for _ in range(2):
        clock.now += IDLE_S - 60
        assert welcome(maria)
    clock.now += 300
    assert not welcome(maria)


def test_without_a_limit_an_unused_session_lives_until_its_end(
    maria: Client, clock: Clock, settings: Any, link: Any
) -> None:
    settings.SLUICE_SESSION_IDLE_MINUTES = 0
    clock.now += settings.SESSION_COOKIE_AGE - 60
    assert welcome(maria)


def test_process_remembers_so_many_and_no_more(away: None) -> None:
    for number in range(last_used.MAX_REMEMBERED + 10):
        last_used._sessions.record(str(number), 1_000.0, 10)
    assert len(last_used._sessions.used) == last_used.MAX_REMEMBERED


def test_token_s_use_is_a_write_of_the_tick_and_not_of_the_request(db: None, link: Any, clock: Clock) -> None:
    token, text = operators.create_token(
        SYSTEM, person("rob", Role.VIEWER), "feed", lifetime=timedelta(days=1), scope=[Permission.VIEW]
    )
    asked = Client().get("/api/v1/auth/me", headers={"Authorization": f"Bearer {text}"})
    assert asked.status_code == 200
    assert ApiToken.objects.get(pk=token.pk).used_at is None
    assert operators.store_token_uses() == 1
    stored = ApiToken.objects.get(pk=token.pk).used_at
    assert stored is not None
    assert abs(stored.timestamp() - time.time()) < 30
    assert operators.store_token_uses() == 0


def test_token_works_without_redis(db: None, away: None) -> None:
    user = person("rob", Role.VIEWER)
    _, text = operators.create_token(
        SYSTEM, user, "feed", lifetime=timedelta(days=1), scope=[Permission.VIEW]
    )
    assert Client().get("/api/v1/auth/me", headers={"Authorization": f"Bearer {text}"}).status_code == 200
    assert operators.store_token_uses() == 0
