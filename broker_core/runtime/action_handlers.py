"""What actions may ask of a broker, by name; see `control` for the wire."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any

from broker_core.errors import OperatorError
from broker_core.protocols.names import check_topic
from broker_core.runtime.control import Handler

if TYPE_CHECKING:
    from broker_core.runtime.broker import Broker


def action_handlers(broker: Broker) -> dict[str, Handler]:
    """The table of requests."""
    answers = _Answers(broker)
    return {"publish_bytes": answers.publish_bytes, "shut_down": answers.shut_down}


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

    async def shut_down(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._broker.on_shut_down is None:
            raise OperatorError("not_here", "This broker can't end its process.", "Stop it where it was started.")
        self._broker.on_shut_down()
        return {"stopping": True}
