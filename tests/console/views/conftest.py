"""The pages as a browser asks for them: an operator, and somebody who may only look."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client


@pytest.fixture
def browser(operator: Any) -> Client:
    """An operator who is logged in, with CSRF checked as in a browser."""
    client = Client()
    client.force_login(operator)
    return client


@pytest.fixture
def onlooker(viewer: Any) -> Client:
    """Somebody who may look."""
    client = Client()
    client.force_login(viewer)
    return client
