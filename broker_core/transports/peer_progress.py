"""Progress of a peer: the bytes of a connection that its kernel has acknowledged, seen from this side.

A slow peer's kernel doesn't acknowledge bytes at the pace at which the peer reads. When a receive buffer was
full, Linux reopens its window in large steps:

* not before a segment, and a sixteenth of the buffer, are free (`__tcp_select_window`), and
* memory is free only when a whole socket buffer has been read, and adjacent segments are merged into one
  (`tcp_try_coalesce`) of up to 17 x 32 KiB.

So up to half a megabyte may be read before the peer acknowledges anything. Measured on loopback with segments
of 1,448 bytes and a reader of 20 KB/s: with SO_RCVBUF 8 KiB the peer held 13 KiB when its window closed, with
32 KiB 62 KiB, with 128 KiB 253 KiB, with the default 125 KiB. Each time, some steps had nearly that size: a
silence of 6.4 s with the default.

On this side only time distinguishes such a reader from one that has stopped: a peer that is silent for longer
than `window_step_bytes` / rate reads more slowly than rate. Between two moments at which the window is shut,
the acknowledged bytes are the bytes read, up to the difference of two fill levels.
"""

from __future__ import annotations

import fcntl
import socket
import ssl
import struct
import termios
from typing import Any, NamedTuple

from broker_core.delivery.sink import UNKNOWN, ReceiveWindowSample

_QUEUED = struct.Struct("i")
_INFO = struct.Struct("=2xBB12xI4xI92xQ16xI20xQQQ36xI")
"""Fields of struct tcp_info (linux/tcp.h), up to snd_wnd (since Linux 5.4).

In order: retransmits, probes, snd_mss, unacked, bytes_acked, notsent_bytes, busy_time, rwnd_limited,
sndbuf_limited, snd_wnd.
"""

BUFFERED_PER_WINDOW = 3
"""Maximum bytes that a receiver holds, in units of the widest window that it has announced.

Small segments waste memory, and the receiver announces half of it as window at first. Measured: 1.5 to 2.5.
"""
MERGED_BYTES = 17 * 32 * 1024
"""Maximum bytes of a socket buffer that segments are merged into."""
WINDOW_SHARE = 16
"""Divisor: a receiver has at least 1/16 of its buffer free before it opens its window."""
PATH_WAITS_US = 200_000
"""Minimum waiting time over which causes are distinguished, µs: Linux's shortest retransmission timeout."""
MAX_UNANSWERED_SEGMENTS = 2
"""Number of unanswered segments that means a lost network.

One may be missing: a peer answers at most two probes a second.
"""


class TcpInfo(NamedTuple):
    """State of a TCP socket at one check.

    Sizes in bytes; times in µs since the connection's start, never shrinking.
    """

    queued: int
    """Bytes in the kernel that the peer's kernel hasn't acknowledged."""
    unsent: int
    """Bytes of `queued` that haven't been sent yet."""
    unacked_segments: int
    acknowledged: int
    """Bytes acknowledged since the connection's start."""
    segment: int
    """Largest segment sent (MSS), bytes."""
    window: int
    """Bytes that the peer accepts beyond the acknowledged ones."""
    unanswered: int
    """Segments sent since the peer's last answer: retransmissions, or probes of a shut window."""
    busy: int
    """Time with bytes to send or to be acknowledged."""
    shut: int
    """Part of `busy` in which the peer's window limited sending."""
    short: int
    """Part of `busy` in which this side's own buffer limited sending."""

    @property
    def is_shut(self) -> bool:
        """Whether the peer's window is used up and more bytes wait.

        Bytes for which the peer had no memory, although its window allowed them, stay unacknowledged before a
        window of 0.
        """
        if self.window == 0:
            return self.unsent > 0
        return self.unsent > 0 and self.unacked_segments == 0 and self.window < min(self.segment, self.unsent)


def read_tcp_info(raw: Any) -> TcpInfo | None:
    """Read the state of a TCP socket.

    None when there is none, it isn't TCP, it is closed, or the kernel doesn't report it.
    """
    try:
        if raw is None or raw.fileno() < 0:
            return None
        raw_info = raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        (queued,) = _QUEUED.unpack(fcntl.ioctl(raw.fileno(), termios.TIOCOUTQ, bytes(_QUEUED.size)))
    except OSError:
        return None
    if len(raw_info) < _INFO.size:
        return None
    repeats, probes, segment, unacked, acknowledged, unsent, busy, shut, short, window = _INFO.unpack(
        raw_info
    )
    return TcpInfo(
        queued, unsent, unacked, acknowledged, segment, window, max(repeats, probes), busy, shut, short
    )


class PeerProgress:
    """Progress of one peer. Call `update` at least once a second, and before the socket is closed.

    `raw` is the connected socket, or a transport's view of it; None before there is one. Where it isn't TCP,
    the bytes that this process still holds are all that is known to be in flight.
    """

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self.acked_bytes = 0
        """Acknowledged bytes, as returned by the last `update`."""
        self.window_step_bytes = 0
        self.is_network_limited = False
        self.receive_window = UNKNOWN
        first = read_tcp_info(raw)
        self._tcp = first is not None
        self._max_window = first.window if first is not None else 0
        self._shut_at: int | None = None
        """Acknowledged bytes when the window was last seen shut."""
        self._is_unchanged = False
        """Whether nothing had moved between the last two checks with a shut window."""
        self._since = first

    def update(self, handed: int, above: int, produced: int | None = None) -> int:
        """Return the bytes of `handed` that the peer's kernel has acknowledged.

        Once the socket is closed, the last known number is returned.

        Args:
            handed: bytes handed over since the connection's start, before TLS.
            above: bytes of these that this process still holds; with TLS, those not encrypted yet.
            produced: with TLS, the bytes that TLS produced since the connection's start. Bytes in flight then
                count as if they were plain, so that the result is never too large.
        """
        view = read_tcp_info(self._raw)
        if view is not None:
            below = view.queued if produced is None else max(produced - view.acknowledged, 0)
            self._take(handed - above - below)
            self._update_from(view)
        elif not self._tcp and not self.closed:
            self._take(handed - above)
        return self.acked_bytes

    @property
    def closed(self) -> bool:
        """Whether there is no open socket."""
        return self._raw is None

    def close(self) -> None:
        """Stop checking, because the socket is closed or about to be. The last figures stay."""
        self._raw = None

    def _take(self, acked_bytes: int) -> None:
        self.acked_bytes = max(self.acked_bytes, acked_bytes)

    # Figures from the peer's window.

    def _update_from(self, view: TcpInfo) -> None:
        """Update the figures that depend on the peer's window."""
        self.receive_window = ReceiveWindowSample(view.acknowledged, view.acknowledged + view.window)
        self._max_window = max(self._max_window, view.window)
        if view.is_shut:
            self._update_window_step(view)
        if self._since is not None:
            self._update_network_limited(self._since, view)

    def _update_window_step(self, view: TcpInfo) -> None:
        """Update `window_step_bytes`: first all that the peer may hold, later also a step after a pause."""
        before, self._shut_at = self._shut_at, self.acked_bytes
        if before is None:
            step = self.acked_bytes
        elif self._is_unchanged:
            step = self.acked_bytes - before
        else:
            # Several steps may have passed since the last check; each of them is smaller than the difference.
            step = 0
        buffered = min(step, BUFFERED_PER_WINDOW * self._max_window)
        self.window_step_bytes = max(
            self.window_step_bytes, view.segment, min(buffered, buffered // WINDOW_SHARE + MERGED_BYTES)
        )
        self._is_unchanged = before == self.acked_bytes

    def _update_network_limited(self, since: TcpInfo, view: TcpInfo) -> None:
        """Determine what limited sending for most of the time since the last result."""
        busy = view.busy - since.busy
        if view.queued == 0:
            self.is_network_limited = False
        elif view.unanswered >= MAX_UNANSWERED_SEGMENTS:
            self.is_network_limited = True
        elif view.window == 0:
            # The kernel retransmits bytes for which the peer had no memory, and doesn't count that as shut.
            self.is_network_limited = False
        elif busy < PATH_WAITS_US:
            return
        else:
            self.is_network_limited = (
                2 * (busy - (view.shut - since.shut) - (view.short - since.short)) > busy
            )
        self._since = view


class CountingSslContext(ssl.SSLContext):
    """SSL context whose connections count the bytes that they produce."""

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> CountingSslObject:
        """Return a counting SSL object. Event loops call this for each connection."""
        made = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(made, CountingSslObject)
        made.outgoing = outgoing
        return made


class CountingSslObject(ssl.SSLObject):
    """TLS connection that counts the bytes it gave to the socket, for any purpose, in `produced`."""

    outgoing: ssl.MemoryBIO
    produced = 0

    def write(self, data: Any) -> int:
        before = self.outgoing.pending
        try:
            return super().write(data)
        finally:
            self.produced += self.outgoing.pending - before

    def read(self, len: int = 1024, buffer: Any = None) -> Any:
        before = self.outgoing.pending
        try:
            return super().read(len, buffer)
        finally:
            self.produced += self.outgoing.pending - before

    def do_handshake(self) -> None:
        before = self.outgoing.pending
        try:
            super().do_handshake()
        finally:
            self.produced += self.outgoing.pending - before

    def unwrap(self) -> Any:
        before = self.outgoing.pending
        try:
            return super().unwrap()
        finally:
            self.produced += self.outgoing.pending - before


CountingSslContext.sslobject_class = CountingSslObject
