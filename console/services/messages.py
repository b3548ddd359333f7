"""Publishing of a message by an operator."""

from __future__ import annotations

import base64

import orjson

from broker_core.documents.base import Json
from broker_core.documents.journals import PublishReply
from broker_core.documents.requests import PublishMessage, PublishRawMessage
from broker_core.errors import OperatorError, SluiceError
from broker_core.names import RESERVED_PREFIX
from broker_core.protocols.names import check_topic
from console.broker_link import link_to
from console.choices import AuditResult
from console.queries.policies import instance_named
from console.services import audit
from console.services.actors import Actor

MAX_BODY = 1024 * 1024


def publish(
    actor: Actor, topic: str, data: Json, reason: str = "", instance_name: str | None = None
) -> PublishReply:
    """Publish one JSON message through a broker.

    The audit event has the message's size, not its content: readers of the audit may not be allowed to read
    it.

    Raises:
        OperatorError: `bad_topic` or `message_too_large`, and the errors of `audit.require_database`.
        BrokerUnavailable: no broker answers.
    """
    return _publish(
        actor, PublishMessage(topic=topic, data=data), len(orjson.dumps(data)), topic, reason, instance_name
    )


def publish_bytes(
    actor: Actor, topic: str, body: bytes, reason: str = "", instance_name: str | None = None
) -> PublishReply:
    """Publish one message with any bytes as its body; otherwise like `publish`."""
    request = PublishRawMessage(topic=topic, body=base64.b64encode(body).decode())
    return _publish(actor, request, len(body), topic, reason, instance_name)


def publish_problem(topic: str, size: int) -> SluiceError | None:
    """Return the reason why an operator can't publish a message of `size` bytes to a topic, or None."""
    if topic.startswith(RESERVED_PREFIX):
        return OperatorError(
            "bad_topic", "Topics that start with $ are reserved for the broker.", "Choose another topic."
        )
    if size > MAX_BODY:
        return OperatorError(
            "message_too_large",
            f"The message has {size:,} bytes.",
            f"A message can have at most {MAX_BODY:,} bytes here.",
        )
    try:
        check_topic(topic)
    except SluiceError as problem:
        return problem
    return None


def _publish(
    actor: Actor,
    request: PublishMessage | PublishRawMessage,
    size: int,
    topic: str,
    reason: str,
    instance_name: str | None,
) -> PublishReply:
    """Publish a message through the broker, and record success or refusal in the audit."""
    instance = instance_named(instance_name)
    target = f"{instance.name}: topic {topic}"
    problem = publish_problem(topic, size)
    if problem is not None:
        raise problem
    audit.require_database()
    try:
        link_to(instance.name).call(request)
    except SluiceError as refused:
        audit.record(
            actor,
            "message.publish",
            target,
            reason=reason,
            result=AuditResult.FAILED,
            message=refused.sentence,
        )
        raise
    audit.record(actor, "message.publish", target, after={"bytes": size}, reason=reason)
    return PublishReply(topic=topic)
