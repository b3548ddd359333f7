"""What an operator does to a connected client: pause and resume its subscriptions, or offline it. See `control`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker_core.delivery import ClientState
from broker_core.errors import OperatorError
from broker_core.runtime.acts import move_to_spool, resume
from broker_core.runtime.control import Handler

if TYPE_CHECKING:
    from broker_core.runtime.broker import Broker
    from broker_core.runtime.client_subscription import ClientSubscription
    from broker_core.runtime.connection import Connection


def operator_acts(broker: Broker) -> dict[str, Handler]:
    """The table of requests. Each names a client; pause and resume one of its subscriptions, or none for all."""
    answers = _Answers(broker)
    return {"offline": answers.offline, "pause": answers.pause, "resume": answers.resume}


class _Answers:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def offline(self, request: dict[str, Any]) -> dict[str, Any]:
        """As policy would. It is live again when it has taken what waits."""
        connection = self._connection(request)
        if connection.backlog.state is not ClientState.LIVE:
            raise OperatorError(
                "not_live", f"{connection.name} is {connection.backlog.state.value} already.", "Nothing is to be done."
            )
        try:
            move_to_spool(connection, connection.host.now_ns())
        except OSError as problem:
            raise OperatorError(
                "disk_full", f"The spool can't be made: {problem}.", "Make room, or choose another path."
            ) from None
        connection.host.judging.judge(connection)
        return {"name": connection.name, "state": connection.backlog.state.value}

    async def pause(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send nothing of the subscriptions until they are resumed. What comes for them waits, and counts."""
        connection = self._connection(request)
        targets = _targets(connection, request)
        for target in targets:
            connection.backlog.lane(target.subscription.stream).paused = True
        return _done(connection, targets)

    async def resume(self, request: dict[str, Any]) -> dict[str, Any]:
        """End a pause by an operator or by policy; one that the client asked for is the client's to end."""
        connection = self._connection(request)
        targets = _targets(connection, request)
        for target in targets:
            resume(connection, target.subscription.stream)
        return _done(connection, targets)

    def _connection(self, request: dict[str, Any]) -> Connection:
        name = str(request.get("name", ""))[:64]
        connection: Connection | None = self._broker.host.clients.get(name)
        if connection is None:
            raise OperatorError("unknown_client", f"No client {name!r} is connected.", "See the clients page.")
        return connection


def _targets(connection: Connection, request: dict[str, Any]) -> list[ClientSubscription]:
    id = str(request.get("subscription") or "")
    if not id:
        return list(connection.subscriptions.values())
    target = connection.subscriptions.get(id)
    if target is None:
        raise OperatorError("unknown_subscription", f"{connection.name} has no subscription {id[:80]!r}.", "See the client's page.")
    return [target]


def _done(connection: Connection, targets: list[ClientSubscription]) -> dict[str, Any]:
    return {"name": connection.name, "subscriptions": [target.subscription.id for target in targets]}
