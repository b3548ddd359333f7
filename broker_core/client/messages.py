"""What applications publish, as bytes, and how many of them make one batch.

One received message, made only for applications that look at single messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count, repeat
from typing import Any, NamedTuple, cast

import orjson

from broker_core.batch import MAX_BATCH_BYTES, MAX_RECORDS, ROW_SIZE, Batch
from broker_core.errors import ClientError
from broker_core.names import publisher_origin

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


def split_into_batches(bodies: Sequence[bytes]) -> list[Sequence[bytes]]:
    """Bodies cut so that each part fits a batch."""
    if len(bodies) <= MAX_RECORDS and sum(map(len, bodies)) + ROW_SIZE * len(bodies) <= MANY_BYTES:
        return [bodies] if bodies else []
    parts: list[Sequence[bytes]] = []
    start, size = 0, 0
    for number, body in enumerate(bodies):
        if len(body) > MAX_BODY:
            raise message_too_large_error(len(body))
        size += len(body) + ROW_SIZE
        if number > start and (size > MANY_BYTES or number - start >= MAX_RECORDS):
            parts.append(bodies[start:number])
            start, size = number, len(body) + ROW_SIZE
    parts.append(bodies[start:])
    return parts


def message_too_large_error(length: int) -> ClientError:
    return ClientError(
        "frame_too_large",
        f"A message of {length} bytes is over the limit of {MAX_BODY}.",
        "Publish smaller messages.",
        length=length,
        limit=MAX_BODY,
    )


class ReceivedBatch(NamedTuple):
    """A batch that came for a subscription, the instance it came from, and with acknowledgements the number of its first message."""

    batch: Batch
    instance: str
    number: int


class Message(NamedTuple):
    """A record as a subscriber sees it. `body` is what was published, byte for byte."""

    topic: str
    body: bytes
    headers: bytes
    sequence: int
    publisher_sequence: int
    instance: str
    timestamp: int | None = None
    """When the broker accepted it, ns UTC; for subscriptions with the option `timestamp`."""
    number: int = 0
    """Its number among the subscription's messages, for acknowledgements; 0 for subscriptions without."""
    mark: str = ""
    """"conflated": the broker left out older messages of the same key, because this client was slow. "conflation_over": the
    first behind these; from it on everything comes again. Else ""."""

    origin: str = ""
    """The instance that accepted it, where a link brought it from there: `publisher_sequence` is its sequence there. Else ""."""

    @property
    def bookmark(self) -> str | None:
        """Where this message stands in the log of the instance that accepted it; None when its topic isn't journaled."""
        if self.origin and self.sequence:
            return f"{self.origin}|{self.publisher_sequence}|"
        return f"{self.instance}|{self.sequence}|" if self.sequence else None

    @property
    def data(self) -> Any:
        """The body as JSON."""
        return orjson.loads(self.body)

    @property
    def text(self) -> str:
        """The body as UTF-8."""
        return self.body.decode()


# No Python call, as _make has.
_make = cast("Callable[[tuple[Any, ...]], Message]", partial(tuple.__new__, Message))


def batch_messages(
    batch: Batch, instance: str, first: int = 0, *, timestamp: bool = False
) -> Iterator[Message]:
    """The messages of a batch, at the speed of one tuple each; numbered from `first` where that isn't 0."""
    topic = batch.single_topic
    names = repeat(topic) if topic is not None else batch.names()
    headers = batch.headers() if batch.header.headers_length else repeat(b"")
    return map(
        _make,
        zip(
            names,
            batch.bodies(),
            headers,
            *batch.numbers(),
            repeat(instance),
            repeat(batch.accepted_at if timestamp else None),
            count(first) if first else repeat(0),
            repeat(batch.conflation_mark),
            repeat(publisher_origin(batch.publisher_name)),
            strict=False,
        ),
    )
