"""STOMP frames, `COMMAND EOL (name:value EOL)* EOL body NUL`: parsing and encoding.

The escapes depend on the version, so the reader's version is set after CONNECT. In each version a CR before
the LF is removed, because stomp.py and Spring end lines in their own ways.

A reader buffers at most one frame within its limits. After an error the stream can't be trusted, and nothing
more is parsed. `send_headers` parses SENDs with equal heads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from broker_core.config.transports import MAX_BODY
from broker_core.errors import ClientError
from broker_core.headers import escape, unescape
from broker_core.protocols.liveness import ReadProgress
from broker_core.protocols.native import BEFORE_LOGON
from broker_core.protocols.stomp.send_headers import (
    LENGTH,
    RECEIPT,
    SHORT_HEAD,
    SendBatch,
    StompHeaders,
    cache_headers,
    read_cached_frames,
    strip_header,
)


class StompVersion(StrEnum):
    """STOMP version that the broker supports."""

    V10 = "1.0"
    V11 = "1.1"
    V12 = "1.2"


VERSIONS: Final = ",".join(StompVersion)
_ESCAPES: Final = {StompVersion.V10: "", StompVersion.V11: "nc\\", StompVersion.V12: "nrc\\"}
"""Letters behind a backslash that each version unescapes."""
FROM_CLIENT: Final = {
    word.encode(): word
    for word in (
        "CONNECT",
        "STOMP",
        "SEND",
        "SUBSCRIBE",
        "UNSUBSCRIBE",
        "ACK",
        "NACK",
        "BEGIN",
        "COMMIT",
        "ABORT",
        "DISCONNECT",
    )
}
UNESCAPED_COMMANDS: Final = frozenset({"CONNECT", "STOMP", "CONNECTED"})
"""Commands whose headers are never escaped, because the version isn't agreed on yet."""
COMMANDS_WITH_BODY: Final = frozenset({"SEND", "MESSAGE", "ERROR"})
"""Commands that may have a body."""
_LINE_ENDS: Final = b"\r\n"
_BETWEEN_FRAMES: Final = b"\r\n\0"
"""Bytes that are skipped between frames: heart-beats, and line ends and NULs that some clients add."""
_MAX_LINE_ENDS: Final = 64
"""Maximum number of bytes in the body of a frame that has none: some clients send a line end there."""
_ENDS_AT_ONCE: Final = 4_096
"""Maximum number of heart-beats that are skipped at a time."""
_LONGEST: Final = 16
"""Bytes within which the first line of every frame ends."""


_WINDOW: Final = 16 * 1024
"""Bytes that are searched at a time for SENDs with equal heads."""
_MAX_UNTRIED: Final = 63
"""Maximum number of frames parsed singly between two searches for equal heads."""
_known_heads: Final[dict[StompVersion, dict[bytes, StompHeaders]]] = {version: {} for version in StompVersion}
"""Parsed heads of SENDs outside transactions, of all clients, without their receipts and lengths."""


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """Limits of one connection's frames, in bytes and numbers."""

    connect: int = BEFORE_LOGON
    """Maximum bytes of the CONNECT frame."""
    line: int = 16 * 1024
    """Maximum bytes of one header line."""
    headers: int = 128
    """Maximum number of headers of a frame."""
    body: int = MAX_BODY
    head: int = 256 * 1024
    """Maximum bytes of command and headers together: some long lines, or many short ones."""

    @staticmethod
    def before_logon() -> FrameLimits:
        """Return the limits before the logon: also after CONNECT, a frame has at most BEFORE_LOGON bytes."""
        return FrameLimits(head=BEFORE_LOGON // 2, body=BEFORE_LOGON // 2)


class StompFrame(NamedTuple):
    """Frame of a client."""

    command: str
    headers: StompHeaders
    body: bytes
    receipt: str = ""
    """Requested receipt.

    It is separate from `headers`, because all else may be equal in a publisher's frames.
    """

    @property
    def publishes(self) -> bool:
        """Whether it is a SEND outside transactions."""
        return self.command == "SEND" and "transaction" not in self.headers

    @property
    def nbytes(self) -> int:
        """Approximate memory of the frame, bytes."""
        return FRAME_BYTES + len(self.body) + sum(map(len, self.headers.values()))


FRAME_BYTES: Final = 128
"""Approximate memory of a frame besides its body and header values, bytes."""


_Head = tuple[str, StompHeaders, str, int, int]
"""Parsed head of a frame, kept while its body arrives.

Its fields: command, headers, receipt, length of the body (-1: it ends at the first NUL), and offset of the
body from the frame's first byte.
"""


@dataclass(slots=True)
class StompFrameReader:
    """Splits a byte stream into frames.

    `version` is None before CONNECT, then the best one that the client accepts.

    `error` is set once the stream is broken. Whole frames before the bad one are still returned.
    """

    limits: FrameLimits = field(default_factory=FrameLimits)
    version: StompVersion | None = None
    error: ClientError | None = None
    receipt: str = ""
    """Receipt that the bad frame requested, if its head was readable."""
    _unparsed: bytearray = field(default_factory=bytearray)
    _at: int = 0
    """Offset of the next frame in `_unparsed`."""
    _position: int = 0
    """Bytes of the stream before `_unparsed`."""
    _head: _Head | None = None
    """Head of a frame whose body isn't complete."""
    _scanned: int = 0
    """Bytes of an incomplete frame that were already searched for the awaited end."""
    _needed: int = 0
    """Bytes that the incomplete frame has at least."""
    _untried: int = 0
    """Number of frames to parse singly before the next search for equal heads.

    `_patience`: the previous number.
    """
    _patience: int = 0

    def put(self, data: bytes | memoryview) -> None:
        """Add received bytes."""
        if self.error is None:
            self._unparsed += data

    def read_frames(self) -> StompFrame | None:
        """Return the next frame; None while it isn't complete, or after an error.

        It returns one frame at a time, because a read may have thousands.
        """
        if self.error is not None:
            return None
        frame = None
        if len(self._unparsed) - self._at >= self._needed:
            try:
                frame, self._at = self._next(self._at)
            except ClientError as error:
                self.error = error.with_traceback(None)  # its traceback's frames refer to this reader
                self._unparsed.clear()
        if frame is None:
            del self._unparsed[: self._at]
            self._position += self._at
            self._at = 0
        else:
            self.version = self.version or best_version(frame) or StompVersion.V12
        return frame

    def read_sends(
        self, first: StompFrame, max_sends: int, max_bytes: int
    ) -> tuple[SendBatch, StompFrame | None]:
        """Read a SEND outside transactions and those behind it.

        Args:
            first: the first SEND.
            max_sends: maximum number of SENDs.
            max_bytes: bytes of bodies at which no more is added.

        Returns:
            The SENDs, and the frame behind them if one was read that is no such SEND.
        """
        sends, frame = SendBatch(), first
        while frame.publishes:
            sends.add(frame.headers, frame.body, frame.receipt)
            while len(sends) < max_sends and sends.body_bytes < max_bytes:
                if not self._cut_alike(sends, max_sends):
                    break
            else:
                return sends, None
            found = self.read_frames()
            if found is None:
                return sends, None
            frame = found
        return sends, frame

    def _cut_alike(self, sends: SendBatch, max_sends: int) -> bool:
        """Read SENDs with known heads in one loop. Return whether there was one.

        After each failure more frames are parsed singly before the next attempt.
        """
        unparsed, at = self._unparsed, self._at
        if self._untried:
            self._untried -= 1
            return False
        if unparsed.startswith(b"\n", at):  # many clients send a line end behind each frame
            at += 1
        if self.version is None or not unparsed.startswith(b"SEND", at):
            return False
        window = bytes(unparsed[at : at + _WINDOW])
        used = read_cached_frames(window, _known_heads[self.version], self.limits.body, sends, max_sends)
        if not used:
            self._untried = self._patience = min(2 * self._patience + 1, _MAX_UNTRIED)
            return False
        self._at = at + used
        self._head, self._scanned, self._needed, self._patience = None, 0, 0, 0
        return True

    def feed(self, data: bytes | memoryview) -> list[StompFrame]:
        """Add received bytes, and return all frames that are complete now."""
        self.put(data)
        return list(iter(self.read_frames, None))

    @property
    def buffered_bytes(self) -> int:
        """Bytes that are buffered and not parsed, or of an incomplete frame."""
        return len(self._unparsed) - self._at

    @property
    def progress(self) -> ReadProgress:
        """Bytes read so far, and those that are not parsed, or of an incomplete frame."""
        buffered, begin = len(self._unparsed), self._position + self._at
        return ReadProgress(self._position + buffered, buffered - self._at, begin)

    def release(self, error: ClientError | None = None) -> None:
        """Free the buffer and parse nothing more, because nothing will come, or because of an error."""
        self.error = self.error or error
        self._unparsed, self._at = bytearray(), 0

    def _next(self, at: int) -> tuple[StompFrame | None, int]:
        """Return the frame at offset `at`, and the offset of the next one; None while it isn't complete."""
        unparsed = self._unparsed
        size = len(unparsed)
        head = self._head
        if head is None:
            while at < size and unparsed[at] in _BETWEEN_FRAMES:
                ends = unparsed[at : at + _ENDS_AT_ONCE]
                at += len(ends) - len(ends.lstrip(_BETWEEN_FRAMES))
            head = self._read_head(at, size)
            if head is None:
                return None, at
        command, headers, receipt, length, body_at = head
        body_at += at
        try:
            if command in COMMANDS_WITH_BODY:
                end = self._end_of_body(length, at, body_at)
            else:
                end = self._end_of_line_ends(command, body_at)
        except ClientError:
            self.receipt = receipt
            raise
        if end < 0:
            self._head = head
            return None, at
        body = bytes(unparsed[body_at:end]) if command in COMMANDS_WITH_BODY else b""
        self._head, self._scanned, self._needed = None, 0, 0
        return StompFrame(command, headers, body, receipt), end + 1

    def _read_head(self, at: int, size: int) -> _Head | None:
        """Return the head at offset `at`; None while it isn't complete."""
        unparsed, start = self._unparsed, at + self._scanned
        end = unparsed.find(b"\n\n", start)
        carriage = unparsed.find(b"\n\r\n", start, end + 1 if end >= 0 else size)
        body_at = end + 2
        if carriage >= 0:
            end, body_at = carriage, carriage + 3
        limit = self.limits.connect if self.version is None else self.limits.head
        length = (end if end >= 0 else size) - at
        if length > limit:
            raise self._too_large("frame's head", length, limit, at)
        if end >= 0:
            self._scanned = 0
            return (*self._parse_head(bytes(unparsed[at:end]), at), body_at - at)
        if length > _LONGEST and unparsed.find(b"\n", at, at + _LONGEST) < 0:
            raise self._unknown(bytes(unparsed[at : at + _LONGEST]), at)
        self._scanned = max(length - 2, 0)
        return None

    def _parse_head(self, head: bytes, at: int) -> tuple[str, StompHeaders, str, int]:
        """Parse a head, or find it in the cache.

        Return command, headers, receipt and the body's length (-1: none stated).
        """
        receipt = length = None
        if self.version is None or len(head) > SHORT_HEAD or not head.startswith(b"SEND"):
            command, headers = self._read(head, at)
        else:
            head, receipt = strip_header(head, RECEIPT)
            head, length = strip_header(head, LENGTH)
            known = _known_heads[self.version]
            if (found := known.get(head)) is not None:
                command, headers = "SEND", found
            else:
                command, headers = self._read(head, at)
                if command == "SEND":
                    cache_headers(known, head, headers)
        receipt_id = headers.get("receipt", "") if receipt is None else self._receipt(receipt, at)
        text = headers.get("content-length", "") if length is None else length.decode(errors="replace")
        return command, headers, receipt_id, self._length(text, at) if command in COMMANDS_WITH_BODY else -1

    def _receipt(self, value: bytes, at: int) -> str:
        if value.isalnum():
            return value.decode()
        assert self.version is not None
        return self._header(b"receipt:" + value, _ESCAPES[self.version], at)[1]

    def _read(self, head: bytes, at: int) -> tuple[str, StompHeaders]:
        """Parse a head that isn't cached."""
        name, *lines = head.split(b"\n")
        command = FROM_CLIENT.get(name.removesuffix(b"\r"))
        if command is None:
            raise self._unknown(name, at)
        if len(lines) > self.limits.headers:
            raise self._too_large("frame's number of headers", len(lines), self.limits.headers, at)
        escapes = None if command in UNESCAPED_COMMANDS or self.version is None else _ESCAPES[self.version]
        headers = StompHeaders()
        for line in lines:
            if len(line) > self.limits.line:
                raise self._too_large("header line", len(line), self.limits.line, at)
            key, value = self._header(line, escapes, at)
            headers.setdefault(key, value)
        return command, headers

    def _header(self, line: bytes, escapes: str | None, at: int) -> tuple[str, str]:
        """Parse one header line.

        `escapes`: "" for the version without escapes, which trims; None: no escaping.
        """
        try:
            text = line.decode()
        except UnicodeDecodeError:
            raise self._bad("a header isn't UTF-8", at) from None
        name, colon, value = text.removesuffix("\r").partition(":")
        if not colon or not name or "\0" in text:
            raise self._bad(f"{text[:40]!r} isn't a header, name:value", at)
        if escapes and "\\" in text:
            try:
                return unescape(name, escapes), unescape(value, escapes)
            except ValueError as problem:
                raise self._bad(f"{problem} isn't an escape of STOMP {self.version}", at) from None
        return (name.strip(" "), value.strip(" ")) if escapes == "" else (name, value)

    def _length(self, text: str, at: int) -> int:
        text = text.strip()
        if not text:
            return -1
        if not (text.isascii() and text.isdecimal() and len(text) < 16):
            raise self._bad(f"content-length {text[:40]!r} isn't a length", at)
        return int(text)

    def _end_of_line_ends(self, command: str, body_at: int) -> int:
        """Return the offset of the NUL behind the head of a frame without body; -1 while it hasn't arrived.

        Line ends before it are ignored, and so is the frame's content-length.

        Raises:
            ClientError: bad_frame, when it has a body.
        """
        found = self._unparsed[body_at : body_at + _MAX_LINE_ENDS + 1]
        end = body_at + len(found) - len(found.lstrip(_LINE_ENDS))
        if end - body_at > _MAX_LINE_ENDS or (end < len(self._unparsed) and self._unparsed[end]):
            raise self._bad(f"{command} has a body", body_at)
        return end if end < len(self._unparsed) else -1

    def _end_of_body(self, length: int, at: int, body_at: int) -> int:
        """Return the offset of the NUL behind the body; -1 while it hasn't arrived."""
        unparsed, limit = self._unparsed, self.limits.body
        if length < 0:
            end = unparsed.find(b"\0", max(body_at, at + self._scanned))
            length = (end if end >= 0 else len(unparsed)) - body_at
            if length > limit:
                raise self._too_large("body", length, limit, body_at)
            self._scanned = len(unparsed) - at
            return end
        if length > limit:
            raise self._too_large("body", length, limit, body_at)
        end = body_at + length
        if len(unparsed) <= end:
            self._needed = end + 1 - at
            return -1
        if unparsed[end]:
            raise self._bad(f"no NUL stands behind the {length} bytes of its content-length", end)
        return end

    def _bad(self, sentence: str, at: int) -> ClientError:
        position = self._position + at
        return ClientError(
            "bad_frame",
            f"This isn't STOMP: {sentence} (at byte {position} of the stream).",
            "Send frames as https://stomp.github.io has them.",
            position=position,
        )

    def _unknown(self, name: bytes, at: int) -> ClientError:
        return ClientError(
            "unknown_command",
            f"There is no STOMP command {name[:40].decode(errors='replace')!r}.",
            f"The commands are {', '.join(FROM_CLIENT.values())}.",
            position=self._position + at,
        )

    def _too_large(self, part_name: str, found: int, limit: int, at: int) -> ClientError:
        position = self._position + at
        return ClientError(
            "frame_too_large",
            f"A {part_name} of {found} is over the limit of {limit} (at byte {position}).",
            "Send smaller frames.",
            position=position,
            length=found,
            limit=limit,
        )


def best_version(connect: StompFrame) -> StompVersion | None:
    """Return the newest version that a CONNECT accepts; None for no supported one, or for another frame."""
    if connect.command not in ("CONNECT", "STOMP"):
        return None
    accepted = {word.strip() for word in connect.headers.get("accept-version", StompVersion.V10).split(",")}
    return next((version for version in reversed(StompVersion) if version in accepted), None)


def encode_frame(
    command: str,
    headers: Iterable[tuple[str, Any]],
    body: bytes = b"",
    version: StompVersion = StompVersion.V12,
) -> bytes:
    """Return an encoded frame, with a content-length if it has a body."""
    lines = [command]
    for name, value in headers:
        line = f"{name}:{value}" if command in UNESCAPED_COMMANDS else header_line(name, str(value), version)
        lines.append(line)
    if body:
        lines.append(f"content-length:{len(body)}")
    return "\n".join(lines).encode() + b"\n\n" + body + b"\0"


def header_line(name: str, value: str, version: StompVersion) -> str:
    """Return an encoded header without the line end."""
    if version is StompVersion.V12:
        return f"{escape(name)}:{escape(value)}"
    if version is StompVersion.V11:
        # STOMP 1.1 has no escape for a carriage return; a backslash before an r isn't one.
        return header_line(name.replace("\r", ""), value.replace("\r", ""), StompVersion.V12)
    # 1.0 has no escapes: a character that would end the line or the name can't be sent.
    return f"{_escape_control(name).replace(':', ' ')}:{_escape_control(value)}"


def _escape_control(text: str) -> str:
    return text.replace("\n", " ").replace("\r", " ").replace("\0", " ")
