"""Commands to a broker while the database accepts no writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker_core.documents import requests
from broker_core.errors import OperatorError
from console.models import AuditEvent, Instance
from console.services import audit, clients, messages, replays
from console.services.actors import Actor

COMMANDS: dict[str, Callable[[Actor], Any]] = {
    "publish": lambda actor: messages.publish(actor, "t", {"n": 1}),
    "publish_bytes": lambda actor: messages.publish_bytes(actor, "t", b"1"),
    "disconnect": lambda actor: clients.disconnect(actor, "c", "slow"),
    "pause": lambda actor: clients.control_client(actor, requests.PauseClient(name="c")),
    "resume": lambda actor: clients.control_client(actor, requests.ResumeClient(name="c")),
    "offline": lambda actor: clients.control_client(actor, requests.OfflineClient(name="c")),
    "delete_durable": lambda actor: clients.delete_durable(actor, "c", "d"),
    "create_replay": lambda actor: replays.create(
        actor, requests.CreateReplay(name="r", client="c", topic="t", bookmark="0")
    ),
    "pause_replay": lambda actor: replays.control_replay(actor, requests.PauseReplay(name="r")),
    "forget_replay": lambda actor: replays.forget_replay(actor, "r"),
}


class _Broker:
    """Broker that counts its requests, instead of a link to one."""

    def __init__(self) -> None:
        self.calls = 0

    def call(self, request: Any, **options: Any) -> Any:
        self.calls += 1
        raise AssertionError(f"{request} was executed")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_the_audit_cant_record_never_reaches_the_broker(
    command: str, instance: Instance, actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executed and answered 503, a program would send it again: a message would be stored twice."""
    broker = _Broker()
    problem = OperatorError("database_read_only", "The database is read-only.", "Point it at the primary.")
    for service in (messages, clients, replays):
        monkeypatch.setattr(service, "link_to", lambda _name: broker)
    monkeypatch.setattr(audit, "database_problem", lambda: problem)
    before = AuditEvent.objects.count()
    with pytest.raises(OperatorError) as refused:
        COMMANDS[command](actor)
    assert (refused.value.code, broker.calls) == ("database_read_only", 0)
    assert AuditEvent.objects.count() == before
