"""Fixtures for all tests, and selection and order of tests in a run."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

pytest_plugins = ["tests.support.control_plane"]
# How long an example takes says more about what else the machine does than about the code. A run tries the
# same examples each time:
# a rare find would stop somebody whose change has nothing to do with it. `make torture ARGS='--only laws'`
# looks for those.
settings.register_profile(
    "sluice", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, print_blob=True
)
settings.load_profile("sluice")
DATABASE = {"db", "transactional_db", "live_server"}


def pytest_configure(config: pytest.Config) -> None:
    """Hypothesis also draws constants of whatever modules happen to be imported: each choice of tests would
    have examples of its own.
    """
    if not config.pluginmanager.hasplugin("tests.torture.laws"):
        providers._get_local_constants = Constants


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--database`: for the run on PostgreSQL."""
    parser.addoption("--database", action="store_true", help="only tests that touch the database")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select tests by the options.

    Workers begin with the slow files, so that no worker is left alone with one at the end.
    """
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
