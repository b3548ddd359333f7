"""Batches as MESSAGE frames.

Parts that are equal for all subscribers are made once per batch and then joined.
MESSAGE                              per subscription
subscription:0
ack:5f0c1d22e8-1-17                  per message, with acknowledgements
message-id:sluice-1|17|              shared from here on
destination:/topic/orders.eu         the publisher's own lines are the record's headers as they are
...
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from broker_core.batch import CONFLATED, Batch, Rows
from broker_core.headers import decode, encode
from broker_core.protocols.stomp.destinations import format_destination
from broker_core.protocols.stomp.frames import StompVersion, header_line

MAX_SHARED_BYTES: Final = 8 * 1024 * 1024
"""Maximum bytes of frames that are cached for the next subscribers of the same batch."""
_NEW: Final = b"\nredelivered:false\n"
_HAD: Final = b"\nredelivered:true\n"
OMITTED_HEADERS: Final = frozenset(
    (
        "receipt",
        "transaction",
        "content-length",
        "message-id",
        "subscription",
        "ack",
        "redelivered",
        "timestamp",
        "destination",
        "x-stream-offset",
        "x-sluice-bookmark",
        "x-sluice-gap",
        "x-sluice-mark",
    )
)
"""Headers of a SEND that aren't stored with the record.

They are requests to the broker, or headers of each delivery.
"""
_HEX_DIGITS: Final = frozenset("0123456789abcdef")
_SHORT: Final = 1_024
"""Maximum bytes of header lines for which the result is cached."""
DESTINATION: Final = b"destination:"
"""Begin of a record's first header if its publisher named the destination in a form of its own."""


class MessageFrames(NamedTuple):
    """MESSAGE frames: each is `prefix` and one of `parts`. The remaining ones begin at index `at`."""

    prefix: bytes
    parts: Sequence[bytes]
    at: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the remaining frames."""
        remaining = self.parts[self.at :] if self.at else self.parts
        return len(self.prefix) * len(remaining) + sum(map(len, remaining))

    def take(self, max_bytes: int) -> tuple[bytes, MessageFrames | None]:
        """Return whole frames of about `max_bytes` bytes, at least one; and the remaining ones."""
        size, stop, prefix = 0, self.at, len(self.prefix)
        while stop < len(self.parts) and (size < max_bytes or stop == self.at):
            size += prefix + len(self.parts[stop])
            stop += 1
        sliced = self.parts[self.at : stop] if self.at or stop < len(self.parts) else self.parts
        frames = self.prefix + self.prefix.join(sliced)
        return frames, self._replace(at=stop) if stop < len(self.parts) else None


class MessageTailCache:
    """Cache of the frame parts that all subscribers of a batch share. One per listener."""

    def __init__(self, instance: str) -> None:
        self._instance = instance
        self._known: OrderedDict[tuple[int, StompVersion, bool], tuple[Batch, list[bytes], int]] = (
            OrderedDict()
        )
        self._nbytes = 0

    def tails_of_batch(
        self, batch: Batch, version: StompVersion, numbered: bool = False, rows: Rows | None = None
    ) -> list[bytes]:
        """Return the shared part of each record's frame, behind the subscription's own headers.

        Args:
            numbered: Leave out the message-id, because `build_ack_frames` sets it.
            rows: Row numbers of the records in the batch that the publisher sent; None: all of them.
        """
        key = (id(batch), version, numbered)
        found = self._known.get(key)
        if found is not None:  # the entry refers to the batch, so no other object has its id
            return found[1]
        tails = _build_tails(batch, self._instance, version, numbered, rows)
        nbytes = sum(map(len, tails))
        if nbytes <= MAX_SHARED_BYTES:
            self._known[key] = (batch, tails, nbytes)
            self._nbytes += nbytes
            while self._nbytes > MAX_SHARED_BYTES:
                self._nbytes -= self._known.popitem(last=False)[1][2]
        return tails


def _build_tails(
    batch: Batch, instance: str, version: StompVersion, numbered: bool, rows: Rows | None
) -> list[bytes]:
    """Return the shared part of each record's frame."""
    first, accepted_at = batch.first_sequence, batch.accepted_at
    mark = f"x-sluice-mark:{batch.conflation_mark}\n" if batch.conflation_mark else ""
    origin = header_line("", instance, version)[1:]
    bodies, count = batch.bodies(), batch.count
    # Unjournaled records have no sequence. A conflated batch has rows of several batches.
    folded = ".conflated" if batch.flags & CONFLATED else ""
    unjournaled = f"message-id:{accepted_at}.%d{folded}\n"
    named = f"message-id:{origin}|%d|\n" if first else "" if numbered else unjournaled
    where = f"x-stream-offset:%d\nx-sluice-bookmark:{origin}|%d|\n" if first else ""
    # One format per batch has all that its records share. It has no text of publishers, which may contain
    # a %. The instance's name can't.
    form = (
        f"{named}%btimestamp:{accepted_at // 1_000_000}\nredelivered:false\n"
        f"{mark}{where}content-length:%d\n\n%b\0"
    ).encode()
    numbers: Sequence[int] = range(count)
    if first or rows is not None:
        numbers = (batch.sequences() if first or rows is None else rows).tolist()
    records = zip(numbers, _encode_headers(batch, version), bodies, strict=True)
    if first:
        return [
            form % (number, head_lines, number, number, len(body), body)
            for number, head_lines, body in records
        ]
    if numbered:
        return [form % (head_lines, len(body), body) for _, head_lines, body in records]
    return [form % (number, head_lines, len(body), body) for number, head_lines, body in records]


def _encode_headers(batch: Batch, version: StompVersion) -> list[bytes]:
    """Return the destination and the publisher's headers of each record. In most batches all are equal."""
    topic, count = batch.single_topic, batch.count
    lines = batch.headers() if batch.header.headers_length else [b""] * count
    if topic is not None and lines.count(lines[0]) == count:
        return [_encode_tail(topic, lines[0], version)] * count
    return [
        _encode_tail(topic, header_lines, version)
        for topic, header_lines in zip(batch.names(), lines, strict=True)
    ]


def _encode_tail(topic: str, lines: bytes, version: StompVersion) -> bytes:
    return _of_short(topic, lines, version) if len(lines) <= _SHORT else _of_any(topic, lines, version)


def _of_any(topic: str, lines: bytes, version: StompVersion) -> bytes:
    """Return the destination line and the headers. The publisher's own destination line has precedence."""
    publisher_lines = _checked(lines)
    destination = b"" if publisher_lines.startswith(DESTINATION) else _destination_line(topic, version)
    return destination + (
        publisher_lines
        if version is StompVersion.V12 or not publisher_lines
        else _convert_escapes(publisher_lines, version)
    )


_of_short = lru_cache(maxsize=4_096)(_of_any)


def _destination_line(topic: str, version: StompVersion) -> bytes:
    return f"{header_line('destination', format_destination(topic), version)}\n".encode()


def _checked(lines: bytes) -> bytes:
    """Return a record's headers without those that a MESSAGE must not have.

    A native publisher may set any header. A second content-length would make the subscriber read the body as
    frames.
    """
    if not lines.endswith(b"\n") or b"\0" in lines:
        return b""
    headers = decode(lines)
    destination = (
        [("destination", headers["destination"])] if lines.startswith(DESTINATION) and headers else []
    )
    return encode(
        [*destination, *(one for one in headers.items() if one[0] and one[0] not in OMITTED_HEADERS)]
    )


def _convert_escapes(lines: bytes, version: StompVersion) -> bytes:
    """Return a record's header lines for a version with fewer escapes."""
    if version is StompVersion.V11 and b"\\r" not in lines:
        return lines
    return "".join(f"{header_line(name, value, version)}\n" for name, value in decode(lines).items()).encode()


def mark_redelivered(tails: Sequence[bytes], had: Sequence[bool]) -> list[bytes]:
    """Return the frame parts, with `redelivered:true` where `had`: a client may already have received it."""
    return [tail.replace(_NEW, _HAD, 1) if before else tail for tail, before in zip(tails, had, strict=True)]


class AckId(NamedTuple):
    """Parsed id of an ACK or NACK: random id of a connection, stream, and message number."""

    connection: str
    stream: int
    number: int


def build_ack_frames(
    subscription: bytes, connection: str, stream: int, first: int, tails: Sequence[bytes], header: bytes
) -> MessageFrames:
    """Return the frames of a subscription with acknowledgements; the first message has number `first`.

    `header`: name of the header with the id that acknowledges the message.
    """
    head = b"MESSAGE\nsubscription:%b\n%b:%b-%d-" % (subscription, header, connection.encode(), stream)
    return MessageFrames(
        b"", [b"%b%d\n%b" % (head, number, tail) for number, tail in enumerate(tails, first)]
    )


def build_frames(subscription: bytes, tails: Sequence[bytes]) -> MessageFrames:
    """Return the frames of a subscription without acknowledgements."""
    return MessageFrames(b"MESSAGE\nsubscription:" + subscription + b"\n", tails)


def parse_ack_id(text: str) -> AckId | None:
    """Return the parts of an ack id; None for any other id."""
    connection, *numbers = text.split("-")
    if len(text) > 64 or len(numbers) != 2 or not _HEX_DIGITS.issuperset(connection) or not connection:
        return None
    if not all(number.isascii() and number.isdecimal() for number in numbers):
        return None
    return AckId(connection, int(numbers[0]), int(numbers[1]))
