"""Audit events for logons that a real broker refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from broker_core.access import RefusedLogonLog
from broker_core.client import AsyncClient, ReconnectPolicy
from broker_core.errors import ClientError, OperatorError
from console.models import AuditEvent
from console.reporters.snapshot_reporter import SnapshotReporter
from console.services import policies, refused_logons
from tests.broker_core.access.making import policy, user
from tests.broker_core.connections.test_logons import PASSWORDS
from tests.support.brokers import address_of, running_broker

ONCE = ReconnectPolicy(enabled=False)
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_url")]


@sync_to_async
def events() -> list[AuditEvent]:
    return list(AuditEvent.objects.filter(action="logon").order_by("pk"))


async def refuse(address: str, **proof: Any) -> None:
    with pytest.raises((ClientError, OperatorError)):
        await AsyncClient(address, "desk-1", reconnect=ONCE, **proof).start()


async def test_wrong_passwords_become_one_denied_event_of_their_address(tmp_path: Path) -> None:
    async with running_broker(tmp_path, PASSWORDS) as broker:
        await sync_to_async(policies.ensure_instance)(broker.engine.instance)
        for name in ("maria", "maria", "root"):
            await refuse(address_of(broker), user=name, password="wrong")
        reporter = SnapshotReporter(broker)
        await reporter.close()
        found = await events()
    assert sum(event.after["count"] for event in found) == 3
    first = found[0]
    assert (first.result, first.actor_kind, first.source) == ("denied", "system", "127.0.0.1")
    assert first.after["clients"] == ["desk-1"]
    assert {name for event in found for name in event.after["users"]} == {"maria", "root"}
    assert first.expires_at is not None
    assert "refused from 127.0.0.1" in first.message
    assert "wrong" not in str([event.after for event in found])


async def test_name_that_a_user_may_not_take_is_in_it_too(tmp_path: Path) -> None:
    rules = policy(
        user("maria", password=PASSWORDS.access.users[0].password, clients=("feed-*",)),
        authentication="password",
        restricted=False,
    )
    async with running_broker(tmp_path, rules) as broker:
        await refuse(address_of(broker), user="maria", password="right")
        (entry,) = broker.engine.logons.refusals.take(2**60)
    assert (dict(entry.codes), entry.users) == ({"bad_client_name": 1}, ["maria"])


async def test_database_that_is_away_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_broker(tmp_path, PASSWORDS) as broker:
        await sync_to_async(policies.ensure_instance)(broker.engine.instance)
        await refuse(address_of(broker), user="maria", password="wrong")
        reporter = SnapshotReporter(broker)

        def away(*_: Any) -> None:
            raise OSError("away")

        with monkeypatch.context() as patched:
            patched.setattr("console.reporters.snapshot_reporter.record_refused_logons", away)
            await reporter.close()
        assert await events() == []
        await reporter.close()
        assert len(await events()) == 1


def test_all_of_them_are_stored_or_none(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = RefusedLogonLog()
    for remote in ("a", "b"):
        refusals.add(1, remote, "tcp", "bad_logon", "", "")
    entries = refusals.take(2)
    entries[1].codes["bad_logon"] = "many"  # type: ignore[assignment]
    with pytest.raises(TypeError):
        refused_logons.record_refused_logons(entries, "sluice-1")
    assert AuditEvent.objects.count() == 0
