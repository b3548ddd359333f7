"""Fixtures with brokers for tests of pages and commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from console.broker_link import _waits
from console.models import Instance
from tests.support.machines import Machines


@pytest.fixture
def machines(instance: Instance, settings: Any) -> Iterator[Machines]:
    """Run fake brokers of a group of three, a standalone broker, and links to other sites."""
    with Machines(Path(settings.SLUICE_RUN_DIRECTORY)) as made:
        settings.SLUICE_BROKERS = tuple(made.addresses)
        yield made
    _waits.clear()
