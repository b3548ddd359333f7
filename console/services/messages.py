"""Publishing a message as an operator."""

from __future__ import annotations

import orjson

from broker_core.documents.base import Json
from broker_core.documents.messages import Published
from broker_core.documents.requests import Publish
from broker_core.errors import OperatorError, SluiceError
from broker_core.names import OWN
from console.broker_link import link_to
from console.choices import AuditResult
from console.queries.policies import instance_named
from console.services import audit
from console.services.actors import Actor

MAX_BODY = 1024 * 1024


def publish(
    actor: Actor, topic: str, data: Json, reason: str = "", instance_name: str | None = None
) -> Published:
    """Publish one JSON message. Raises OperatorError bad_topic, message_too_large, or BrokerAway.

    The audit has its size, not its content, which may be nobody's business who reads audits.
    """
    instance = instance_named(instance_name)
    target, size = f"{instance.name}: topic {topic}", len(orjson.dumps(data))
    if topic.startswith(OWN):
        raise OperatorError(
            "bad_topic", "Topics that begin with $ are the broker's own.", "Choose another topic."
        )
    if size > MAX_BODY:
        raise OperatorError(
            "message_too_large",
            f"The message has {size:,} bytes.",
            f"At most {MAX_BODY:,} can be published here.",
        )
    try:
        made = link_to(instance.name).call(Publish(topic=topic, data=data))
    except SluiceError as problem:
        audit.record(
            actor,
            "message.publish",
            target,
            reason=reason,
            result=AuditResult.FAILED,
            message=problem.sentence,
        )
        raise
    audit.record(actor, "message.publish", target, after={"bytes": size}, reason=reason)
    return made
