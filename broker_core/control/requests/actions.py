"""What actions and operators have a broker do: publish a message, and end."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Protocol

import msgspec

from broker_core.documents import requests
from broker_core.documents.messages import Published, PublishedBytes, Stopping
from broker_core.errors import OperatorError
from broker_core.protocols.names import check_topic


class Publishes(Protocol):
    """What publishes as the broker itself."""

    def publish_own(self, topic: str, bodies: list[bytes]) -> None:
        """Publish bodies on a topic."""


class Ends(Protocol):
    """Whoever may know how to end the process."""

    @property
    def on_shut_down(self) -> Callable[[], None] | None: ...


class ActionRequests:
    """Answers of what is done."""

    def __init__(self, publishing: Publishes, process: Ends) -> None:
        self._publishing = publishing
        self._process = process

    async def publish(self, asked: requests.Publish) -> Published:
        """One JSON message. ClientError bad_topic."""
        topic = check_topic(asked.topic)
        self._publishing.publish_own(topic, [msgspec.json.encode(asked.data)])
        return Published(topic=topic)

    async def publish_bytes(self, asked: requests.PublishBytes) -> PublishedBytes:
        """One message of any bytes. ClientError bad_topic; OperatorError topic_refused, bad_request."""
        topic = check_topic(asked.topic)
        if topic.startswith("$"):
            raise OperatorError(
                "topic_refused", "Topics that start with $ are the broker's own.", "Publish on another."
            )
        try:
            body = base64.b64decode(asked.body, validate=True)
        except binascii.Error:
            raise OperatorError(
                "bad_request", "body must be base64.", "Send the message's bytes so.", field="body"
            ) from None
        self._publishing.publish_own(topic, [body])
        return PublishedBytes(topic=topic, bytes=len(body))

    async def shut_down(self, asked: requests.ShutDown) -> Stopping:
        """OperatorError not_here where nobody knows how."""
        if self._process.on_shut_down is None:
            raise OperatorError(
                "not_here", "This broker can't end its process.", "Stop it where it was started."
            )
        self._process.on_shut_down()
        return Stopping(stopping=True)
