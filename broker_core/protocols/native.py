"""Frames of the native protocol: eight bytes of header, then a JSON command or a record batch.

    0  payload length u32 | 4 kind u8 | 5 flags u8 (zero) | 6 stream u16      little-endian, then the payload

On TCP, frames are back to back. A WebSocket binary message has one or more whole frames. A WebSocket text
message is one JSON command without a frame header (see `text_mode`). `docs/protocol.md` is the specification.

A batch has its own checksum. A command's checksum is in the header's stream field, which a command doesn't
need otherwise. Without it, a flipped bit in an acknowledgement's number would be believed. Zero means that
there is no checksum, as from a client that makes none.

A reader checks a frame's header before it accepts any of its payload. So no peer can make it buffer more than
the limit, and its memory grows only as bytes arrive. After an error the stream can't be trusted, and the
reader accepts nothing more. Whole frames before the bad one are still returned.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import msgspec

from broker_core.batch import MAX_BATCH_BYTES
from broker_core.checksum import crc16
from broker_core.errors import ClientError
from broker_core.protocols.liveness import ReadProgress

PROTOCOL_VERSION = 1
FRAME_HEADER = struct.Struct("<IBBH")
FRAME_HEADER_SIZE = FRAME_HEADER.size

COMMAND, PUBLISH, DELIVER = 1, 2, 3
"""Frame kinds."""
ALL_KINDS = frozenset({COMMAND, PUBLISH, DELIVER})
FROM_CLIENT = frozenset({COMMAND, PUBLISH})
FROM_BROKER = frozenset({COMMAND, DELIVER})

MAX_FRAME = MAX_BATCH_BYTES
"""Maximum payload bytes of one frame."""
BEFORE_LOGON = 64 * 1024
"""Maximum payload bytes of a frame before the logon."""
MAX_COMMAND = 1024 * 1024
"""Maximum bytes of one JSON command."""
MAX_FRAMES = 16_384
"""Maximum number of frames in one WebSocket message: splitting them takes the loop some 15 ms."""
FIRST_BUFFER_BYTES = 4 * 1024
"""Initial bytes of a reader's buffer: small, so that a thousand idle connections cost little.

It grows while it fills.
"""
USUAL_BUFFER_BYTES = 256 * 1024
"""Size of a busy reader's buffer, and maximum bytes of one read."""

_encode_json = msgspec.json.Encoder().encode
_pack = FRAME_HEADER.pack
_unpack_from = FRAME_HEADER.unpack_from


class NativeFrame(NamedTuple):
    """Whole frame. The payload is the frame's own copy; a broker may stamp a batch in it."""

    kind: int
    flags: int
    stream: int
    payload: bytearray


def encode_frame_header(kind: int, stream: int, length: int) -> bytes:
    """Return the eight header bytes before a payload of `length` bytes."""
    return _pack(length, kind, 0, stream)


def encode_command(message: dict[str, Any] | msgspec.Struct) -> bytes:
    """Return a whole COMMAND frame of a dict, or of a struct of `commands` or `replies`."""
    payload = _encode_json(message)
    return _pack(len(payload), COMMAND, 0, _checksum(payload)) + payload


def _checksum(payload: bytes | memoryview) -> int:
    """Return a command's checksum, never zero, which means that there is none."""
    return crc16(payload) or 0xFFFF


def _bad_frame(sentence: str, position: int, **details: Any) -> ClientError:
    return ClientError(
        "bad_frame",
        f"{sentence} (at byte {position} of the stream).",
        "Send frames as docs/protocol.md has them: length u32, kind u8, flags u8, stream u16, little-endian.",
        position=position,
        **details,
    )


class NativeFrameReader:
    """Splits a byte stream into frames, for asyncio's BufferedProtocol.

    `kinds` are the frame kinds that this side accepts. `max_frame` may be changed at any time, as after the
    logon.

    `error` is set once the stream is broken. The call that meets the bad frame raises the error. If good
    frames came before it, that call returns them and only sets `error`, and the next call raises.
    """

    __slots__ = ("_buffer", "_end", "_kinds", "_position", "_view", "error", "max_frame")

    def __init__(self, kinds: frozenset[int] = ALL_KINDS, max_frame: int = MAX_FRAME) -> None:
        self.max_frame = max_frame
        self.error: ClientError | None = None
        self._kinds = kinds
        self._buffer = bytearray(FIRST_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._end = 0
        self._position = 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes of memory beyond the initial buffer."""
        return len(self._buffer) - FIRST_BUFFER_BYTES

    @property
    def progress(self) -> ReadProgress:
        """Bytes read so far, and those of an incomplete frame."""
        return ReadProgress(self._position + self._end, self._end, self._position)

    def release(self) -> None:
        """Free the buffer now, because nothing more will come.

        Other objects may still refer to this reader.
        """
        self._end = 0
        self._grow(FIRST_BUFFER_BYTES)

    def get_buffer(self, hint: int = -1) -> memoryview:
        """Return the memory for the next bytes; never empty."""
        if self._end == len(self._buffer):
            self._grow(self._end * 2)
        return self._view[self._end : self._end + USUAL_BUFFER_BYTES]  # bounds the frames split per call

    def buffer_updated(self, received: int) -> list[NativeFrame]:
        """Return the frames that are complete now that `received` more bytes are in the buffer.

        Raises:
            ClientError: bad_frame or frame_too_large, when no good frame came before.
        """
        self._raise_if_failed()
        self._end += received
        size = len(self._buffer)
        full = self._end == size
        frames, used, self.error = _split_frames(
            self._view[: self._end], self._kinds, self._position, self.max_frame
        )
        self._position += used
        if used:
            unparsed = self._end - used
            if unparsed:
                self._buffer[:unparsed] = self._view[used : self._end]
            self._end = unparsed
        if full and size < USUAL_BUFFER_BYTES:
            self._grow(size * 4)
        elif size > USUAL_BUFFER_BYTES and self._end <= USUAL_BUFFER_BYTES // 2:
            self._grow(USUAL_BUFFER_BYTES)
        if not frames:
            self._raise_if_failed()
        return frames

    def _raise_if_failed(self) -> None:
        if self.error is not None:
            raise self.error

    def _grow(self, size: int) -> None:
        # A new buffer, never a resize: the loop may still hold a view of the old one.
        fresh = bytearray(size)
        fresh[: self._end] = self._view[: self._end]
        self._buffer = fresh
        self._view = memoryview(fresh)


def parse_message(data: bytes, kinds: frozenset[int] = ALL_KINDS) -> list[NativeFrame]:
    """Return the frames of one WebSocket binary message, which must all be complete.

    Raises:
        ClientError: bad_frame or frame_too_large. No frame is returned then.
    """
    frames, used, error = _split_frames(memoryview(data), kinds, 0, MAX_FRAME, MAX_FRAMES)
    if error is not None:
        raise error
    if used != len(data) and len(frames) == MAX_FRAMES:
        raise _bad_frame(f"A WebSocket message has more than {MAX_FRAMES} frames", used)
    if used != len(data) or not frames:
        raise _bad_frame("A WebSocket message ends in the middle of a frame", used)
    return frames


def _split_frames(
    view: memoryview,
    kinds: frozenset[int],
    position: int,
    max_frame: int,
    max_frames: int = USUAL_BUFFER_BYTES,
) -> tuple[list[NativeFrame], int, ClientError | None]:
    """Return the whole frames (at most `max_frames`), their bytes, and the error of the frame behind them.

    `position` is the stream position of the first byte.
    """
    frames: list[NativeFrame] = []
    at, end = 0, len(view)
    while end - at >= FRAME_HEADER_SIZE and len(frames) < max_frames:
        length, kind, flags, stream = _unpack_from(view, at)
        if kind not in kinds or flags or length > max_frame or (kind == COMMAND and length > MAX_COMMAND):
            return frames, at, _header_error(length, kind, flags, kinds, position + at, max_frame)
        stop = at + FRAME_HEADER_SIZE + length
        if stop > end:
            break
        payload = view[at + FRAME_HEADER_SIZE : stop]
        if kind == COMMAND and stream and stream != _checksum(payload):
            return frames, at, _bad_frame("A command was damaged on its way", position + at)
        frames.append(NativeFrame(kind, flags, stream, bytearray(payload)))
        at = stop
    return frames, at, None


def _header_error(
    length: int, kind: int, flags: int, kinds: frozenset[int], position: int, max_frame: int
) -> ClientError:
    """Return the error for an unacceptable frame header."""
    if kind not in kinds:
        return _bad_frame(f"Frame kind {kind} isn't one this side takes", position, kind=kind)
    if flags:
        return _bad_frame(f"Frame flags {flags:#x} aren't known", position, flags=flags)
    limit = min(max_frame, MAX_COMMAND) if kind == COMMAND else max_frame
    return ClientError(
        "frame_too_large",
        f"A frame of {length} bytes is over the limit of {limit} (at byte {position}).",
        "Send smaller batches; the logon acknowledgement says the limit in max_frame.",
        position=position,
        length=length,
        limit=limit,
    )
