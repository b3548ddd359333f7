"""Messages of applications: encoding of published bodies, and received messages as tuples."""

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
"""Bytes of bodies and rows at which gathered messages form a full batch."""
MAX_BODY = MAX_BATCH_BYTES - 64 * 1024
"""Maximum bytes of one message's body."""
MAX_SPLIT_BYTES = 512 * 1024
"""Maximum bytes of one batch of publish_many(); fits the message limit of a WebSocket transport."""
Body = bytes | str | bytearray | memoryview | dict[str, Any] | list[Any] | int | float | bool | None


def encode_body(body: Body) -> bytes:
    """Return the body as bytes: bytes unchanged, str as UTF-8, anything else as JSON."""
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    return orjson.dumps(body)


def split_into_batches(bodies: Sequence[bytes]) -> list[Sequence[bytes]]:
    """Split bodies into lists that each fit a batch.

    Raises:
        ClientError: `frame_too_large` for a body over MAX_BODY.
    """
    if len(bodies) <= MAX_RECORDS and sum(map(len, bodies)) + ROW_SIZE * len(bodies) <= MAX_SPLIT_BYTES:
        return [bodies] if bodies else []
    batches: list[Sequence[bytes]] = []
    start, size = 0, 0
    for number, body in enumerate(bodies):
        if len(body) > MAX_BODY:
            raise message_too_large_error(len(body))
        size += len(body) + ROW_SIZE
        if number > start and (size > MAX_SPLIT_BYTES or number - start >= MAX_RECORDS):
            batches.append(bodies[start:number])
            start, size = number, len(body) + ROW_SIZE
    batches.append(bodies[start:])
    return batches


def message_too_large_error(length: int) -> ClientError:
    """Return the error for a body of `length` bytes over the limit."""
    return ClientError(
        "frame_too_large",
        f"A message of {length} bytes is over the limit of {MAX_BODY}.",
        "Publish smaller messages.",
        length=length,
        limit=MAX_BODY,
    )


class ReceivedBatch(NamedTuple):
    """Batch that a subscription received.

    `instance` delivered it. `number` is the number of its first message for acknowledgements, or 0.
    """

    batch: Batch
    instance: str
    number: int


class Message(NamedTuple):
    """Received record. `body` is the published bytes, unchanged.

    Attributes:
        topic: Topic under which it was published.
        body: Published bytes.
        headers: Encoded record headers; b"" without any.
        sequence: Number in the log of `instance`; 0 if its topic is not journaled.
        publisher_sequence: Number that its publisher assigned.
        instance: Instance that delivered it.
        timestamp: Time at which the broker accepted it, in ns UTC. Only with the subscription option
            `timestamp`.
        number: Number among the subscription's messages, for acknowledgements; 0 for subscriptions without.
        mark: "conflated": the broker omitted older messages of the same key because this client was slow.
            "conflation_over": the first message after those; from it on every message is delivered. Else "".
        origin: Instance that accepted it, if a link forwarded it from there. Then `publisher_sequence` is its
            sequence there. Else "".
    """

    topic: str
    body: bytes
    headers: bytes
    sequence: int
    publisher_sequence: int
    instance: str
    timestamp: int | None = None
    number: int = 0
    mark: str = ""
    origin: str = ""

    @property
    def bookmark(self) -> str | None:
        """Bookmark of this message in the log of the instance that accepted it.

        None if its topic is not journaled.
        """
        if self.origin and self.sequence:
            return f"{self.origin}|{self.publisher_sequence}|"
        return f"{self.instance}|{self.sequence}|" if self.sequence else None

    @property
    def data(self) -> Any:
        """Body parsed as JSON. Raises orjson.JSONDecodeError for other bodies."""
        return orjson.loads(self.body)

    @property
    def text(self) -> str:
        """Body decoded as UTF-8. Raises UnicodeDecodeError for other bodies."""
        return self.body.decode()


# A C function: `Message._make` would cost a Python call per message.
_make_message = cast("Callable[[tuple[Any, ...]], Message]", partial(tuple.__new__, Message))


def batch_messages(
    batch: Batch, instance: str, first: int = 0, *, timestamp: bool = False
) -> Iterator[Message]:
    """Iterate over the messages of a batch, at the cost of one tuple each.

    Args:
        batch: Record batch.
        instance: Instance that delivered it.
        first: Number of its first message for acknowledgements. 0: without numbers.
        timestamp: Whether messages carry the time at which the broker accepted them.
    """
    topic = batch.single_topic
    names = repeat(topic) if topic is not None else batch.names()
    headers = batch.headers() if batch.header.headers_length else repeat(b"")
    return map(
        _make_message,
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
