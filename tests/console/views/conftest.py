"""The pages as a browser asks for them: an operator, and somebody who may only look."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from console.broker_link import _waits
from console.models import Instance
from tests.support.machines import Machines


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


@pytest.fixture
def machines(instance: Instance, settings: Any) -> Iterator[Machines]:
    """A group of three, a broker by itself, and links to other sites."""
    with Machines(Path(settings.SLUICE_RUN_DIRECTORY)) as made:
        settings.SLUICE_BROKERS = tuple(made.addresses)
        yield made
    _waits.forget()
