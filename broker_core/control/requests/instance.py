"""The broker as a whole: what it says of itself, what it publishes, and its end."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable

import msgspec

from broker_core.control.status import Statistics
from broker_core.documents import requests
from broker_core.documents.instance import InstanceStatus, Snapshot
from broker_core.documents.journals import PublishBytesReply, PublishReply, ShutdownReply
from broker_core.documents.stalls import Stalls
from broker_core.engine.engine import Engine
from broker_core.errors import OperatorError
from broker_core.names import OWN
from broker_core.protocols.names import check_topic


class InstanceRequests:
    """Answers about the broker. `end` gives what ends the process, None where nobody knows how."""

    def __init__(
        self, engine: Engine, statistics: Statistics, end: Callable[[], Callable[[], None] | None]
    ) -> None:
        self._dispatch = engine.dispatch
        self._statistics = statistics
        self._end = end

    async def status(self, asked: requests.GetStatus) -> InstanceStatus:
        return self._statistics.status()

    async def snapshot(self, asked: requests.GetSnapshot) -> Snapshot:
        return self._statistics.snapshot()

    async def stalls(self, asked: requests.GetStalls) -> Stalls:
        """Return the newest stalls of the event loop, with stacks."""
        return Stalls(stalls=list(self._statistics.stalls.entries))

    async def publish(self, asked: requests.PublishMessage) -> PublishReply:
        """Publish one JSON message. ClientError bad_topic, not_journaled; OperatorError not_stored."""
        topic = check_topic(asked.topic)
        await self._publish(topic, msgspec.json.encode(asked.data))
        return PublishReply(topic=topic)

    async def _publish(self, topic: str, body: bytes) -> None:
        """Publish a message, and wait until it is stored where its topic is journaled."""
        under_way = self._dispatch.publish_own(topic, [body])
        if not under_way:
            return
        await self._dispatch.barrier()
        if any(one.failed for one in under_way):
            raise OperatorError(
                "not_stored",
                f"The message to {topic} was not stored: the disk refused it.",
                "See the broker's log for what the disk said, then publish again.",
            )

    async def publish_bytes(self, asked: requests.PublishRawMessage) -> PublishBytesReply:
        """Publish one message of any bytes. ClientError bad_topic, not_journaled; OperatorError
        topic_refused, bad_request, not_stored."""
        topic = check_topic(asked.topic)
        if topic.startswith(OWN):
            raise OperatorError(
                "topic_refused", "Topics that start with $ are the broker's own.", "Publish on another."
            )
        try:
            body = base64.b64decode(asked.body, validate=True)
        except binascii.Error:
            raise OperatorError(
                "bad_request", "body must be base64.", "Send the message's bytes so.", field="body"
            ) from None
        await self._publish(topic, body)
        return PublishBytesReply(topic=topic, bytes=len(body))

    async def shut_down(self, asked: requests.ShutDown) -> ShutdownReply:
        """OperatorError not_here where nobody knows how."""
        end = self._end()
        if end is None:
            raise OperatorError(
                "not_here", "This broker can't end its process.", "Stop it where it was started."
            )
        end()
        return ShutdownReply(stopping=True)
