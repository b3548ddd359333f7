"""Checks of client names, topics and subscription ids. Results are cached.

A name that passed once costs only a dictionary look-up afterwards, so topics may be checked for every batch.
"""

from __future__ import annotations

from functools import lru_cache

from broker_core.errors import ClientError
from broker_core.names import MAX_NAME, RESERVED_PREFIX, is_name

MAX_TOPIC_BYTES = 255
MAX_SUBSCRIPTION_ID = 128


def check_client_name(name: str) -> str:
    """Return the name if a client may have it.

    Raises:
        ClientError: bad_client_name.
    """
    if not is_name(name):
        raise ClientError(
            "bad_client_name",
            f"{name[:80]!r} can't be a client's name.",
            f"Use 1 to {MAX_NAME} of the letters A-Z a-z 0-9 _ . -, not dots alone.",
        )
    return name


@lru_cache(maxsize=65_536)
def check_topic(topic: str, *, reserved: bool = False, use: str = "published to") -> str:
    """Return the topic if messages may be published to it.

    Topics that start with `$` are the broker's own; the broker checks those with `reserved=True`. `use` is
    what the client asked for, in the error.

    Raises:
        ClientError: bad_topic.
    """
    problem = _topic_problem(topic, reserved)
    if problem:
        raise ClientError(
            "bad_topic",
            f"{topic[:80]!r} can't be {use}: {problem}.",
            f"A topic has 1 to {MAX_TOPIC_BYTES} bytes of UTF-8, no spaces, control characters, * or >, "
            "and levels divided by single dots.",
            topic=topic[:MAX_TOPIC_BYTES],
        )
    return topic


def _topic_problem(topic: str, reserved: bool) -> str:
    """Return why a topic is invalid, as a clause; "" if it is valid."""
    if not topic:
        return "it is empty"
    try:
        length = len(topic.encode())
    except UnicodeEncodeError:
        return "it isn't valid UTF-8"
    if length > MAX_TOPIC_BYTES:
        return f"it has {length} bytes"
    for column, letter in enumerate(topic):
        if letter.isspace() or not letter.isprintable():
            return f"column {column + 1} is a space or a control character"
    if topic[0] == "~":
        return "~ starts a pattern"
    if topic[0] == RESERVED_PREFIX and not reserved:
        return "names that start with $ are the broker's own"
    levels = topic.split(".")
    if "" in levels:
        return "it has an empty level"
    if "*" in topic or ">" in topic:
        # In a pattern they match whole levels, so no pattern could name a topic such as a*b.
        return "* and > are for patterns"
    return ""


@lru_cache(maxsize=8_192)
def check_subscription_id(text: str) -> str:
    """Return the id if a subscription may have it.

    Raises:
        ClientError: bad_command.
    """
    if not 1 <= len(text) <= MAX_SUBSCRIPTION_ID or not text.isprintable():
        raise ClientError(
            "bad_command",
            "A subscription's id can't be that.",
            f"Use 1 to {MAX_SUBSCRIPTION_ID} printable characters.",
            field="id",
        )
    return text
