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

import json
import math
import re
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


_INCOMPARABLE: Final = {"": object()}
"""Placeholder of a value that can't be compared: an object, which has no value to compare.

It can't be encoded, so it is no key either.
"""
MAX_DEPTH: Final = 512
"""Depth from which arrays and objects of a body that is nested deeper than 1,024 levels can't be compared."""
MAX_DEEP_BODY: Final = 256 * 1024
"""Maximum bytes of a body that is nested deeper than 1,024 levels. Finding the levels takes long."""
_LARGEST_DIGITS: Final = 308
_PARTIAL_REASONS: Final = ("infinity", "surrogate in string", "depth limit")
"""Parts of orjson's errors about valid JSON that it can't represent."""
_BRACKETS: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]+|[\]}]+', re.DOTALL)


def decode_json(body: bytes) -> Any:
    """Decode a JSON document. Returns UNREADABLE if it is invalid.

    A number beyond floating point becomes an object that can't be compared. Half a surrogate pair remains.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        reason = str(error)
        return _decode_exactly(body) if any(one in reason for one in _PARTIAL_REASONS) else UNREADABLE


def _decode_exactly(body: bytes) -> Any:
    """Decode valid JSON that orjson can't represent."""
    try:
        return _decode_text(body.decode())
    except RecursionError:
        if len(body) > MAX_DEEP_BODY:
            return UNREADABLE
    except ValueError:
        return UNREADABLE
    try:
        return _decode_text(_prune(body.decode()))
    except (ValueError, RecursionError):
        return UNREADABLE


def _decode_text(text: str) -> Any:
    return json.loads(
        text,
        parse_int=_parse_integer,
        parse_float=_parse_float,
        parse_constant=_refuse_constant,
    )


def _parse_integer(text: str) -> Any:
    """Return an integer as orjson does: of 64 bits, or floating point."""
    if len(text) > _LARGEST_DIGITS:
        return _parse_float(text)
    number = int(text)
    return number if -(2**63) <= number < 2**64 else _parse_float(text)


def _parse_float(text: str) -> Any:
    number = float(text)
    return number if math.isfinite(number) else _INCOMPARABLE


def _refuse_constant(name: str) -> Any:
    """Refuse NaN and Infinity, which JSON does not have.

    Raises:
        ValueError: always.
    """
    raise ValueError(name)


def _prune(text: str) -> str:
    """Return JSON with what is nested deeper than MAX_DEPTH replaced by a number that can't be compared."""
    kept: list[str] = []
    depth = at = 0
    for found in _BRACKETS.finditer(text):
        run = found.group()
        if run[0] == '"':
            continue
        if run[0] in "[{":
            if depth <= MAX_DEPTH < depth + len(run):
                start = found.start() + MAX_DEPTH - depth
                kept += text[at:start], "1e999"
            depth += len(run)
            continue
        if depth - len(run) <= MAX_DEPTH < depth:
            at = found.start() + depth - MAX_DEPTH
        depth -= len(run)
    return "".join([*kept, text[at:]])


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
