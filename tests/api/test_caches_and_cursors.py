"""Laws for every GET: caches store no answer, and a malformed cursor is a bad request."""

from __future__ import annotations

import pytest
from django.test import Client

from console.models import Instance
from tests.api.doors import READS, Door
from tests.support.fake_broker import FakeBroker

CURSORS = ("cD0yMDI2", "%00")
"""Texts of no list: a year as a moment, and a NUL."""


@pytest.fixture
def browser(operator: object, instance: Instance, broker: FakeBroker) -> Client:
    client = Client(raise_request_exception=False)
    client.force_login(operator)
    return client


@pytest.mark.parametrize("door", READS, ids=str)
def test_no_cache_stores_an_answer_and_no_cursor_raises(door: Door, browser: Client) -> None:
    answer = browser.get(door.path)
    assert {"private", "no-store"} <= {one.strip() for one in answer["Cache-Control"].split(",")}
    separator = "&" if "?" in door.path else "?"
    for cursor in CURSORS:
        with_cursor = browser.get(f"{door.path}{separator}cursor={cursor}")
        assert with_cursor.status_code in {400, 404, answer.status_code}, cursor
