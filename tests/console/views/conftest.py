"""Fixtures with logged-on browsers: an operator and a viewer."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client


@pytest.fixture
def browser(operator: Any) -> Client:
    """Return a test client that is logged on as the operator."""
    client = Client()
    client.force_login(operator)
    return client


@pytest.fixture
def onlooker(viewer: Any) -> Client:
    """Return a test client that is logged on as the viewer."""
    client = Client()
    client.force_login(viewer)
    return client
