"""Headers of clients' frames: heart-beats, headers stored with a record, and those of a SUBSCRIBE.

A SUBSCRIBE may have the headers of three brokers and Sluice's own. It becomes the native command `subscribe`.

An unknown header is never an error, because clients send many that only some broker understands. A header
that would change what is delivered, and isn't supported, is refused by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgspec

from broker_core.bookmark import EPOCH_TEXT, NOW_TEXT, Bookmark, format_moment
from broker_core.config.preset_settings import MAX_PREFETCH
from broker_core.errors import ClientError
from broker_core.filters.selectors import join_filter_text
from broker_core.headers import encode
from broker_core.names import MAX_NAME, NAME_CHARACTERS, is_name
from broker_core.protocols import commands
from broker_core.protocols.names import check_subscription_id
from broker_core.protocols.stomp.destinations import (
    DestinationType,
    StompDestination,
    format_destination,
    parse_subscribe_destination,
    unsupported_error,
)
from broker_core.protocols.stomp.message_frames import OMITTED_HEADERS
from broker_core.protocols.stomp.send_headers import StompHeaders

MIN_HEARTBEAT_MS: Final = 1_000
"""Minimum heart-beat interval in both directions, ms."""
MAX_HEARTBEAT_MS: Final = 24 * 3_600_000
"""Maximum heart-beat interval, ms."""


def required_header(headers: dict[str, str], name: str) -> str:
    """Return the value of a header.

    Raises:
        ClientError: bad_command, when it is missing.
    """
    value = headers.get(name, "")
    if not value:
        raise ClientError(
            "bad_command", f"The header {name} is missing.", f"Give it: {name}:...", header=name
        )
    return value


def parse_heartbeat(text: str) -> tuple[int, int]:
    """Return the interval in which the broker sends, and that in which it expects something, ms; 0: never.

    Raises:
        ClientError: bad_command.
    """
    parts = text.split(",")
    if len(parts) != 2 or not all(part.isascii() and part.isdecimal() and len(part) < 16 for part in parts):
        raise ClientError(
            "bad_command",
            f"heart-beat {text[:40]!r} isn't two numbers.",
            "Give milliseconds, as 10000,10000.",
            header="heart-beat",
        )
    client_sends_ms, client_expects_ms = (min(int(part), MAX_HEARTBEAT_MS) for part in parts)
    return (
        max(client_expects_ms, MIN_HEARTBEAT_MS) if client_expects_ms else 0,
        max(client_sends_ms, MIN_HEARTBEAT_MS) if client_sends_ms else 0,
    )


def record_headers(headers: StompHeaders, topic: str) -> bytes:
    """Return the encoded headers that are stored with a record.

    If the destination differs from Sluice's own form, it is the first of them.
    """
    try:
        return headers.travelling
    except AttributeError:
        pass
    travelling = [item for item in headers.items() if item[0] not in OMITTED_HEADERS]
    destination = headers["destination"]
    if destination != format_destination(topic):
        travelling.insert(0, ("destination", destination))
    headers.travelling = encode(travelling) if travelling else b""
    return headers.travelling


ACK_MODES: Final = ("auto", "client", "client-individual")
RETROACTIVE_MS: Final = 60_000
"""Time before now at which a retroactive subscription begins, ms."""
_SUBSCRIBE_OPTIONS: Final = {
    "x-sluice-rate": "rate",
    "x-sluice-rate-max-gap": "rate_max_gap",
    "x-sluice-conflation": "conflation",
    "x-sluice-conflation-key": "conflation_key",
    "x-sluice-durability": "durability",
    "x-sluice-on-gap": "on_gap",
    "x-sluice-resume": "resume",
    "x-sluice-resume-how": "resume_how",
    "x-sluice-snapshot-key": "snapshot_key",
}
"""Sluice's own headers, with the fields of the command that they set unchanged."""
_REFUSED: Final = {
    "browser": "Browsers of queues",
    "activemq.exclusive": "Exclusive consumers",
    "exclusive": "Exclusive consumers",
    "x-single-active-consumer": "Exclusive consumers",
    "no-local": "Subscriptions without one's own messages",
    "activemq.noLocal": "Subscriptions without one's own messages",
}
"""Headers that request unsupported features when they are true, with the features' names in errors."""
_REFUSED_VALUES: Final = {
    "activemq.maximumPendingMessageLimit": ("Limits of pending messages by a client", ("0", "-1")),
    "activemq.priority": ("Priorities of consumers", ("0",)),
    "consumer-priority": ("Priorities of consumers", ("0",)),
    "x-priority": ("Priorities of consumers", ("0",)),
    "consumer-window-size": ("Windows in bytes", ("-1",)),
    "x-queue-name": ("Names of a subscription's queue", ()),
    "x-message-ttl": ("Expiring messages", ()),
    "x-expires": ("Expiring queues", ()),
    "x-max-length": ("Limits of a queue's length", ()),
    "x-max-length-bytes": ("Limits of a queue's length", ()),
    "x-overflow": ("Limits of a queue's length", ()),
    "x-max-priority": ("Priorities of messages", ("0",)),
    "x-dead-letter-exchange": ("Other destinations of dead letters", ()),
    "x-dead-letter-routing-key": ("Other destinations of dead letters", ()),
}
"""Headers of unsupported features, with the features' names and the values that request none."""


class SubscribeRequest(NamedTuple):
    """Parsed SUBSCRIBE.

    `owner` of a durable subscription: "client" for one of the client's name, "user" for one of its user,
    "queue" for the shared one of a queue; "" if it isn't durable.
    """

    command: commands.Subscribe
    destination: StompDestination
    ack: str
    owner: str


def parse_boolean(headers: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """Return a header as a boolean, in any case: Python clients send True. `default`: without the header.

    Raises:
        ClientError: bad_command, for any other value.
    """
    text = headers.get(name)
    if text is None:
        return default
    found = {"true": True, "false": False}.get(text.lower())
    if found is None:
        raise ClientError(
            "bad_command",
            f"{name} {text[:40]!r} isn't a boolean.",
            f"Use {name}:true or {name}:false.",
            header=name,
        )
    return found


def is_multicast(headers: Mapping[str, str]) -> bool:
    """Return whether Artemis' headers declare a bare destination a topic."""
    routing_type = (
        headers.get("subscription-type") or headers.get("destination-type") or headers.get("routing-type")
    )
    return routing_type == "MULTICAST"


def to_durable_name(text: str) -> str:
    """Return a text as a valid name. Characters that it can't have are replaced, and a hash is appended."""
    if is_name(text):
        return text
    plain = "".join(letter if letter in NAME_CHARACTERS else "_" for letter in text)[: MAX_NAME - 9]
    return f"{plain}-{blake2b(text.encode(errors='replace'), digest_size=4).hexdigest()}"


def durable_subscription(headers: Mapping[str, str], topic: str = "") -> tuple[str, str]:
    """Return the name of the durable subscription in a frame, and its owner: "client", "user" or "".

    A user's one has an id for each `topic`, as in RabbitMQ: two programs of one login often use equal ids.

    Raises:
        ClientError: bad_command, when a boolean isn't understood.
    """
    name = headers.get("activemq.subscriptionName") or headers.get("durable-subscription-name")
    if name:
        return to_durable_name(name), "client"
    durable, persistent = parse_boolean(headers, "durable"), parse_boolean(headers, "persistent")
    if durable or persistent:
        topic_hash = blake2b(topic.encode(errors="replace"), digest_size=4).hexdigest()
        return to_durable_name(f"{headers.get('id', '')}-{topic_hash}"), "user"
    return "", ""


def parse_subscribe(
    headers: Mapping[str, str],
    id: str,
    instance: str,
    newest: int,
    now_ns: int,
    emptied: Mapping[str, int] = MappingProxyType({}),
) -> SubscribeRequest:
    """Parse a SUBSCRIBE.

    Args:
        newest: sequence of the log's newest record.
        emptied: end of the log at the deletion of queues, by durable name.

    Raises:
        ClientError: a header is wrong or not supported; the error names it.
    """
    check_subscription_id(id)
    destination = parse_subscribe_destination(headers.get("destination", ""), is_multicast(headers))
    ack = headers.get("ack", "auto")
    if ack not in ACK_MODES:
        raise ClientError(
            "bad_ack", f"There is no ack mode {ack[:40]!r}.", f"Use {', '.join(ACK_MODES)}.", header="ack"
        )
    durable, owner = durable_subscription(headers, destination.topic)
    _refuse_unsupported(headers, is_kept=bool(durable) or destination.kind is DestinationType.QUEUE)
    if destination.kind is DestinationType.QUEUE:
        durable, owner = to_durable_name(destination.topic), "queue"
    fields: dict[str, Any] = {"id": id, "topic": destination.topic}
    if chosen := join_filter_text(headers.get("selector", ""), headers.get("x-sluice-filter", "")):
        fields["filter"] = chosen
    prefetch = _prefetch(headers)
    if ack != "auto":
        fields |= {"ack": ack} | prefetch
    elif durable:
        fields["ack"] = "none"
    if durable:
        fields["durable"] = durable
    if owner == "queue":
        fields["shared"] = True
        fields |= _number(headers, "x-sluice-max-deliveries", "max_deliveries")
    elif "x-sluice-max-deliveries" in headers:
        raise unsupported_error(
            "Dead letters of topics", "Leave it out, or use a queue.", header="x-sluice-max-deliveries"
        )
    bookmark = _bookmark(headers, instance, newest, now_ns)
    if bookmark is None and owner == "queue":
        # A queue has the records from before its first consumer, but not those deleted with it.
        bookmark = _bookmark_after(instance, emptied.get(durable, 0))
    if bookmark is not None:
        fields["bookmark"] = bookmark
    fields |= {field: headers[header] for header, field in _SUBSCRIBE_OPTIONS.items() if headers.get(header)}
    return SubscribeRequest(_check_fields(fields), destination, ack, owner)


def _refuse_unsupported(headers: Mapping[str, str], *, is_kept: bool) -> None:
    """Refuse headers of other brokers that would change what is delivered, and aren't supported.

    `is_kept`: the subscription is stored when its consumer ends.
    """
    for header, feature in _REFUSED.items():
        if parse_boolean(headers, header):
            raise unsupported_error(feature, f"Leave the header {header} out.", header=header)
    for header, (feature, neutral_values) in _REFUSED_VALUES.items():
        if header in headers and headers[header] not in neutral_values:
            raise unsupported_error(feature, f"Leave the header {header} out.", header=header)
    if parse_boolean(headers, "auto-delete") and is_kept:
        raise unsupported_error(
            "Stored subscriptions that end with their consumer",
            "Leave the header auto-delete out, or subscribe to a topic without durable.",
            header="auto-delete",
        )


def _check_fields(fields: dict[str, Any]) -> commands.Subscribe:
    found = commands.parse_command(msgspec.json.encode({"c": "subscribe"} | fields))
    assert isinstance(found, commands.Subscribe)
    return found


def _prefetch(headers: Mapping[str, str]) -> dict[str, int]:
    prefetch = _number(headers, "activemq.prefetchSize", "prefetch")
    prefetch |= _number(headers, "prefetch-count", "prefetch")
    return {field: min(number, MAX_PREFETCH) for field, number in prefetch.items() if number}


def _number(headers: Mapping[str, str], header: str, field: str) -> dict[str, int]:
    """Return a numeric header as a field of the command; {} without it."""
    text = headers.get(header)
    if text is None:
        return {}
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ClientError(
            "bad_command", f"{header} {text[:40]!r} isn't a number.", "Give a whole number.", header=header
        )
    return {field: int(text)}


def _bookmark(headers: Mapping[str, str], instance: str, newest: int, now_ns: int) -> str | None:
    """Return the bookmark at which a SUBSCRIBE begins; None if it names none."""
    bookmark = headers.get("x-sluice-bookmark")
    if bookmark is not None:
        return bookmark
    offset = headers.get("x-stream-offset")
    if offset is not None:
        return _parse_offset(offset, instance, newest)
    if parse_boolean(headers, "activemq.retroactive"):
        return format_moment(now_ns - RETROACTIVE_MS * 1_000_000)
    return None


def _parse_offset(text: str, instance: str, newest: int) -> str:
    """Return the bookmark of RabbitMQ's `x-stream-offset`."""
    word, _, value = text.partition("=")
    if word == "first":
        return EPOCH_TEXT
    if word == "next":
        return NOW_TEXT
    if word == "last":
        return _bookmark_after(instance, newest - 1)
    if value.isascii() and value.isdecimal() and len(value) < 19:
        if word == "offset":
            return _bookmark_after(instance, int(value) - 1)
        if word == "timestamp" and len(value) < 11:
            return format_moment(int(value) * 1_000_000_000)
    raise ClientError(
        "bad_bookmark",
        f"x-stream-offset {text[:80]!r} isn't a place in the log.",
        "Use first, last, next, offset=N or timestamp=T.",
        header="x-stream-offset",
    )


def _bookmark_after(instance: str, sequence: int) -> str:
    return str(Bookmark(instance, sequence)) if sequence > 0 else EPOCH_TEXT
