"""Admission: limits of connections before their logon, and of the connections and logons of an address.

A frame before the logon has at most BEFORE_LOGON bytes (the transports enforce it). Connections that haven't
logged on buffer at most BUFFER_BYTES of input together, in unfinished frames or in frames that wait.
Connections that have logged on buffer at most INPUT_BYTES, of which UNFINISHED_BYTES are for unfinished
frames. A connection that would exceed a limit is closed and may reconnect. At most MAX_PENDING connections
wait for their logon. For one more, the oldest one of the address with most of them is closed. So a client
that logs on immediately gets in, however many others don't. Connections of one address and its logons per
second are limited, too.

`PreLogonReadQueue` reads from connections before their logon one after another, and clients that have logged
on go first. An event loop calls the handlers of all ready sockets in one iteration, and a thousand strangers
that send together would occupy it for a second. So these sockets are not in the loop's own selector. They are
in a second epoll. Of its ready sockets a few are read in each iteration, within the time of one client's
commands (`delivery.scheduling`); the others are read in later iterations. Unread input waits in the kernel.
Connections that are being closed and still send are there, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from broker_core.clock import Clock
from broker_core.config.preset_settings import MAX_CONNECTIONS
from broker_core.delivery.scheduling import ITERATION_BUDGET_NS
from broker_core.errors import ClientError

BUFFER_BYTES: Final = 4 * 1024 * 1024
"""Maximum bytes of buffered input of all connections that haven't logged on."""
INPUT_BYTES: Final = 1024 * 1024 * 1024
"""Maximum bytes of buffered input of all connections that have logged on."""
UNFINISHED_BYTES: Final = 256 * 1024 * 1024
"""Maximum bytes of unfinished frames and open transactions of all logged-on connections.

That is 16 frames of the maximum size. Beyond it, the broker takes the user, or address, with most bytes, and
closes the connection of its oldest unfinished frame.
"""
MAX_PENDING: Final = 1_100
"""Maximum number of connections before their logon, including those that are still negotiating a WebSocket.

It is larger than 1,024, the number that a listener may accept in one iteration, before any of them is read.
"""
MAX_CLOSING: Final = 200
"""Maximum number of connections that were closed before their logon and still have a socket."""
MAX_FROM_ADDRESS: Final = 10_000
"""Maximum number of connections of one address: half of the instance's."""
RESERVED_DESCRIPTORS: Final = 2_048
"""File descriptors reserved for files, and for connections that are accepted and then refused.

Half of all descriptors if the process has fewer than twice as many. Without a free descriptor the log can't
open its next segment, and the broker stops.
"""
LOGONS_PER_SECOND: Final = 1_000
"""Logons per second of one address in the long run."""
LOGON_BURST: Final = 10_000
"""Logons that an address may make at once after a quiet period.

Clients that lost a broker reconnect together.
"""
MAX_REMEMBERED: Final = 10_000
"""Maximum number of addresses whose logons are counted. Those that are quiet for longest are removed."""


def peer_address(remote: str) -> str:
    """Return a peer's address without its port."""
    return remote.rpartition(":")[0]


class PendingConnection(Protocol):
    """Connection that hasn't logged on."""

    @property
    def remote(self) -> str: ...

    def evict(self) -> None:
        """Send an error and close, because the limit is reached and a newer connection came."""

    def drop(self) -> None:
        """Close immediately and discard unsent bytes."""


class InputBufferUsage:
    """Input that one connection buffers in one place, in bytes: an unfinished frame, or frames that wait.

    `give_up` closes the connection and frees these bytes. Without it the bytes wait for the broker, not for
    the client, and are never given up.
    """

    __slots__ = ("_give_up", "_logged_on", "_pending_connections", "nbytes", "share")

    def __init__(
        self, pending_connections: PendingConnections, give_up: Callable[[ClientError], None] | None = None
    ) -> None:
        self._pending_connections = pending_connections
        self._give_up = give_up
        self._logged_on = False
        self.nbytes = 0
        self.share = ""
        """Owner of the bytes after the logon: the user, or the address of a client without a user."""

    def set_bytes(self, nbytes: int) -> None:
        """Set the number of bytes.

        Raises:
            ClientError: input_full, when the number grows beyond a limit of the instance.
        """
        if nbytes != self.nbytes:
            before, self.nbytes = self.nbytes, nbytes
            try:
                self._pending_connections.reserve_input(nbytes - before, logged_on=self._logged_on)
            finally:  # both totals count the bytes before either refuses them
                if self._logged_on and self._give_up is not None:
                    self._pending_connections.pool.change(self, before)

    def progress(self) -> None:
        """Record that a frame is complete, so that the buffered bytes belong to a newer one."""
        if self.nbytes and self._logged_on and self._give_up is not None:
            self._pending_connections.pool.renew(self)

    def on_logged_on(self, share: str = "") -> None:
        """Count the bytes as those of a logged-on connection, in the share of a user or an address."""
        self._pending_connections.on_logged_on(self.nbytes)
        self._logged_on, self.share = True, share
        if self._give_up is not None:
            self._pending_connections.pool.change(self, 0)

    def give_up(self, error: ClientError) -> None:
        """Free the bytes, and close the connection with an error."""
        assert self._give_up is not None
        self._give_up(error)


class UnfinishedPool:
    """Unfinished frames of logged-on connections, by owner, oldest first."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._shares: dict[str, dict[InputBufferUsage, None]] = {}
        self._share_bytes: Counter[str] = Counter()

    def change(self, frame: InputBufferUsage, before: int) -> None:
        """Update the totals for a frame that had `before` bytes.

        Beyond the limit other frames are given up.

        Raises:
            ClientError: input_full, when this frame is the oldest one of the owner with most bytes.
        """
        more = frame.nbytes - before
        self.nbytes += more
        self._share_bytes[frame.share] += more
        if more < 0:  # a part of it was processed, so the remaining bytes are newer
            self._forget(frame)
        if frame.nbytes:
            self._shares.setdefault(frame.share, {}).setdefault(frame)
        while more > 0 and self.nbytes > UNFINISHED_BYTES:
            share = max(self._shares, key=self._share_bytes.__getitem__)
            oldest = next(iter(self._shares[share]))
            if oldest is frame:
                raise _input_full()
            oldest.give_up(_input_full())
            oldest.set_bytes(0)

    def renew(self, frame: InputBufferUsage) -> None:
        """Make a frame the newest of its owner."""
        self._forget(frame)
        self._shares.setdefault(frame.share, {})[frame] = None

    def _forget(self, frame: InputBufferUsage) -> None:
        """Remove a frame from the lists of its owner."""
        of_share = self._shares.get(frame.share, {})
        of_share.pop(frame, None)
        if not of_share:
            self._shares.pop(frame.share, None)
            if not self._share_bytes[frame.share]:
                del self._share_bytes[frame.share]


class PendingConnections:
    """Connections of one instance that have not logged on yet, and limits per address.

    Times are monotonic milliseconds.
    """

    def __init__(self) -> None:
        self._max_connections = MAX_CONNECTIONS
        self._number = 0
        """Number of connections of all addresses."""
        self.pool = UnfinishedPool()
        self.buffered = self.input = 0
        """Bytes of buffered input: `buffered` before the logon, `input` after it."""
        self.connections: Counter[str] = Counter()
        self._pending_by_address: dict[str, dict[PendingConnection, None]] = {}
        """Connections before their logon by address, oldest first."""
        self.pending = 0
        self._closing: dict[PendingConnection, None] = {}
        self._logons: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """Remaining logons of each address, and the time of that number, ms."""

    def set_descriptor_limit(self, descriptors: int) -> None:
        """Set the number of files and sockets that the process may open."""
        self._max_connections = min(
            MAX_CONNECTIONS, max(descriptors - RESERVED_DESCRIPTORS, descriptors // 2)
        )

    def add_connection(self, remote: str) -> None:
        """Count a new connection until `remove_connection`.

        Raises:
            ClientError: too_many_connections, when its address or the instance has reached its limit.
        """
        address = peer_address(remote)
        self.connections[address] += 1
        self._number += 1
        if self._number > self._max_connections:
            raise ClientError(
                "too_many_connections",
                f"This instance accepts at most {self._max_connections} connections.",
                "Try again later; an operator can allow the broker's process more open files.",
            )
        if self.connections[address] > MAX_FROM_ADDRESS:
            raise ClientError(
                "too_many_connections",
                f"This instance accepts at most {MAX_FROM_ADDRESS} connections from one address.",
                "Share connections, or connect from more addresses.",
            )

    def remove_connection(self, remote: str) -> None:
        """Stop counting a closed connection."""
        address = peer_address(remote)
        self.connections[address] -= 1
        self._number -= 1
        if not self.connections[address]:
            del self.connections[address]

    def add_pending(self, connection: PendingConnection) -> None:
        """Count a connection as pending.

        It counts until `mark_authenticated`, `mark_closing` or `remove_closing`. At the limit, the oldest one
        of the address with most of them is closed.
        """
        self._pending_by_address.setdefault(peer_address(connection.remote), {})[connection] = None
        self.pending += 1
        if self.pending > min(MAX_PENDING, self._max_connections // 2):
            largest_group = max(self._pending_by_address.values(), key=len)
            next(iter(largest_group)).evict()

    def mark_authenticated(self, connection: PendingConnection) -> None:
        """Stop counting a connection as pending: it has logged on, or another limit applies to it."""
        address = peer_address(connection.remote)
        of_address = self._pending_by_address.get(address, {})
        if connection in of_address:
            del of_address[connection]
            self.pending -= 1
            if not of_address:
                del self._pending_by_address[address]

    def mark_closing(self, connection: PendingConnection) -> None:
        """Count a pending connection as closing.

        Beyond MAX_CLOSING, drop the one that is closing for longest.
        """
        self.mark_authenticated(connection)
        self._closing[connection] = None
        if len(self._closing) > MAX_CLOSING:
            longest = next(iter(self._closing))
            del self._closing[longest]
            longest.drop()

    def remove_closing(self, connection: PendingConnection) -> None:
        """Stop counting a connection whose socket is closed."""
        self.mark_authenticated(connection)
        self._closing.pop(connection, None)

    def check_logon_rate(self, remote: str, now: int) -> None:
        """Count a logon of the connection's address.

        Raises:
            ClientError: too_many_logons, when the address has logged on too often recently.
        """
        address = peer_address(remote)
        tokens, at = self._logons.pop(address, (float(LOGON_BURST), now))
        tokens = min(tokens + (now - at) * LOGONS_PER_SECOND / 1_000, LOGON_BURST)
        allowed = tokens >= 1
        self._logons[address] = (tokens - 1 if allowed else tokens, now)
        if len(self._logons) > MAX_REMEMBERED:
            self._logons.popitem(last=False)
        if not allowed:
            raise ClientError(
                "too_many_logons",
                "Too many clients are logging on from that address.",
                "Try again in a moment.",
                retry_after_ms=1_000,
            )

    def on_logged_on(self, nbytes: int) -> None:
        """Move a connection's buffered bytes from the total before the logon to the one after it."""
        self.buffered -= nbytes
        self.input += nbytes

    def reserve_input(self, more: int, *, logged_on: bool) -> None:
        """Add to the bytes of buffered input; negative to subtract.

        Raises:
            ClientError: input_full, when the total grows beyond its limit.
        """
        if logged_on:
            self.input += more
        else:
            self.buffered += more
        if more > 0 and (self.input > INPUT_BYTES if logged_on else self.buffered > BUFFER_BYTES):
            raise _input_full()


def _input_full() -> ClientError:
    return ClientError(
        "input_full",
        "This instance has reached its limit for input from clients.",
        "Send whole frames, and wait for the logon's answer before others.",
    )


READS_PER_ITERATION: Final = 8
"""Maximum number of sockets read per iteration.

asyncio's transports read one iteration later, some 0.2 ms each. The time budget doesn't include that reading,
so the number is limited as well.
"""
ACCEPTS_PER_ITERATION: Final = 4
"""Maximum number of connections that a listener accepts per iteration. The others wait in the kernel."""
PENDING_READ_BYTES: Final = 64 * 1024
"""Maximum bytes of one read before the logon."""
_ONCE: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLONESHOT

ReadCallback = Callable[[], None]


class PreLogonReadQueue:
    """Fair reading from all connections of one instance before their logon.

    It belongs to the loop of its first reader.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._line = select.epoll()
        self._waiting: dict[int, ReadCallback] = {}
        """Callbacks by file descriptor."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def add_reader(self, descriptor: int, on_readable: ReadCallback) -> None:
        """Call `on_readable` once, in a later iteration, when the socket is readable or at its end."""
        self._waiting[descriptor] = on_readable
        try:
            self._line.modify(descriptor, _ONCE)
        except FileNotFoundError:
            self._line.register(descriptor, _ONCE)
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._line.fileno(), self._read_some)

    def remove_reader(self, descriptor: int, on_readable: ReadCallback) -> None:
        """Cancel a callback.

        Harmless after the call, and when the closed descriptor was reused for another socket.
        """
        if self._waiting.get(descriptor) == on_readable:
            del self._waiting[descriptor]
            with contextlib.suppress(OSError):  # the socket is closed
                self._line.unregister(descriptor)
            self._suspend()

    def _read_some(self) -> None:
        """Call readable sockets' callbacks until the number or time budget of an iteration is used up."""
        began = self._clock.monotonic_ns()
        for _ in range(READS_PER_ITERATION):
            found = self._line.poll(0, 1)
            if not found:
                break
            callback = self._waiting.pop(found[0][0], None)
            if callback is not None:
                callback()
            if self._clock.monotonic_ns() - began >= ITERATION_BUDGET_NS:
                break
        self._suspend()

    def _suspend(self) -> None:
        """Remove the epoll from the loop if no callback is registered."""
        if not self._waiting and self._loop is not None:
            self._loop.remove_reader(self._line.fileno())
            self._loop = None
