"""The headers of a SUBSCRIBE, in the words of three brokers and in ours, as the command that there is.

A header that isn't known is never an error: clients say much that only some broker understands. One that would change
what is delivered, and that can't be done here, is refused by its name.
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
from broker_core.names import MAX_NAME, NAME_CHARACTERS, is_name
from broker_core.protocols import commands
from broker_core.protocols.names import check_subscription_id
from broker_core.protocols.stomp.destinations import Destination, Kind, not_supported, subscribe_to

ACK_MODES: Final = ("auto", "client", "client-individual")
RETROACTIVE_MS: Final = 60_000
"""How far back a retroactive subscription begins."""
_TRUE: Final = "true"
_OURS: Final = {
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
"""Our headers, which are fields of the command as they are."""
_REFUSED: Final = {
    "browser": "Browsers of queues",
    "activemq.exclusive": "Exclusive consumers",
    "no-local": "Subscriptions without one's own messages",
}


class Asked(NamedTuple):
    """One SUBSCRIBE, understood. `owner` is "client" for a durable subscription of a client's name, "user" for one of its
    user's, "queue" for the shared one that a queue is, and "" for others."""

    command: commands.Subscribe
    destination: Destination
    ack: str
    owner: str


def is_multicast(headers: Mapping[str, str]) -> bool:
    """Whether Artemis' headers call a bare destination a topic."""
    said = headers.get("subscription-type") or headers.get("destination-type") or headers.get("routing-type")
    return said == "MULTICAST"


def durable_name(text: str) -> str:
    """A name as the broker keeps it: letters that it doesn't take, and dots alone, are told apart by a hash behind the rest."""
    if is_name(text):
        return text
    plain = "".join(letter if letter in NAME_CHARACTERS else "_" for letter in text)[: MAX_NAME - 9]
    return f"{plain}-{blake2b(text.encode(errors='replace'), digest_size=4).hexdigest()}"


def durable_of(headers: Mapping[str, str]) -> tuple[str, str]:
    """The durable subscription that a SUBSCRIBE or UNSUBSCRIBE names, and whose it is: "client", "user" or ""."""
    name = headers.get("activemq.subscriptionName") or headers.get("durable-subscription-name")
    if name:
        return durable_name(name), "client"
    if headers.get("durable") == _TRUE or headers.get("persistent") == _TRUE:
        return durable_name(headers.get("id", "")), "user"
    return "", ""


def asked_of(
    headers: Mapping[str, str],
    id: str,
    instance: str,
    newest: int,
    now_ns: int,
    emptied: Mapping[str, int] = MappingProxyType({}),
) -> Asked:
    """The command. `newest` is the log's newest record, `emptied` says of queues that were deleted how far the log was then.
    ClientErrors name the header or what it says."""
    check_subscription_id(id)
    destination = subscribe_to(headers.get("destination", ""), is_multicast(headers))
    ack = headers.get("ack", "auto")
    if ack not in ACK_MODES:
        raise ClientError(
            "bad_ack", f"There is no ack mode {ack[:40]!r}.", f"Use {', '.join(ACK_MODES)}.", header="ack"
        )
    for header, what in _REFUSED.items():
        if headers.get(header) == _TRUE:
            raise not_supported(what, f"Leave the header {header} out.", header=header)
    durable, owner = durable_of(headers)
    if destination.kind is Kind.QUEUE:
        durable, owner = durable_name(destination.topic), "queue"
    fields: dict[str, Any] = {"id": id, "topic": destination.topic}
    if chosen := join_filter_text(headers.get("selector", ""), headers.get("x-sluice-filter", "")):
        fields["filter"] = chosen
    if ack != "auto":
        fields |= {"ack": ack} | _prefetch(headers)
    elif durable:
        fields["ack"] = "none"
    if durable:
        fields["durable"] = durable
    if owner == "queue":
        fields["shared"] = True
        fields |= _number(headers, "x-sluice-max-deliveries", "max_deliveries")
    bookmark = _bookmark(headers, instance, newest, now_ns)
    if bookmark is None and owner == "queue":
        # What came before anybody asked for it waits in the queue, but what was deleted with it.
        bookmark = _after(instance, emptied.get(durable, 0))
    if bookmark is not None:
        fields["bookmark"] = bookmark
    fields |= {field: headers[header] for header, field in _OURS.items() if headers.get(header)}
    return Asked(_checked(fields), destination, ack, owner)


def _checked(fields: dict[str, Any]) -> commands.Subscribe:
    found = commands.parse_command(msgspec.json.encode({"c": "subscribe"} | fields))
    assert isinstance(found, commands.Subscribe)
    return found


def _prefetch(headers: Mapping[str, str]) -> dict[str, int]:
    header = "prefetch-count" if headers.get("prefetch-count") else "activemq.prefetchSize"
    asked = _number(headers, header, "prefetch")
    return {field: min(number, MAX_PREFETCH) for field, number in asked.items() if number}


def _number(headers: Mapping[str, str], header: str, field: str) -> dict[str, int]:
    """A header that is a number, as a field of the command; {} without it."""
    text = headers.get(header)
    if not text:
        return {}
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ClientError(
            "bad_command", f"{header} {text[:40]!r} isn't a number.", "Give a whole number.", header=header
        )
    return {field: int(text)}


def _bookmark(headers: Mapping[str, str], instance: str, newest: int, now_ns: int) -> str | None:
    given = headers.get("x-sluice-bookmark")
    if given is not None:
        return given
    offset = headers.get("x-stream-offset")
    if offset is not None:
        return _of_offset(offset, instance, newest)
    if headers.get("activemq.retroactive") == _TRUE:
        return format_moment(now_ns - RETROACTIVE_MS * 1_000_000)
    return None


def _of_offset(text: str, instance: str, newest: int) -> str:
    """RabbitMQ's words for where a stream begins."""
    word, _, value = text.partition("=")
    if word == "first":
        return EPOCH_TEXT
    if word == "next":
        return NOW_TEXT
    if word == "last":
        return _after(instance, newest - 1)
    if value.isascii() and value.isdecimal() and len(value) < 19:
        if word == "offset":
            return _after(instance, int(value) - 1)
        if word == "timestamp" and len(value) < 11:
            return format_moment(int(value) * 1_000_000_000)
    raise ClientError(
        "bad_bookmark",
        f"x-stream-offset {text[:80]!r} isn't a place in the log.",
        "Use first, last, next, offset=N or timestamp=T.",
        header="x-stream-offset",
    )


def _after(instance: str, sequence: int) -> str:
    return str(Bookmark(instance, sequence)) if sequence > 0 else EPOCH_TEXT
