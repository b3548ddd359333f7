"""Fast path for WebSocket messages that arrive complete in one masked binary frame.

Nearly all messages of programs are such frames. Autobahn handles each with a dozen calls, four copies and a
Deferred, which cost more than parsing and storing the batch. This module parses the frames that are
unambiguous by RFC 6455 (5.2). Autobahn gets all others, with its error handling: text, control frames,
fragments, frames that are too large or invalid.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from websockets.utils import apply_mask

BINARY_AND_LAST: Final = 0x82
"""First byte of a frame that is binary and the last of its message (FIN bit and opcode 2)."""
MASKED: Final = 0x80
"""Bit of the second byte: the payload is masked."""
MASK_BYTES: Final = 4
"""Bytes of the mask before the payload."""


class CompleteMessage(NamedTuple):
    """Unmasked message, and the index in the buffer at which the next frame begins."""

    message: bytes
    end: int


class IncompleteMessage(NamedTuple):
    """Message whose frame header has arrived, but not all of its payload.

    `end` is the index at which it will end.
    """

    end: int


def parse_complete_message(data: bytes, at: int, limit: int) -> CompleteMessage | IncompleteMessage | None:
    """Return the message whose frame begins at index `at` of `data`.

    None when the fast path does not apply: another kind of frame, an incomplete header, or more than
    `limit` bytes.
    """
    if len(data) - at < 2 or data[at] != BINARY_AND_LAST or not data[at + 1] & MASKED:
        return None
    length, body = data[at + 1] & ~MASKED, at + 2
    if length >= 126:
        wide = 2 if length == 126 else 8
        least, length, body = (
            126 if wide == 2 else 65_536,
            int.from_bytes(data[body : body + wide]),
            body + wide,
        )
        if len(data) < body or length < least:
            return None
    begin, end = body + MASK_BYTES, body + MASK_BYTES + length
    if length > limit:
        return None
    if len(data) < end:
        return IncompleteMessage(end)
    return CompleteMessage(apply_mask(memoryview(data)[begin:end], data[body:begin]), end)
