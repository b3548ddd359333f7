"""Message types: what filters see of a body. Sluice stores and delivers bodies as they are, whatever their type.

    json      a JSON document; the default
    fix       tag=value pairs, each ended by the separator (SOH, 0x01, by default): /35 = 'D'
    nvfix     the same with names for tags: /Symbol = 'IBM'
    msgpack   a MessagePack document, read like the JSON that it stands for
    binary    anything; filters see nothing, so no record passes one

The values of fix and nvfix are texts, which filters compare with numbers as numbers (docs/filters.md). A tag that
comes more than once is an array of its values. A data field whose value holds the separator isn't understood.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import msgspec
import orjson

SOH: Final = "\x01"

Decoder = Callable[[bytes], Any]
"""From a body to what a filter runs over; UNREADABLE when the body isn't of the type. Never raises."""
DecoderOf = Callable[[str], Decoder | None]
"""A topic's decoder; None is JSON, which has a faster way for whole batches."""


class _UndecodableBody:
    """Stands in the place of a message that can't be decoded."""

    __slots__ = ()


UNREADABLE: Final = _UndecodableBody()


def decode_json(body: bytes) -> Any:
    """A JSON document."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return UNREADABLE


@lru_cache(maxsize=256)
def decoder_for(message_type: str, separator: str = SOH) -> Decoder | None:
    """The decoder of one of MESSAGE_TYPES; `separator` is of fix and nvfix alone. None is JSON's."""
    if message_type in ("fix", "nvfix"):
        return _pairs(separator)
    return {"json": None, "msgpack": _decode_msgpack, "binary": _decode_binary}[message_type]


def _pairs(separator: str) -> Decoder:
    def decode(body: bytes) -> Any:
        try:
            text = body.decode()
        except UnicodeDecodeError:
            text = body.decode("latin-1")  # what FIX says of bytes that are not ASCII: each stands for itself
        message: dict[str, Any] = {}
        for pair in text.split(separator):
            name, equals, value = pair.partition("=")
            if not equals or not name:
                if pair:
                    return UNREADABLE
                continue
            before = message.get(name)
            if before is None:
                message[name] = value
            elif type(before) is list:
                before.append(value)
            else:
                message[name] = [before, value]
        return message or UNREADABLE

    return decode


def _decode_msgpack(body: bytes) -> Any:
    try:
        # By way of JSON, so that filters meet what they know: bytes become base64, times text, keys text.
        return orjson.loads(_to_json(_from_msgpack(body)))
    except (ValueError, TypeError, RecursionError):
        return UNREADABLE


_from_msgpack = msgspec.msgpack.Decoder().decode
_to_json = msgspec.json.Encoder().encode


def _decode_binary(body: bytes) -> Any:
    return UNREADABLE
