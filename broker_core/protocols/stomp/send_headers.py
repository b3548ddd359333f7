"""Cache of parsed SEND heads. Most heads of a publisher differ only in receipt and length.

A parsed head is cached without these two lines. Frames with a cached head are split off in one loop, into
columns. All other frames, and unusual ones, are left to `frames.StompFrameReader`, which checks limits,
escapes and errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

SHORT_HEAD: Final = 512
"""Maximum bytes of a head that is cached."""
MAX_KNOWN: Final = 2_048
"""Maximum number of cached heads per version. Beyond it, the cache is emptied."""
RECEIPT: Final = b"\nreceipt:"
LENGTH: Final = b"\ncontent-length:"
_OF_ONE: Final = frozenset({"receipt", "content-length", "transaction"})
"""Headers that a cached head must not have. The first two are stripped before, unless they occur twice."""
_DASHES: Final = b"-"


class StompHeaders(dict[str, str]):
    """Headers of a frame; of a repeated one the first counts.

    Immutable by convention: frames with equal heads share them.
    """

    __slots__ = ("travelling",)
    travelling: bytes
    """Encoded headers that are stored with the record; set by `headers.record_headers` at first use."""


@dataclass(slots=True)
class SendBatch:
    """SENDs outside transactions that came in succession, as columns."""

    headers: list[StompHeaders] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    receipts: list[str] = field(default_factory=list)
    """Receipts that they request; "" for none."""
    body_bytes: int = 0

    def __len__(self) -> int:
        return len(self.bodies)

    def add(self, headers: StompHeaders, body: bytes, receipt: str) -> None:
        self.headers.append(headers)
        self.bodies.append(body)
        self.receipts.append(receipt)
        self.body_bytes += len(body)

    def slice(self, start: int, stop: int) -> SendBatch:
        """Return the SENDs `start` to `stop` - 1."""
        bodies = self.bodies[start:stop]
        return SendBatch(self.headers[start:stop], bodies, self.receipts[start:stop], sum(map(len, bodies)))


def strip_header(head: bytes, mark: bytes) -> tuple[bytes, bytes | None]:
    """Return a head without the first line that begins with `mark`, and the line's value (None: no line)."""
    before, found, after = head.partition(mark)
    if not found:
        return head, None
    value, line_end, behind = after.partition(b"\n")
    return before + line_end + behind, value


def cache_headers(known: dict[bytes, StompHeaders], head: bytes, headers: StompHeaders) -> None:
    """Cache the parsed headers of a SEND's head that has no receipt and length."""
    if _OF_ONE.isdisjoint(headers):
        if len(known) >= MAX_KNOWN:
            known.clear()
        known[head] = headers


def read_cached_frames(
    data: bytes, known: Mapping[bytes, StompHeaders], max_body: int, into: SendBatch, max_frames: int
) -> int:
    """Split frames with known heads off the beginning of `data`, and return the offset of the next frame.

    It stops at a frame that is incomplete, has an unknown head, or is unusual.

    Args:
        most_body: maximum bytes of a body.
        into: receives the frames.
        most: maximum number of frames in `into`.
    """
    at, size, find = 0, len(data), data.find
    heads, bodies, receipts = into.headers, into.bodies, into.receipts
    while len(bodies) < max_frames:
        end = find(b"\n\n", at, at + SHORT_HEAD)
        if end < 0:
            break
        head, receipt = strip_header(data[at:end], RECEIPT)
        if receipt is None:
            receipt = b""
        elif not receipt.isalnum() and receipt.translate(None, _DASHES):
            break  # empty, escaped, or not ASCII
        head, length = strip_header(head, LENGTH)
        body_at = end + 2
        if length is None:
            end = find(b"\0", body_at)
        elif length.isdigit():
            end = body_at + int(length)
        else:
            break
        headers = known.get(head)
        if headers is None or not 0 <= end < size or data[end] or end - body_at > max_body:
            break
        heads.append(headers)
        bodies.append(data[body_at:end])
        receipts.append(receipt.decode())
        into.body_bytes += end - body_at
        at = end + 1
        if data[at : at + 1] == b"\n":
            at += 1
    return at
