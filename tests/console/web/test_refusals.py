"""Refused requests: an unknown host and a missing permission leave one line in the log."""

from __future__ import annotations

import copy
import io
import logging.config
from collections.abc import Iterator

import pytest
from django.conf import settings
from django.test import Client


@pytest.fixture
def output() -> Iterator[io.StringIO]:
    """Return what the logging settings write. Only their stream is replaced."""
    written, known = io.StringIO(), copy.deepcopy(settings.LOGGING)
    known["handlers"]["console"]["stream"] = written
    logging.config.dictConfig(known)
    try:
        yield written
    finally:
        logging.config.dictConfig(settings.LOGGING)


@pytest.mark.django_db
def test_a_request_with_a_foreign_host_leaves_one_line(output: io.StringIO) -> None:
    answer = Client().get("/", HTTP_HOST="elsewhere.example")
    assert answer.status_code == 400
    (line,) = output.getvalue().splitlines()
    assert "elsewhere.example" in line


def test_a_request_without_the_permission_leaves_one_line(viewer: object, output: io.StringIO) -> None:
    browser = Client()
    browser.force_login(viewer)
    answer = browser.get("/access/")
    assert answer.status_code == 403
    (line,) = output.getvalue().splitlines()
    assert "/access/" in line


@pytest.mark.django_db
@pytest.mark.parametrize("method", ["PUT", "TRACE", "PATCH", "DELETE"])
def test_methods_that_no_page_has_are_refused(method: str, operator: object) -> None:
    browser = Client()
    browser.force_login(operator)
    assert browser.generic(method, "/clients/").status_code == 405
    assert browser.generic(method, "/api/v1/brokers").status_code == 405
