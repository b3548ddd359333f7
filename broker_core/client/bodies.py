"""What applications publish, as bytes, and how many of them make one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from broker_core.batch import MAX_BATCH_BYTES, MAX_RECORDS, ROW_SIZE
from broker_core.errors import ClientError

BATCH_BYTES = 64 * 1024
"""Bodies that make a batch full when messages are gathered."""
MAX_BODY = MAX_BATCH_BYTES - 64 * 1024
"""Bytes of one message's body."""
MANY_BYTES = 512 * 1024
"""Bodies of one batch of publish_many(); within the message limit of a WebSocket transport."""
Body = bytes | str | bytearray | memoryview | dict[str, Any] | list[Any] | int | float | bool | None


def encode_body(body: Body) -> bytes:
    """Bytes as they are, text as UTF-8, anything else as JSON."""
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    return orjson.dumps(body)


def cut_bodies(bodies: Sequence[bytes]) -> list[Sequence[bytes]]:
    """Bodies cut so that each part fits a batch."""
    if len(bodies) <= MAX_RECORDS and sum(map(len, bodies)) + ROW_SIZE * len(bodies) <= MANY_BYTES:
        return [bodies] if bodies else []
    parts: list[Sequence[bytes]] = []
    start, size = 0, 0
    for number, body in enumerate(bodies):
        if len(body) > MAX_BODY:
            raise too_large(len(body))
        size += len(body) + ROW_SIZE
        if number > start and (size > MANY_BYTES or number - start >= MAX_RECORDS):
            parts.append(bodies[start:number])
            start, size = number, len(body) + ROW_SIZE
    parts.append(bodies[start:])
    return parts


def too_large(length: int) -> ClientError:
    return ClientError(
        "frame_too_large",
        f"A message of {length} bytes is over the limit of {MAX_BODY}.",
        "Publish smaller messages.",
        length=length,
        limit=MAX_BODY,
    )
