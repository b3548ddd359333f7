"""Heads of SENDs, read once for all that differ in receipt, length and body alone, as most of a publisher's do.

What was read of a head is remembered without those two lines. Frames whose heads are remembered are cut off in one loop, into
columns; all else, and whatever is odd about a frame, is left to `frames.StompFrameReader`, which knows limits, escapes and errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

SHORT_HEAD: Final = 512
"""Bytes of a head up to which it is remembered."""
MAX_KNOWN: Final = 2_048
"""Heads of a version that are remembered; with more the memory starts over."""
RECEIPT: Final = b"\nreceipt:"
LENGTH: Final = b"\ncontent-length:"
_OF_ONE: Final = frozenset({"receipt", "content-length", "transaction"})
"""Headers that heads aren't remembered with: the first two because they are taken out, unless they are there twice."""
_DASHES: Final = b"-"


class StompHeaders(dict[str, str]):
    """A frame's headers; of a repeated one the first counts. Never changed: frames with the same head share them."""

    __slots__ = ("travelling",)
    travelling: bytes
    """Those that go with the record, as it has them: put here by whoever made them first."""


@dataclass(slots=True)
class SendBatch:
    """SENDs outside transactions that came one behind the other: a column of each part."""

    headers: list[StompHeaders] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    receipts: list[str] = field(default_factory=list)
    """What each asks to be answered with; "" for nothing."""
    body_bytes: int = 0

    def __len__(self) -> int:
        return len(self.bodies)

    def add(self, headers: StompHeaders, body: bytes, receipt: str) -> None:
        self.headers.append(headers)
        self.bodies.append(body)
        self.receipts.append(receipt)
        self.body_bytes += len(body)

    def split_at(self, number: int) -> SendBatch:
        """The first of them."""
        bodies = self.bodies[:number]
        return SendBatch(self.headers[:number], bodies, self.receipts[:number], sum(map(len, bodies)))


def strip_header(head: bytes, mark: bytes) -> tuple[bytes, bytes | None]:
    """A head without the first line that begins like this, and that line's value; None where there is none."""
    before, found, after = head.partition(mark)
    if not found:
        return head, None
    value, line_end, behind = after.partition(b"\n")
    return before + line_end + behind, value


def cache_headers(known: dict[bytes, StompHeaders], head: bytes, headers: StompHeaders) -> None:
    """Keep what was read of a SEND's head, `without` its receipt and length."""
    if _OF_ONE.isdisjoint(headers):
        if len(known) >= MAX_KNOWN:
            known.clear()
        known[head] = headers


def read_cached_frames(
    data: bytes, known: Mapping[bytes, StompHeaders], most_body: int, into: SendBatch, most: int
) -> int:
    """Cut frames off the beginning of `data`, as long as they are whole, their heads are `known`, and there is nothing odd about them;
    where the next one begins. `most`: so many `into` may hold."""
    at, size, find = 0, len(data), data.find
    heads, bodies, receipts = into.headers, into.bodies, into.receipts
    while len(bodies) < most:
        end = find(b"\n\n", at, at + SHORT_HEAD)
        if end < 0:
            break
        head, receipt = strip_header(data[at:end], RECEIPT)
        if receipt is None:
            receipt = b""
        elif not receipt.isalnum() and receipt.translate(None, _DASHES):
            break  # empty, escaped, or not of ASCII
        head, length = strip_header(head, LENGTH)
        body_at = end + 2
        if length is None:
            end = find(b"\0", body_at)
        elif length.isdigit():
            end = body_at + int(length)
        else:
            break
        headers = known.get(head)
        if headers is None or not 0 <= end < size or data[end] or end - body_at > most_body:
            break
        heads.append(headers)
        bodies.append(data[body_at:end])
        receipts.append(receipt.decode())
        into.body_bytes += end - body_at
        at = end + 1
        if data[at : at + 1] == b"\n":
            at += 1
    return at
