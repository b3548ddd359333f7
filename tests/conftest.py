"""Fixtures for all tests, and which tests a run takes in which order."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.support.control_plane"]
# How long an example takes says more about what else the machine does than about the code.
settings.register_profile("sluice", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sluice")
DATABASE = {"db", "transactional_db", "live_server"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--database`: for the run on PostgreSQL."""
    parser.addoption("--database", action="store_true", help="only tests that touch the database")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose as the options say. Workers begin with the slow files, so that none of them is left alone with one at the end."""
    if config.getoption("database"):
        config.hook.pytest_deselected(items=[item for item in items if not touches_database(item)])
        items[:] = filter(touches_database, items)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def touches_database(item: pytest.Item) -> bool:
    """Whether a test asks for the database; pytest-django refuses it to all others."""
    return item.get_closest_marker("django_db") is not None or not DATABASE.isdisjoint(
        getattr(item, "fixturenames", ())
    )
