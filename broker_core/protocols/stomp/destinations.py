"""Destinations of RabbitMQ, ActiveMQ and Artemis, as topics, patterns and queues of Sluice.

    /topic/a.b  /topic/a/b     the topic a.b; `*` one level, `#` and `>` at the end one level or more
    /exchange/NAME/key         the topic NAME.key; amq.topic stands for topics without a prefix
    /exchange/NAME             the topic NAME: each subscription gets each message (fan-out)
    /temp-queue/x /temp-topic/x  a topic of the connection's own, which `reply-to` gives to others
    /queue/q  /amq/queue/q  q  the queue q; the bare q is a topic with `destination-type` or
                               `subscription-type` MULTICAST

Spring resolves `/app` and `/user` itself, so they have no meaning here.
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple

from broker_core.errors import ClientError
from broker_core.names import RESERVED_PREFIX
from broker_core.protocols.names import check_topic
from broker_core.subscriptions.topics import TopicPattern

QUEUES: Final = "queue."
"""Prefix of queues' topics. A queue is a shared position in the log of one topic."""
_QUEUE_FORMS: Final = ("/queue/", "/amq/queue/")
TEMPORARY: Final = ("/temp-queue/", "/temp-topic/")
TEMPORARY_TOPICS: Final = "scratch.temp."
"""Prefix of temporary destinations' topics."""
_REFUSED: Final = {
    "/reply-queue/": "Reply queues",
    "/dsub/": "Destinations of durable subscriptions",
}


class DestinationType(Enum):
    """Receivers of a message at a destination."""

    TOPIC = "topic"
    """Each message goes to every subscription."""
    QUEUE = "queue"
    """Each message goes to one of the queue's consumers."""


class StompDestination(NamedTuple):
    """Parsed destination. `topic` is a topic, or in a SUBSCRIBE a topic pattern."""

    kind: DestinationType
    topic: str


def unsupported_error(feature: str, fix: str, **details: str) -> ClientError:
    """Return the error for a STOMP feature of other brokers that isn't supported here."""
    return ClientError("not_supported", f"{feature} aren't supported here.", fix, **details)


def temporary_topic(text: str, secret: str) -> str:
    """Return the public destination of a connection's temporary one; "" if it isn't temporary.

    Only connections that know the `secret` can name it. By the default policy no journal keeps it.
    """
    for prefix in TEMPORARY:
        if text.startswith(prefix):
            return f"/topic/{TEMPORARY_TOPICS}{secret}.{_split_levels(text[len(prefix) :])}"
    return ""


@lru_cache(maxsize=8_192)
def parse_send_destination(text: str, multicast: bool = False) -> StompDestination:
    """Parse the destination of a SEND.

    Raises:
        ClientError: not_supported; bad_topic, with the column counted in the topic.
    """
    found = _parse_destination(text, multicast)
    check_topic(found.topic)
    return found


@lru_cache(maxsize=8_192)
def parse_subscribe_destination(text: str, multicast: bool = False) -> StompDestination:
    """Parse the destination of a SUBSCRIBE.

    Raises:
        ClientError: bad_topic, bad_pattern or not_supported.
    """
    found = _parse_destination(text, multicast)
    if found.kind is DestinationType.QUEUE:
        check_topic(found.topic, use="subscribed to")
        return found
    *levels, last = found.topic.split(".")
    if "#" in levels or ">" in levels:
        raise unsupported_error(
            "Wildcards for many levels before the end", "Put # or > at the end.", destination=text
        )
    pattern = ".".join([*levels, ">" if last == "#" else last])
    TopicPattern.parse(pattern)
    return StompDestination(DestinationType.TOPIC, pattern)


@lru_cache(maxsize=8_192)
def format_destination(topic: str) -> str:
    """Return the destination of a topic whose publisher named none."""
    return f"/queue/{topic.removeprefix(QUEUES)}" if topic.startswith(QUEUES) else f"/topic/{topic}"


def _parse_destination(text: str, multicast: bool) -> StompDestination:
    """Parse a destination, without the checks of its topic."""
    if "," in text:
        raise unsupported_error("Composite destinations", "Send or subscribe to each.", destination=text)
    for prefix, feature in _REFUSED.items():
        if text.startswith(prefix):
            raise unsupported_error(feature, "docs/stomp.md says what can be done instead.", destination=text)
    if text.startswith("/topic/"):
        return StompDestination(DestinationType.TOPIC, _split_levels(text[7:]))
    if text.startswith("/exchange/"):
        return StompDestination(DestinationType.TOPIC, _parse_exchange(text))
    for prefix in _QUEUE_FORMS:
        if text.startswith(prefix):
            return StompDestination(DestinationType.QUEUE, QUEUES + _split_levels(text[len(prefix) :]))
    if not text or text[0] == "/":
        raise ClientError(
            "bad_topic",
            f"{text[:80]!r} isn't a destination.",
            "Use /topic/a.b, /queue/q, /amq/queue/q or /exchange/NAME/key.",
            destination=text[:255],
        )
    if text[0] == RESERVED_PREFIX:
        return StompDestination(DestinationType.TOPIC, text)
    return StompDestination(
        DestinationType.TOPIC if multicast else DestinationType.QUEUE,
        ("" if multicast else QUEUES) + _split_levels(text),
    )


def _split_levels(name: str) -> str:
    """Return a name with dots between levels."""
    return name.replace("/", ".")


def _parse_exchange(text: str) -> str:
    """Return the topic of an `/exchange/NAME/key` or `/exchange/NAME` destination."""
    name, _, key = text.removeprefix("/exchange/").partition("/")
    if not name or (not key and name == "amq.topic"):
        raise unsupported_error(
            "Exchanges of topics without a routing key", "Name it: /exchange/NAME/key.", destination=text
        )
    if not key:
        return _split_levels(name)
    return _split_levels(key if name == "amq.topic" else f"{name}.{key}")
