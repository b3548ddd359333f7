"""TCP connection for any protocol: a BufferedProtocol for asyncio, half of a `Sink` for the engine.

Below the outbox asyncio holds at most TRANSPORT_HIGH_BYTES: `pause_writing` makes the sink unwritable.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, cast

from broker_core.access.tls import certificate_names
from broker_core.delivery.sink import TRANSPORT_HIGH_BYTES, ReceiveWindowSample
from broker_core.transports.peer_progress import CountingSslObject, PeerProgress

if TYPE_CHECKING:
    from broker_core.connections.connection import Connection
    from broker_core.engine.engine import Engine


UNSENT_LOW_BYTES = 64 * 1024
"""Bytes that the kernel accepts beyond those that the peer's window lets it send."""


def configure_socket(raw: socket.socket) -> None:
    """Configure a connected socket so that the broker notices at once when the peer doesn't read.

    Otherwise the kernel would accept up to 4 MB for such a client (Linux's tcp_wmem), which policy can't see
    and memory limits don't count. Bytes in flight to a peer that reads aren't limited by this, so a network
    with a long delay isn't slowed.
    """
    if raw.family not in (socket.AF_INET, socket.AF_INET6):
        return
    # Batches are complete when they are written; waiting for more would only delay them.
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_LOW_BYTES)


CLOSE_AFTER_S = 2.0
"""Seconds that a closing connection has to read its last notice."""


class TcpConnection(asyncio.BufferedProtocol):
    """TCP connection; subclasses read and write their protocol on it.

    It is a `Sink` together with `send_entries` and `send_reply` of a subclass.
    """

    protocol = "tcp"
    text_mode = False

    def __init__(self, engine: Engine, transport_name: str) -> None:
        self._engine = engine
        self._transport_name = transport_name
        self._transport: asyncio.Transport | None = None
        self._connection: Connection | None = None
        self._progress = PeerProgress(None)
        self._tls: CountingSslObject | None = None
        self.written_bytes = 0
        self.remote = "?"
        self.is_writable = True
        self.peer_names: frozenset[str] = frozenset()
        self._has_fair_reads = True
        """Whether `PreLogonReadQueue` reads from it, because it hasn't logged on, or is being closed."""
        self._is_paused_by_engine = False
        """Whether the engine has paused reading."""
        self._descriptor = -1
        self._is_input_ended = False
        """Whether the peer has closed its sending side, and waits for answers."""

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a check: uvloop's transports have asyncio's methods, but not its classes.
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=TRANSPORT_HIGH_BYTES)
        raw = transport.get_extra_info("socket")
        if raw is not None:
            configure_socket(raw)
            self._descriptor = raw.fileno()
        self._progress = PeerProgress(raw)
        peer: Any = transport.get_extra_info("peername")
        self.remote = f"{peer[0]}:{peer[1]}" if peer else "?"
        self._tls = transport.get_extra_info("ssl_object")
        if self._tls is not None:
            self.peer_names = certificate_names(self._tls.getpeercert(binary_form=True))
            self._has_fair_reads = False  # bytes that TLS has read already don't make the socket readable
        self._connected()
        # Later than this call, because asyncio begins to read after it.
        asyncio.get_running_loop().call_soon(self._await_fair_read)

    def _connected(self) -> None:
        """Create the engine's connection. Called when the socket is configured."""
        raise NotImplementedError

    def eof_received(self) -> bool:
        """Keep the connection open if the peer may read answers to its commands. TLS has no half-close."""
        if self._is_input_ended:
            return True
        if self._connection is None or self.is_ending:
            return False
        self.flush_replies()
        if self._tls is not None:
            return False
        self._is_input_ended = self._connection.end_input()
        return self._is_input_ended

    def flush_replies(self) -> None:
        """Write the replies of this event-loop iteration now."""

    @property
    def is_ending(self) -> bool:
        """Whether the broker has ended the connection."""
        return self._transport is None or self._transport.is_closing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._engine.pre_logon_reads.remove_reader(self._descriptor, self._resume_transport)
        self.is_writable = False
        if self._tls is None:
            self.acked_bytes()  # with TLS the socket is closed already
        self._progress.close()
        if self._connection is not None:
            self._connection.on_closed(is_reset=isinstance(exc, ConnectionResetError))

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        if self._connection is not None:
            self._connection.on_writable()

    # Called by the engine: the Sink.

    _unwritten = 0
    """Bytes that were handed over and not written to asyncio's transport yet."""

    @property
    def is_flushed(self) -> bool:
        return self._transport is not None and self._transport.get_write_buffer_size() + self._unwritten == 0

    def acked_bytes(self) -> int:
        if self._transport is None or self._progress.closed:
            return self._progress.acked_bytes
        above, tls = self._transport.get_write_buffer_size() + self._unwritten, self._tls
        if tls is None:
            return self._progress.update(self.written_bytes, above)
        # Bytes that TLS has produced and not passed on are in the transport's buffer and in `produced`.
        return self._progress.update(self.written_bytes, above - tls.outgoing.pending, tls.produced)

    @property
    def window_step_bytes(self) -> int:
        return self._progress.window_step_bytes

    @property
    def is_network_limited(self) -> bool:
        return self._progress.is_network_limited

    @property
    def receive_window(self) -> ReceiveWindowSample:
        return self._progress.receive_window

    def pause_reading(self) -> None:
        self._is_paused_by_engine = True
        self._engine.pre_logon_reads.remove_reader(self._descriptor, self._resume_transport)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._is_paused_by_engine = False
        if self._has_fair_reads:
            self._await_fair_read()
        else:
            self._resume_transport()

    def _resume_transport(self) -> None:
        if not self.is_ending and not self._is_paused_by_engine and not self._is_input_ended:
            assert self._transport is not None
            self._transport.resume_reading()

    def _await_fair_read(self) -> None:
        """Read no more before `PreLogonReadQueue` calls, if the connection is read by it."""
        if self._has_fair_reads and not self.is_ending and not self._is_input_ended:
            assert self._transport is not None
            self._transport.pause_reading()
            if not self._is_paused_by_engine:
                self._engine.pre_logon_reads.add_reader(self._descriptor, self._resume_transport)

    def _start_fair_reads(self) -> None:
        """Let `PreLogonReadQueue` read from now on.

        The input of a closing connection is discarded.
        """
        if self._tls is None and not self._has_fair_reads:
            self._has_fair_reads = True
            self._await_fair_read()

    def on_logged_on(self) -> None:
        """Read at full speed from now on, because the client is authenticated."""
        self._has_fair_reads = False
        self._engine.pre_logon_reads.remove_reader(self._descriptor, self._resume_transport)
        self._resume_transport()

    def close(self, code: str, message: str) -> None:
        self.close_soon()

    def close_soon(self) -> None:
        """Close when the peer has read the buffered bytes, at the latest after CLOSE_AFTER_S."""
        if self._transport is None or self._transport.is_closing():
            return
        self.flush_replies()
        self.acked_bytes()  # a closed socket no longer reports them
        self._transport.close()
        # close() waits until the peer has read the buffered bytes; a peer that never reads must not delay it
        # forever.
        asyncio.get_running_loop().call_later(CLOSE_AFTER_S, self._transport.abort)

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def drop_input(self) -> None:
        self._connection = None
