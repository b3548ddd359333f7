"""How a client's TCP socket is set, the same for every transport.

A TCP connection, whatever is spoken on it: asyncio's BufferedProtocol on one side, the half of a Sink on the other.

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
"""What the kernel takes beyond what the peer's window lets it send."""


def configure_socket(raw: socket.socket) -> None:
    """Set a connected socket so that a peer that doesn't read shows at once.

    The kernel would otherwise take up to 4 MB for a client that reads nothing (Linux's tcp_wmem), which policy can't
    see and memory limits don't count. Data on its way to a peer that reads isn't limited by this, so a long fat
    network isn't slowed.
    """
    if raw.family not in (socket.AF_INET, socket.AF_INET6):
        return
    # Batches are whole when they are written; waiting for more would only delay them.
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_LOW_BYTES)


CLOSE_AFTER_S = 2.0
"""How long a closing connection may take to read its last notice."""


class TcpConnection(asyncio.BufferedProtocol):
    """One TCP connection as a way out; what is read and written on it is its protocol's.

    Is a `Sink` together with `send_entries` and `send_reply` of what is built on it.
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
        self._by_turns = True
        """Nobody knows it yet, or it was told to go: it is read from when its turn at the door comes."""
        self._halted = False
        """The engine wants no more for now."""
        self._descriptor = -1

    # asyncio calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, not a check: uvloop's transports are asyncio's by shape and not by class.
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
            self._by_turns = False  # what TLS has read already stands in no socket
        self._connected()
        # Behind this, where asyncio begins to read.
        asyncio.get_running_loop().call_soon(self._to_the_door)

    def _connected(self) -> None:
        """The connection is ready for its protocol."""
        raise NotImplementedError

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._engine.door.remove_reader(self._descriptor, self._read_on)
        self.is_writable = False
        if self._tls is None:
            self.acked_bytes()  # below TLS the socket is closed already
        self._progress.close()
        if self._connection is not None:
            self._connection.on_closed()

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        if self._connection is not None:
            self._connection.on_writable()

    # The engine calls these: the Sink.

    _unwritten = 0
    """Bytes that were handed over and not written to asyncio's transport yet."""

    @property
    def is_flushed(self) -> bool:
        return self._transport is not None and self._transport.get_write_buffer_size() + self._unwritten == 0

    def acked_bytes(self) -> int:
        if self._transport is None or self._progress.closed:
            return self._progress.taken
        above, tls = self._transport.get_write_buffer_size() + self._unwritten, self._tls
        if tls is None:
            return self._progress.update(self.written_bytes, above)
        # What TLS has made already and not given on is both in the transport's buffer and among what was produced.
        return self._progress.update(self.written_bytes, above - tls.outgoing.pending, tls.produced)

    @property
    def window_step_bytes(self) -> int:
        return self._progress.lump_bytes

    @property
    def is_network_limited(self) -> bool:
        return self._progress.network_limited

    @property
    def receive_window(self) -> ReceiveWindowSample:
        return self._progress.window

    def pause_reading(self) -> None:
        self._halted = True
        self._engine.door.remove_reader(self._descriptor, self._read_on)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._halted = False
        if self._by_turns:
            self._to_the_door()
        else:
            self._read_on()

    def _read_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing() and not self._halted:
            self._transport.resume_reading()

    def _to_the_door(self) -> None:
        """Read no further before its next turn, while it is heard by turns."""
        if self._by_turns and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            if not self._halted:
                self._engine.door.add_reader(self._descriptor, self._read_on)

    def _heard_by_turns(self) -> None:
        """From here on; what it still sends is of no use to anybody."""
        if self._tls is None and not self._by_turns:
            self._by_turns = True
            self._to_the_door()

    def on_logged_on(self) -> None:
        """It is known who this is."""
        self._by_turns = False
        self._engine.door.remove_reader(self._descriptor, self._read_on)
        self._read_on()

    def close(self, code: str, message: str) -> None:
        self.close_soon()

    def close_soon(self) -> None:
        """Close when the peer has taken what is buffered, as far as it does that."""
        if self._transport is None or self._transport.is_closing():
            return
        self.acked_bytes()
        self._transport.close()
        # close() waits for the peer to take what is buffered; one that never reads must not hold it for ever.
        asyncio.get_running_loop().call_later(CLOSE_AFTER_S, self._transport.abort)

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def drop_input(self) -> None:
        self._connection = None
