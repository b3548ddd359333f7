"""Message types: decoders that turn bodies into values for filters.

Sluice stores and delivers bodies unchanged, whatever their type.

    json      a JSON document; the default
    fix       tag=value pairs, each ended by the separator (default SOH, 0x01): /35 = 'D'
    nvfix     the same with names instead of tags: /Symbol = 'IBM'
    msgpack   a MessagePack document, read like the equivalent JSON
    binary    any bytes; filters cannot read them, so no record matches

Values of fix and nvfix are texts, which filters compare with numbers as numbers (docs/filters.md). A tag that
occurs more than once is an array of its values. A data field whose value contains the separator is not
supported.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import msgspec
import orjson

SOH: Final = "\x01"

Decoder = Callable[[bytes], Any]
"""Decodes a body for filters, or returns UNREADABLE if it is not of the type. Never raises."""
DecoderOf = Callable[[str], Decoder | None]
"""Returns the decoder of a topic. None means JSON, which has a faster path for whole batches."""


class _UndecodableBody:
    """Type of UNREADABLE, the placeholder of a message that cannot be decoded."""

    __slots__ = ()


UNREADABLE: Final = _UndecodableBody()


def decode_json(body: bytes) -> Any:
    """Decode a JSON document. Returns UNREADABLE if it is invalid."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return UNREADABLE


@lru_cache(maxsize=256)
def decoder_for(message_type: str, separator: str = SOH) -> Decoder | None:
    """Return the decoder of a message type.

    Args:
        message_type: One of MESSAGE_TYPES.
        separator: Character between the fields of fix and nvfix.
    """
    if message_type in ("fix", "nvfix"):
        return _make_pairs_decoder(separator)
    return {"json": None, "msgpack": _decode_msgpack, "binary": _decode_binary}[message_type]


def _make_pairs_decoder(separator: str) -> Decoder:
    def decode(body: bytes) -> Any:
        try:
            text = body.decode()
        except UnicodeDecodeError:
            # As FIX defines for non-ASCII bytes: each byte represents itself.
            text = body.decode("latin-1")
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
        # Converted by way of JSON, so that filters see JSON types: bytes become base64, times and keys become
        # text.
        return orjson.loads(_to_json(_from_msgpack(body)))
    except (ValueError, TypeError, RecursionError):
        return UNREADABLE


_from_msgpack = msgspec.msgpack.Decoder().decode
_to_json = msgspec.json.Encoder().encode


def _decode_binary(body: bytes) -> Any:
    return UNREADABLE
