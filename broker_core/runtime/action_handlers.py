"""What actions may ask of a broker, by name; see `control` for the wire."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

from broker_core.delivery import ClientState
from broker_core.errors import OperatorError
from broker_core.protocols.names import check_topic
from broker_core.runtime.control import Handler

if TYPE_CHECKING:
    from broker_core.runtime.broker import Broker
    from broker_core.runtime.connection import Connection


def action_handlers(broker: Broker) -> dict[str, Handler]:
    """The table of requests."""
    answers = _Answers(broker)
    return {"publish_bytes": answers.publish_bytes, "offline": answers.offline, "shut_down": answers.shut_down}


class _Answers:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def publish_bytes(self, request: dict[str, Any]) -> dict[str, Any]:
        topic = check_topic(str(request.get("topic", "")))
        if topic.startswith("$"):
            raise OperatorError("topic_refused", "Topics that start with $ are the broker's own.", "Publish on another.")
        try:
            body = base64.b64decode(str(request.get("body", "")), validate=True)
        except binascii.Error:
            raise OperatorError("bad_request", "body must be base64.", "Send the message's bytes so.") from None
        self._broker.host.publishing.publish_own(topic, [body])
        return {"topic": topic, "bytes": len(body)}

    async def offline(self, request: dict[str, Any]) -> dict[str, Any]:
        host = self._broker.host
        name = str(request.get("name", ""))[:64]
        connection = host.clients.get(name)
        if connection is None:
            raise OperatorError("unknown_client", f"No client {name!r} is connected.", "See the clients page.")
        if connection.backlog.state is not ClientState.LIVE:
            raise OperatorError("not_live", f"{name} is {connection.backlog.state.value} already.", "Nothing is to be done.")
        _offline(connection)
        return {"name": name, "state": connection.backlog.state.value}

    async def shut_down(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._broker.on_shut_down is None:
            raise OperatorError("not_here", "This broker can't end its process.", "Stop it where it was started.")
        self._broker.on_shut_down()
        return {"stopping": True}


def _offline(connection: Connection) -> None:
    """As policy would, for a client that an operator chose. It is live again when it has taken what waits."""
    host = connection.host
    try:
        spool = host.judging.new_spool(connection)
    except OSError as problem:
        raise OperatorError("disk_full", f"The spool can't be made: {problem}.", "Make room, or choose another path.") from None
    connection.backlog.go_offline(spool)
    for target in connection.subscriptions.values():
        if target.conflating is not None:
            target.conflating.offlined()
    host.events.add(host.now_ns(), connection.name, "offline_start", "offlined")
    host.judging.judge(connection)
