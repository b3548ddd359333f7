"""STOMP's frames: `COMMAND EOL (name:value EOL)* EOL body NUL`, read in any version and written in the one agreed on.

Which escapes there are depends on the version, so a reader is told it after CONNECT. What the versions share is read leniently: a CR
before the LF is taken off in each of them, as stomp.py and Spring end lines by their own lights.

A reader holds no more than one frame within its limits. After an error the stream can't be trusted: nothing further is read. What
publishers send is read by `heads`, as far as it is alike.
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
    """What is spoken here."""

    V10 = "1.0"
    V11 = "1.1"
    V12 = "1.2"


VERSIONS: Final = ",".join(StompVersion)
_ESCAPES: Final = {StompVersion.V10: "", StompVersion.V11: "nc\\", StompVersion.V12: "nrc\\"}
FROM_CLIENT: Final = {
    word.encode(): word
    for word in (
        "CONNECT", "STOMP", "SEND", "SUBSCRIBE", "UNSUBSCRIBE", "ACK", "NACK",
        "BEGIN", "COMMIT", "ABORT", "DISCONNECT",
    )
}  # fmt: skip
UNESCAPED: Final = frozenset({"CONNECT", "STOMP", "CONNECTED"})
"""Commands whose headers are never escaped, so that every version can be talked about."""
BODIED: Final = frozenset({"SEND", "MESSAGE", "ERROR"})
_LINE_ENDS: Final = b"\r\n"
_ENDS_AT_ONCE: Final = 4_096
"""Of heart-beats, how many are passed over in one go."""
_LONGEST: Final = 16
"""Bytes in which the first line of every frame has ended."""


_WINDOW: Final = 16 * 1024
"""Bytes in which SENDs that are alike are looked for at a time."""
_MAX_UNTRIED: Final = 63
_known_heads: Final[dict[StompVersion, dict[bytes, StompHeaders]]] = {version: {} for version in StompVersion}
"""Of SENDs outside transactions, of all clients, without their receipts and lengths."""


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """What one connection may make a reader hold, in bytes and numbers."""

    connect: int = BEFORE_LOGON
    """The CONNECT frame, before anybody is known."""
    line: int = 16 * 1024
    """One header line."""
    headers: int = 128
    """Headers of a frame."""
    body: int = MAX_BODY
    head: int = 256 * 1024
    """Command and headers together: some long lines, or many short ones."""

    @staticmethod
    def before_logon() -> FrameLimits:
        """While nobody knows who it is: after CONNECT too a frame has no more bytes than that."""
        return FrameLimits(head=BEFORE_LOGON // 2, body=BEFORE_LOGON // 2)


class StompFrame(NamedTuple):
    """One frame of a client."""

    command: str
    headers: StompHeaders
    body: bytes
    receipt: str = ""
    """What it asks to be answered with; by itself, as all else may be equal in all frames of a publisher."""

    @property
    def publishes(self) -> bool:
        """Whether it is a SEND outside transactions."""
        return self.command == "SEND" and "transaction" not in self.headers

    @property
    def nbytes(self) -> int:
        """What it takes of memory, about."""
        return FRAME_BYTES + len(self.body) + sum(map(len, self.headers.values()))


FRAME_BYTES: Final = 128


_Head = tuple[str, StompHeaders, str, int, int]
"""A frame's head, read once however long its body takes to come: command, headers, receipt, the body's length (-1 where it ends with
the first NUL), and where the body begins, counted from the frame's first byte."""


@dataclass(slots=True)
class StompFrameReader:
    """Cuts a byte stream into frames. `version` is None before CONNECT, and then the best that the client accepts.

    `error` is set once the stream is broken; what was whole before it is still handed out.
    """

    limits: FrameLimits = field(default_factory=FrameLimits)
    version: StompVersion | None = None
    error: ClientError | None = None
    receipt: str = ""
    """What the frame that broke it asked to be answered with, where its head could be read."""
    _rest: bytearray = field(default_factory=bytearray)
    _at: int = 0
    """Where in them the next frame begins."""
    _position: int = 0
    """Bytes of the stream before those that are held."""
    _head: _Head | None = None
    """Of the frame that has begun, once it is whole, and its body isn't."""
    _scanned: int = 0
    """Of the frame that has begun, so much was looked through for the end that is waited for."""
    _needed: int = 0
    """So many bytes make it whole, as far as is known."""
    _untried: int = 0
    """So many frames are cut off by themselves before it is tried again whether the next are alike; and how many the last time."""
    _patience: int = 0

    def put(self, data: bytes | memoryview) -> None:
        """These bytes have come."""
        if self.error is None:
            self._rest += data

    def read_frames(self) -> StompFrame | None:
        """The next frame; None while it isn't whole, or nothing more can be read. By itself, as a read may have thousands."""
        if self.error is not None:
            return None
        frame = None
        if len(self._rest) - self._at >= self._needed:
            try:
                frame, self._at = self._next(self._at)
            except ClientError as error:
                self.error = error.with_traceback(None)  # whose frames know this reader
                self._rest.clear()
        if frame is None:
            del self._rest[: self._at]
            self._position += self._at
            self._at = 0
        else:
            self.version = self.version or best_version(frame) or StompVersion.V12
        return frame

    def read_sends(
        self, first: StompFrame, most: int, most_bytes: int
    ) -> tuple[SendBatch, StompFrame | None]:
        """A SEND outside transactions and those that follow, until there are so many or their bodies so long; and the frame that was
        found behind them, if that is another."""
        sends, frame = SendBatch(), first
        while frame.publishes:
            sends.add(frame.headers, frame.body, frame.receipt)
            while len(sends) < most and sends.body_bytes < most_bytes:
                if not self._cut_alike(sends, most):
                    break
            else:
                return sends, None
            found = self.read_frames()
            if found is None:
                return sends, None
            frame = found
        return sends, frame

    def _cut_alike(self, sends: SendBatch, most: int) -> bool:
        """Cut off what needs no look of its own; whether there was something. Where nothing is alike it is tried ever more seldom."""
        rest, at = self._rest, self._at
        if self._untried:
            self._untried -= 1
            return False
        if rest.startswith(b"\n", at):  # many clients end their frames so
            at += 1
        if self.version is None or not rest.startswith(b"SEND", at):
            return False
        window = bytes(rest[at : at + _WINDOW])
        used = read_cached_frames(window, _known_heads[self.version], self.limits.body, sends, most)
        if not used:
            self._untried = self._patience = min(2 * self._patience + 1, _MAX_UNTRIED)
            return False
        self._at = at + used
        self._head, self._scanned, self._needed, self._patience = None, 0, 0, 0
        return True

    def feed(self, data: bytes | memoryview) -> list[StompFrame]:
        """All frames that are whole now that these bytes have come."""
        self.put(data)
        return list(iter(self.read_frames, None))

    @property
    def buffered_bytes(self) -> int:
        """Bytes of frames that weren't cut off yet, or aren't whole."""
        return len(self._rest) - self._at

    @property
    def progress(self) -> ReadProgress:
        """Bytes read so far, and those of frames that are not whole or not cut off yet."""
        held, begin = len(self._rest), self._position + self._at
        return ReadProgress(self._position + held, held - self._at, begin)

    def release(self, error: ClientError | None = None) -> None:
        """Nothing further is read, as nothing will come or because of an error: let go of what is held."""
        self.error = self.error or error
        self._rest, self._at = bytearray(), 0

    def _next(self, at: int) -> tuple[StompFrame | None, int]:
        """The frame that starts at `at`, and where the next does; None while it isn't whole."""
        rest = self._rest
        size = len(rest)
        head = self._head
        if head is None:
            while at < size and rest[at] in _LINE_ENDS:
                ends = rest[at : at + _ENDS_AT_ONCE]
                at += len(ends) - len(ends.lstrip(_LINE_ENDS))
            head = self._read_head(at, size)
            if head is None:
                return None, at
        command, headers, receipt, length, body_at = head
        body_at += at
        bodied = command in BODIED
        if not bodied and size > body_at and rest[body_at]:
            raise self._bad(f"{command} has a body", body_at)
        try:
            end = self._end_of_body(length, at, body_at)
        except ClientError:
            self.receipt = receipt
            raise
        if end < 0:
            self._head = head
            return None, at
        body = bytes(rest[body_at:end])
        if body and not bodied:
            raise self._bad(f"{command} has a body", body_at)
        self._head, self._scanned, self._needed = None, 0, 0
        return StompFrame(command, headers, body, receipt), end + 1

    def _read_head(self, at: int, size: int) -> _Head | None:
        """The head that starts at `at`; None while it isn't whole."""
        rest, start = self._rest, at + self._scanned
        end = rest.find(b"\n\n", start)
        carriage = rest.find(b"\n\r\n", start, end + 1 if end >= 0 else size)
        body_at = end + 2
        if carriage >= 0:
            end, body_at = carriage, carriage + 3
        limit = self.limits.connect if self.version is None else self.limits.head
        length = (end if end >= 0 else size) - at
        if length > limit:
            raise self._too_large("frame's head", length, limit, at)
        if end >= 0:
            self._scanned = 0
            return (*self._parse_head(bytes(rest[at:end]), at), body_at - at)
        if length > _LONGEST and rest.find(b"\n", at, at + _LONGEST) < 0:
            raise self._unknown(bytes(rest[at : at + _LONGEST]), at)
        self._scanned = max(length - 2, 0)
        return None

    def _parse_head(self, head: bytes, at: int) -> tuple[str, StompHeaders, str, int]:
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
        asked = headers.get("receipt", "") if receipt is None else self._receipt(receipt, at)
        text = headers.get("content-length", "") if length is None else length.decode(errors="replace")
        return command, headers, asked, self._length(text, at)

    def _receipt(self, value: bytes, at: int) -> str:
        if value.isalnum():
            return value.decode()
        assert self.version is not None
        return self._header(b"receipt:" + value, _ESCAPES[self.version], at)[1]

    def _read(self, head: bytes, at: int) -> tuple[str, StompHeaders]:
        name, *lines = head.split(b"\n")
        command = FROM_CLIENT.get(name.removesuffix(b"\r"))
        if command is None:
            raise self._unknown(name, at)
        if len(lines) > self.limits.headers:
            raise self._too_large("frame's number of headers", len(lines), self.limits.headers, at)
        escapes = None if command in UNESCAPED or self.version is None else _ESCAPES[self.version]
        headers = StompHeaders()
        for line in lines:
            if len(line) > self.limits.line:
                raise self._too_large("header line", len(line), self.limits.line, at)
            key, value = self._header(line, escapes, at)
            headers.setdefault(key, value)
        return command, headers

    def _header(self, line: bytes, escapes: str | None, at: int) -> tuple[str, str]:
        """One header; `escapes` "" for the version that has none and trims, None where nothing is escaped."""
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

    def _end_of_body(self, length: int, at: int, body_at: int) -> int:
        """Where the body's NUL stands; -1 while it isn't there."""
        rest, limit = self._rest, self.limits.body
        if length < 0:
            end = rest.find(b"\0", max(body_at, at + self._scanned))
            length = (end if end >= 0 else len(rest)) - body_at
            if length > limit:
                raise self._too_large("body", length, limit, body_at)
            self._scanned = len(rest) - at
            return end
        if length > limit:
            raise self._too_large("body", length, limit, body_at)
        end = body_at + length
        if len(rest) <= end:
            self._needed = end + 1 - at
            return -1
        if rest[end]:
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

    def _too_large(self, what: str, found: int, limit: int, at: int) -> ClientError:
        position = self._position + at
        return ClientError(
            "frame_too_large",
            f"A {what} of {found} is over the limit of {limit} (at byte {position}).",
            "Send smaller frames.",
            position=position,
            length=found,
            limit=limit,
        )


def best_version(connect: StompFrame) -> StompVersion | None:
    """The newest version that a CONNECT accepts; None when none of them is spoken here, or it is no CONNECT."""
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
    """A frame, with its content-length where there is a body."""
    lines = [command]
    for name, value in headers:
        line = f"{name}:{value}" if command in UNESCAPED else header_line(name, str(value), version)
        lines.append(line)
    if body:
        lines.append(f"content-length:{len(body)}")
    return "\n".join(lines).encode() + b"\n\n" + body + b"\0"


def header_line(name: str, value: str, version: StompVersion) -> str:
    """A header as it stands in a frame, without the line's end."""
    if version is StompVersion.V12:
        return f"{escape(name)}:{escape(value)}"
    if version is StompVersion.V11:
        # It has no escape for a carriage return; a backslash before an r is none.
        return header_line(name.replace("\r", ""), value.replace("\r", ""), StompVersion.V12)
    # 1.0 has no escapes: what would end the line or the name can't be said.
    return f"{_flat(name).replace(':', ' ')}:{_flat(value)}"


def _flat(text: str) -> str:
    return text.replace("\n", " ").replace("\r", " ").replace("\0", " ")
