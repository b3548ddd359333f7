"""Client links: one connection to a transport, with addresses, TLS, framing and back-pressure.

Addresses are `tcp://host:port` and `ws://host:port/path`, with TLS `tcps://…` and `wss://…`.

A link has no knowledge of logon or subscriptions. All of it runs in synchronous callbacks of the event loop.
Received bytes become frames, which are passed to `on_frames` immediately. Sent bytes go to the asyncio
transport, and `drain()` waits while its buffer is full.
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
from broker_core.names import is_host_name
from broker_core.protocols.liveness import Liveness, ReadProgress
from broker_core.protocols.native import FROM_BROKER, NativeFrame, NativeFrameReader, encode_command

DEFAULT_PORTS = {"tcp": 9007, "tcps": 9007, "ws": 9008, "wss": 443}


class BrokerAddress(NamedTuple):
    """Address of a transport.

    `text` is the address as the caller wrote it.
    """

    scheme: str
    host: str
    port: int
    text: str

    @property
    def secure(self) -> bool:
        """Whether the address uses TLS."""
        return self.scheme in ("tcps", "wss")


def parse_address(text: str) -> BrokerAddress:
    """Parse an address.

    Raises:
        OperatorError: `bad_address`.
    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise _bad_address_error(text) from None
    if parts.scheme not in DEFAULT_PORTS or not is_host_name(parts.hostname or ""):
        raise _bad_address_error(text)
    return BrokerAddress(parts.scheme, parts.hostname or "", port or DEFAULT_PORTS[parts.scheme], text)


def parse_addresses(texts: str | Sequence[str]) -> tuple[BrokerAddress, ...]:
    """Parse one address or several, which a client tries in order.

    Raises:
        OperatorError: `bad_address`, also if there is none.
    """
    found = tuple(map(parse_address, [texts] if isinstance(texts, str) else texts))
    if not found:
        raise OperatorError(
            "bad_address", "A client needs at least one address.", "Give it tcp://127.0.0.1:9007."
        )
    return found


def _bad_address_error(text: str) -> OperatorError:
    return OperatorError(
        "bad_address",
        f"{text[:200]!r} isn't the address of a transport.",
        "Write tcp://host:9007 or ws://host:9008/, with TLS tcps://host:9007 or wss://host/.",
    )


MAX_WRITE_BUFFER_BYTES = 1024 * 1024
"""Bytes in the asyncio transport's buffer above which publishers wait."""

_QUEUED_BYTES = struct.Struct("i")

OnFrames = Callable[["ClientLink", list[NativeFrame]], None]


class ClientLink(asyncio.BaseProtocol):
    """Base class of TCP and WebSocket links.

    `ready` completes when the link is ready for the logon. `lost` completes when the connection is closed;
    its result is the reason if it is known.
    """

    def __init__(self, on_frames: OnFrames) -> None:
        loop = asyncio.get_running_loop()
        self.on_frames = on_frames
        self.ready: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[Exception | None] = loop.create_future()
        self.error: Exception | None = None
        self.paused = False
        self.sent_bytes = 0
        self._loop = loop
        self.liveness = Liveness(self.now_ms())
        self._transport: asyncio.Transport | None = None
        self._drain_waiter: asyncio.Future[None] | None = None

    # Callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=MAX_WRITE_BUFFER_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        self.resume_writing()
        error = self.error or exc
        if not self.ready.done():
            self.ready.set_exception(
                error or ConnectionResetError("the connection was closed while it was opened")
            )
            self.ready.exception()  # mark it as retrieved: perhaps no caller waits for it any more
        if not self.lost.done():
            self.lost.set_result(error)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        waiter, self._drain_waiter = self._drain_waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # Interface for the client.

    async def drain(self) -> None:
        """Wait while the asyncio transport's buffer is over its limit."""
        while self.paused and not self.lost.done():
            if self._drain_waiter is None:
                self._drain_waiter = self._loop.create_future()
            await asyncio.shield(self._drain_waiter)

    def now_ms(self) -> int:
        """Return monotonic milliseconds of the event loop's clock, as `liveness` counts them."""
        return int(self._loop.time() * 1_000)

    def sample_liveness(self, interval_s: float) -> None:
        """Record in `liveness` the received bytes, and the bytes that the broker's kernel acknowledged.

        `interval_s`: planned seconds between two calls.
        """
        now = self.now_ms()
        self.liveness.note_check(now, round(interval_s * 1_000))
        self.liveness.note_read(now, self.read_progress())
        self.liveness.note_written(now, self.sent_bytes, self.sent_bytes - self.unacknowledged_bytes())

    def unacknowledged_bytes(self) -> int:
        """Return the number of bytes in the asyncio transport's buffer and, if known, in the kernel's."""
        if self._transport is None or self._transport.is_closing():
            return 0
        raw = self._transport.get_extra_info("socket")
        try:
            (queued,) = _QUEUED_BYTES.unpack(
                fcntl.ioctl(raw.fileno(), termios.TIOCOUTQ, bytes(_QUEUED_BYTES.size))
            )
        except (OSError, AttributeError):
            queued = 0
        return self.unwritten_bytes + int(queued)

    @property
    def unwritten_bytes(self) -> int:
        """Number of bytes that the kernel has not accepted yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def read_progress(self) -> ReadProgress:
        """Return the number of bytes read, and the bytes of an incomplete frame."""
        raise NotImplementedError

    def send(self, parts: Sequence[Buffer]) -> None:
        """Write the buffers of one or more complete frames."""
        raise NotImplementedError

    def send_command(self, command: dict[str, Any] | msgspec.Struct) -> None:
        """Encode and send a command."""
        self.send((encode_command(command),))

    def close(self) -> None:
        """Write buffered data, then close the connection."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, error: Exception | None = None) -> None:
        """Close the connection immediately. `error` becomes the reason unless there is one already."""
        self.error = self.error or error
        if self._transport is not None:
            self._transport.abort()

    def _deliver(self, frames: list[NativeFrame]) -> None:
        """Pass received frames to the client."""
        if self.error is not None:
            # An earlier frame was damaged. Delivering later ones would skip the lost frames, so drop them
            # until reconnection.
            return
        try:
            self.on_frames(self, frames)
        except SluiceError as error:  # an unreadable batch or reply: later frames can't be trusted
            self.fail_on_garbage(error)

    def fail_on_garbage(self, error: SluiceError) -> None:
        """Close the connection because received bytes are damaged.

        The reason is `damaged_delivery`, which is retried, so it is not mistaken for a permanent error of the
        broker.
        """
        self.abort(
            OperatorError(
                "damaged_delivery", f"The data from the broker is invalid: {error.sentence}", error.fix
            )
        )


class TcpLink(ClientLink, asyncio.BufferedProtocol):
    """Link over TCP: frames follow each other without separators."""

    def __init__(self, on_frames: OnFrames) -> None:
        super().__init__(on_frames)
        self._reader = NativeFrameReader(kinds=FROM_BROKER)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self.ready.done():
            self.ready.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._reader.buffer_updated(nbytes)
        except ClientError as error:
            self.fail_on_garbage(error)
            return
        if frames:
            self._deliver(frames)
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
    """Create a TLS context for `tcps://` and `wss://`.

    Args:
        ca: PEM file of trusted authorities. None: the system's authorities.
        certificate: PEM file of a client certificate to show.
        key: PEM file of its private key, if it is in another file.

    Raises:
        OperatorError: `bad_certificate`, if a file cannot be used.
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
    """Return the TLS context, or create one that trusts the authorities in a file or those of the system."""
    return tls if isinstance(tls, ssl.SSLContext) else tls_context(tls)
