"""Messages that came whole and in one frame, cut from what was read in one step each.

Nearly everything that a program sends is such a frame. Autobahn takes each through a dozen calls, four copies and a Deferred, which was
more than parsing and storing the batch in it. So those that RFC 6455 (5.2) leaves no question about are cut here; whatever else comes,
text, control frames, parts of messages, what is too large or against the rules, is left to Autobahn, which knows what to say of it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from websockets.utils import apply_mask

BINARY_AND_LAST: Final = 0x82
MASKED: Final = 0x80
MASK_BYTES: Final = 4


class WholeMessage(NamedTuple):
    """A message without its mask, and where the next begins."""

    message: bytes
    end: int


class IncompleteMessage(NamedTuple):
    """Such a message begins, and isn't there as a whole."""

    end: int


def parse_whole_message(data: bytes, at: int, limit: int) -> WholeMessage | IncompleteMessage | None:
    """The message that begins at `at`, of `limit` bytes at most; None when it isn't one of a single masked binary frame."""
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
    return WholeMessage(apply_mask(memoryview(data)[begin:end], data[body:begin]), end)
