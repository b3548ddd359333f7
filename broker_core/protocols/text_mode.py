"""Text mode: commands, replies and messages as JSON text, for a person with `wscat` or a page in a browser.

A WebSocket whose logon was a text is in text mode: commands and replies are JSON texts without frame headers,
and each delivered record is a text of its own. That costs an object per record, so programs use frames.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import msgspec
import orjson

from broker_core.batch import Batch
from broker_core.bookmark import format_moment
from broker_core.names import publisher_origin

_encode_json = msgspec.json.Encoder().encode


def encode_text(message: dict[str, Any] | msgspec.Struct) -> str:
    """Return a command or reply as text."""
    return _encode_json(message).decode()


def encode_messages(batch: Batch, subscription: str, instance: str, *, timestamp: bool = False) -> list[str]:
    """Return one text for each record of a delivered batch.

    A JSON body is in `data` as it is, other UTF-8 as a string, and any other body as base64 with
    `"encoding":"base64"`. Records that no journal keeps have no bookmark. `timestamp` adds the time at which
    the broker accepted the record, in the form of a bookmark. A delivery with a conflation mark has it in
    `mark`.
    """
    origin = publisher_origin(batch.publisher_name)
    accepted = format_moment(batch.accepted_at) if timestamp else ""
    texts: list[str] = []
    for record in batch.records():
        message: dict[str, Any] = {"c": "message", "sub": subscription, "topic": record.topic}
        if record.sequence:
            message["bookmark"] = (
                f"{origin}|{record.publisher_sequence}|" if origin else f"{instance}|{record.sequence}|"
            )
        if timestamp:
            message["timestamp"] = accepted
        if batch.conflation_mark:
            message["mark"] = batch.conflation_mark
        data, encoding = _encode_body(record.body)
        message["data"] = data
        if encoding:
            message["encoding"] = encoding
        texts.append(orjson.dumps(message).decode())
    return texts


def _encode_body(body: bytes) -> tuple[Any, str | None]:
    """Return a body as a JSON value, and its encoding if it is base64."""
    try:
        orjson.loads(body)
        return orjson.Fragment(body), None
    except orjson.JSONDecodeError:
        pass
    try:
        return body.decode(), None
    except UnicodeDecodeError:
        return b64encode(body).decode(), "base64"
