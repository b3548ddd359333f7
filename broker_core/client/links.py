"""Addresses of transports: `tcp://host:port`, `ws://host:port/path`, and with TLS `tcps://…`, `wss://…`.

One connection to a transport: frames in, bytes out, and back-pressure both ways.

A link knows nothing of logon or subscriptions. Everything is synchronous callbacks of the loop: a read makes
frames, which go to `on_frames` at once; a write goes to the transport, and `drain()` waits while that is full.

TLS of a client: which authorities it trusts, and the certificate that it shows.
"""

from __future__ import annotations

import asyncio
import fcntl
import ssl
import struct
import termios
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import msgspec

from broker_core.batch import Buffer
from broker_core.errors import ClientError, OperatorError, SluiceError
from broker_core.protocols.liveness import Liveness, ReadProgress
from broker_core.protocols.native import FROM_BROKER, NativeFrame, NativeFrameReader, encode_command

DEFAULT_PORTS = {"tcp": 9007, "tcps": 9007, "ws": 9008, "wss": 443}


class BrokerAddress(NamedTuple):
    """Where a transport listens."""

    scheme: str
    host: str
    port: int
    text: str

    @property
    def secure(self) -> bool:
        return self.scheme in ("tcps", "wss")


def parse_address(text: str) -> BrokerAddress:
    """The address in a text; OperatorError bad_address when it isn't one."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise _bad(text) from None
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
        raise _bad(text)
    return BrokerAddress(parts.scheme, parts.hostname, port or DEFAULT_PORTS[parts.scheme], text)


def parse_addresses(texts: str | Sequence[str]) -> tuple[BrokerAddress, ...]:
    """One address or several, to be tried in turn."""
    found = tuple(map(parse_address, [texts] if isinstance(texts, str) else texts))
    if not found:
        raise OperatorError(
            "bad_address", "A client needs at least one address.", "Give it tcp://127.0.0.1:9007."
        )
    return found


def _bad(text: str) -> OperatorError:
    return OperatorError(
        "bad_address",
        f"{text[:200]!r} isn't the address of a transport.",
        "Write tcp://host:9007 or ws://host:9008/, with TLS tcps://host:9007 or wss://host/.",
    )


WRITE_HIGH = 1024 * 1024
"""Bytes the transport may hold before publishers wait."""

_QUEUED = struct.Struct("i")

OnFrames = Callable[["ClientLink", list[NativeFrame]], None]


class ClientLink(asyncio.BaseProtocol):
    """What TCP and WebSocket links share. `lost` is done once the connection is gone, with why when it is known."""

    def __init__(self, on_frames: OnFrames) -> None:
        loop = asyncio.get_running_loop()
        self.on_frames = on_frames
        self.opened: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[Exception | None] = loop.create_future()
        self.error: Exception | None = None
        self.paused = False
        self.sent_bytes = 0
        self._loop = loop
        self.liveness = Liveness(self.now_ms())
        self._transport: asyncio.Transport | None = None
        self._drained: asyncio.Future[None] | None = None

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH)

    def connection_lost(self, exc: Exception | None) -> None:
        self.resume_writing()
        error = self.error or exc
        if not self.opened.done():
            self.opened.set_exception(
                error or ConnectionResetError("the connection was closed while it was opened")
            )
            self.opened.exception()  # it may be that nobody waits any more
        if not self.lost.done():
            self.lost.set_result(error)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        waiter, self._drained = self._drained, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # what the client uses

    async def drain(self) -> None:
        """Wait while the transport holds more than it should."""
        while self.paused and not self.lost.done():
            if self._drained is None:
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)

    def now_ms(self) -> int:
        """Monotonic milliseconds of the loop's clock, as `liveness` counts them."""
        return int(self._loop.time() * 1_000)

    def sample_liveness(self) -> None:
        """Record in `liveness` the bytes that came from the broker and those that its kernel acknowledged since
        the last sample."""
        now = self.now_ms()
        self.liveness.note_read(now, self.read_progress())
        self.liveness.note_written(now, self.sent_bytes, self.sent_bytes - self.unacknowledged_bytes())

    def unacknowledged_bytes(self) -> int:
        """Return the bytes in the transport's buffer and, where the system tells, in the kernel's."""
        if self._transport is None or self._transport.is_closing():
            return 0
        raw = self._transport.get_extra_info("socket")
        try:
            (queued,) = _QUEUED.unpack(fcntl.ioctl(raw.fileno(), termios.TIOCOUTQ, bytes(_QUEUED.size)))
        except (OSError, AttributeError):
            queued = 0
        return self.unwritten_bytes + int(queued)

    @property
    def unwritten_bytes(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def read_progress(self) -> ReadProgress:
        """Bytes read so far, and those of a frame that is not whole."""
        raise NotImplementedError

    def send(self, parts: Sequence[Buffer]) -> None:
        """Write the parts of one or more whole frames."""
        raise NotImplementedError

    def send_command(self, command: dict[str, Any] | msgspec.Struct) -> None:
        self.send((encode_command(command),))

    def close(self) -> None:
        """Write what is held, then close."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, error: Exception | None = None) -> None:
        self.error = self.error or error
        if self._transport is not None:
            self._transport.abort()

    def _take(self, frames: list[NativeFrame]) -> None:
        if self.error is not None:
            # Something before them was damaged. Whoever took these would go on after them, and miss what was lost between.
            return
        try:
            self.on_frames(self, frames)
        except SluiceError as error:  # a batch or reply that can't be read: what follows can't be trusted
            self.fail_on_garbage(error)

    def fail_on_garbage(self, error: SluiceError) -> None:
        """Close at once, because of what came: that was damaged on its way, and no word of the broker's to stay away."""
        self.abort(
            OperatorError(
                "damaged_delivery", f"What came from the broker can't be read: {error.sentence}", error.fix
            )
        )


class TcpLink(ClientLink, asyncio.BufferedProtocol):
    """Frames back to back on TCP."""

    def __init__(self, on_frames: OnFrames) -> None:
        super().__init__(on_frames)
        self._reader = NativeFrameReader(kinds=FROM_BROKER)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self.opened.done():
            self.opened.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._reader.buffer_updated(nbytes)
        except ClientError as error:
            self.fail_on_garbage(error)
            return
        if frames:
            self._take(frames)
        if self._reader.error is not None:
            self.fail_on_garbage(self._reader.error)

    def read_progress(self) -> ReadProgress:
        return self._reader.progress

    def send(self, parts: Sequence[Buffer]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self.sent_bytes += sum(map(len, parts))
            self._transport.writelines(parts)


Tls = ssl.SSLContext | str | Path | None


def tls_context(
    ca: str | Path | None = None, certificate: str | Path | None = None, key: str | Path | None = None
) -> ssl.SSLContext:
    """A context that trusts the authorities in `ca` (PEM; default the system's) and shows a certificate, if there is one.

    Raises OperatorError bad_certificate.
    """
    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except (OSError, ValueError) as problem:
        raise OperatorError(
            "bad_certificate",
            f"The certificates {ca or ''} {certificate or ''} can't be used: {problem}.",
            "Name PEM files.",
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def to_ssl_context(tls: Tls) -> ssl.SSLContext:
    """The context itself, or one that trusts what the file holds; the system's authorities without either."""
    return tls if isinstance(tls, ssl.SSLContext) else tls_context(tls)
