"""What a peer's kernel has acknowledged of a connection, seen from this side of it.

A peer that reads slowly doesn't take bytes as it reads them. Linux opens the window of a full receive buffer again in lumps:

* not before a segment, and a sixteenth of the buffer, are free (`__tcp_select_window`), and
* memory is free only when a whole socket buffer has been read, and neighbouring segments are merged into one
  (`tcp_try_coalesce`) of up to 17 pieces of 32 KiB.

So a buffer of up to half a megabyte may be read from end to end before the peer says a word. Measured on loopback with
segments of 1,448 bytes and a reader of 20 KB/s: with SO_RCVBUF 8 KiB the peer held 13 KiB when its window closed, with 32 KiB
62 KiB, with 128 KiB 253 KiB, with the default 125 KiB, and each time lumps of nearly that size were among the steps: silence of
6.4 s with the default. Nothing on this side tells such a reader from one that has stopped, but time: whoever has been silent
for longer than `lump_bytes` / rate reads more slowly than rate. From one moment at which the window is shut to another, what
was acknowledged is what was read, give or take the difference of two fills.
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
"""linux/tcp.h, struct tcp_info: retransmits, probes, snd_mss, unacked, bytes_acked, notsent_bytes, busy_time, rwnd_limited,
sndbuf_limited, snd_wnd (since Linux 5.4)."""

HELD_PER_WINDOW = 3
"""What a receiver comes to hold, at most, in units of the widest window it has named: small segments waste memory, of which
window it gives away half at first. Measured: 1.5 to 2.5."""
MERGED_BYTES = 17 * 32 * 1024
"""The largest socket buffer that segments are merged into."""
WINDOW_SHARE = 16
"""The part of its buffer that a receiver has free, at least, before it opens its window."""
PATH_WAITS_US = 200_000
"""Waiting is told apart over at least so much of it: Linux's shortest time to a retransmission."""
UNANSWERED = 2
"""Segments without an answer: then nobody hears them. One may be missing: a peer answers probes twice a second at most."""


class TcpInfo(NamedTuple):
    """One look at a TCP socket. Bytes; times in µs, since the connection's start, never shrinking."""

    queued: int
    """In the kernel and not acknowledged by the peer's."""
    unsent: int
    """The part of it that hasn't been sent yet."""
    unacked_segments: int
    acknowledged: int
    """Since the connection's start."""
    segment: int
    """The largest segment sent (MSS)."""
    window: int
    """What the peer takes beyond what it has acknowledged."""
    unanswered: int
    """What was sent since the peer was heard last: again what its window had let through, or probes of a shut window."""
    busy: int
    """There was something to send, or to be acknowledged."""
    shut: int
    """Of `busy`: the peer's window held sending back."""
    short: int
    """Of `busy`: this side's own buffer did."""

    @property
    def is_shut(self) -> bool:
        """The peer has all that its window lets through, and more waits. What it had no memory for, though its window had let
        it through, stays unacknowledged before a window of nothing."""
        if self.window == 0:
            return self.unsent > 0
        return self.unsent > 0 and self.unacked_segments == 0 and self.window < min(self.segment, self.unsent)


def read_tcp_info(raw: Any) -> TcpInfo | None:
    """Look at a socket; None when there is none, or it isn't TCP, or is closed, or the kernel doesn't tell."""
    try:
        if raw is None or raw.fileno() < 0:
            return None
        told = raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        (queued,) = _QUEUED.unpack(fcntl.ioctl(raw.fileno(), termios.TIOCOUTQ, bytes(_QUEUED.size)))
    except OSError:
        return None
    if len(told) < _INFO.size:
        return None
    repeats, probes, segment, unacked, acknowledged, unsent, busy, shut, short, window = _INFO.unpack(told)
    return TcpInfo(
        queued, unsent, unacked, acknowledged, segment, window, max(repeats, probes), busy, shut, short
    )


class PeerProgress:
    """One connection's progress. It knows what it has seen: look once a second or oftener, and before the socket is closed.

    `raw` is the connected socket, or what a transport shows of it; None before there is one. Where it isn't TCP, what this
    process still holds is all that is known to be under way.
    """

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self.taken = 0
        """Bytes, as `look` gave them last."""
        self.lump_bytes = 0
        self.network_limited = False
        self.window = UNKNOWN
        first = read_tcp_info(raw)
        self._tcp = first is not None
        self._widest = first.window if first is not None else 0
        self._shut_at: int | None = None
        """What was taken when the window was last seen shut."""
        self._resting = False
        """Nothing had moved between the last two looks at a shut window."""
        self._since = first

    def update(self, handed: int, above: int, produced: int | None = None) -> int:
        """Bytes of `handed` that the peer's kernel has acknowledged; the last known once the socket is closed.

        `above` are those that this process still holds. Where what is handed over isn't what is sent (TLS), `produced` is
        the number of bytes that were made of it and of everything else since the connection's start, and `above` what
        nothing was made of yet: what is under way counts as if it were plain, so that never too much is told.
        """
        view = read_tcp_info(self._raw)
        if view is not None:
            below = view.queued if produced is None else max(produced - view.acknowledged, 0)
            self._take(handed - above - below)
            self._learn(view)
        elif not self._tcp and not self.closed:
            self._take(handed - above)
        return self.taken

    @property
    def closed(self) -> bool:
        """Whether there is nothing to look at."""
        return self._raw is None

    def close(self) -> None:
        """The socket is about to be closed, or is: what was seen last stays."""
        self._raw = None

    def _take(self, taken: int) -> None:
        self.taken = max(self.taken, taken)

    # What the peer's window tells.

    def _learn(self, view: TcpInfo) -> None:
        self.window = ReceiveWindowSample(view.acknowledged, view.acknowledged + view.window)
        self._widest = max(self._widest, view.window)
        if view.is_shut:
            self._look_at_shut(view)
        if self._since is not None:
            self._look_at_waiting(self._since, view)

    def _look_at_shut(self, view: TcpInfo) -> None:
        """Learn the lump: at first all that the peer may hold; later also what it was seen to take after a rest."""
        before, self._shut_at = self._shut_at, self.taken
        if before is None:
            step = self.taken
        elif self._resting:
            step = self.taken - before
        else:
            # Many lumps may have gone by since the last look; then each of them is smaller than what a look sees.
            step = 0
        held = min(step, HELD_PER_WINDOW * self._widest)
        self.lump_bytes = max(self.lump_bytes, view.segment, min(held, held // WINDOW_SHARE + MERGED_BYTES))
        self._resting = before == self.taken

    def _look_at_waiting(self, since: TcpInfo, view: TcpInfo) -> None:
        """Say what held sending back, most of the time since the last word on it."""
        busy = view.busy - since.busy
        if view.queued == 0:
            self.network_limited = False
        elif view.unanswered >= UNANSWERED:
            self.network_limited = True
        elif view.window == 0:
            self.network_limited = (
                False  # the kernel repeats what the peer had no memory for, and doesn't call that shut
            )
        elif busy < PATH_WAITS_US:
            return
        else:
            self.network_limited = 2 * (busy - (view.shut - since.shut) - (view.short - since.short)) > busy
        self._since = view


class CountingSslContext(ssl.SSLContext):
    """A context whose connections count the bytes that they produce."""

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> CountingSslObject:
        """As SSLContext's; event loops call it for each connection."""
        made = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(made, CountingSslObject)
        made.outgoing = outgoing
        return made


class CountingSslObject(ssl.SSLObject):
    """One TLS connection. `produced` are the bytes that it gave to the socket's side, whatever for."""

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
