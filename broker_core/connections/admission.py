"""What may be cost by whom nobody knows yet: connections before their logon, and an address's share.

A frame before the logon has BEFORE_LOGON bytes at most (the transports hold to it). All connections that haven't logged on
hold BUFFER_BYTES together of what they sent, unfinished frames or such that wait to be taken, and all that have
INPUT_BYTES, of which UNFINISHED_BYTES are for unfinished frames; who would pass that is closed and may come
back. MAX_GUESTS wait for their logon at a time: for one more the oldest of the address that has most makes
room, so that whoever logs on at once comes in, however many others don't. An address has its share of the
instance's connections, and of logons a second.

The door: whoever nobody knows yet is heard by turns, and those that are known go first.

A loop calls for everything that is ready in one turn, and a thousand strangers that speak at once would keep it for a second. So their
sockets are not the loop's. They stand in a line that the kernel keeps, an epoll of their own: of those that have sent something a few are heard in each
turn of the loop, for no longer than a client's own commands may take (`delivery.scheduling`), and the others a turn later. What they say
meanwhile waits in the kernel. Who is being closed and still sends stands there too.
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
from broker_core.delivery.scheduling import TURN_NS
from broker_core.errors import ClientError

BUFFER_BYTES: Final = 4 * 1024 * 1024
INPUT_BYTES: Final = 1024 * 1024 * 1024
UNFINISHED_BYTES: Final = 256 * 1024 * 1024
"""Unfinished frames and open transactions of all connections that have logged on: those of 16 publishers of
the largest frames. Beyond it the oldest unfinished frame of the user, or address, that has most is given
up."""
MAX_GUESTS: Final = 1_100
"""Connections before their logon, also such as are still asking for a WebSocket. More than the 1,024 that a listener may take from
its kernel in one turn, before any of them was heard."""
MAX_LEAVING: Final = 200
"""Those of them that were told to go, and haven't read it yet."""
MAX_FROM_ADDRESS: Final = 10_000
"""Connections of one address: half of the instance's."""
DESCRIPTORS_KEPT: Final = 2_048
"""Of the process's, for files, and for connections that are taken from the kernel in one turn and then refused; half of
them where there are fewer than twice as many. Without one the log can't open its next segment, and the broker ends."""
LOGONS_A_SECOND: Final = 1_000
LOGONS_AT_ONCE: Final = 10_000
"""Of one address, after it has been quiet: whoever comes back together does so at once."""
MAX_REMEMBERED: Final = 10_000
"""Addresses whose logons are counted; the longest quiet go first."""


def peer_address(remote: str) -> str:
    """A peer's address without its port."""
    return remote.rpartition(":")[0]


class PendingConnection(Protocol):
    """A connection that hasn't logged on."""

    @property
    def remote(self) -> str: ...

    def close_for_room(self) -> None:
        """Another comes: say so, and end."""

    def drop(self) -> None:
        """End at once, whatever the peer has read."""


class InputBufferUsage:
    """Bytes that one connection holds in one place of what it sent: of an unfinished frame, or of frames that
    wait.

    `give_up` ends the connection and frees those bytes. Without it they wait for the broker, not for the
    client, and are never given up.
    """

    __slots__ = ("_anteroom", "_give_up", "_logged_on", "nbytes", "share")

    def __init__(
        self, anteroom: PendingConnections, give_up: Callable[[ClientError], None] | None = None
    ) -> None:
        self._anteroom = anteroom
        self._give_up = give_up
        self._logged_on = False
        self.nbytes = 0
        self.share = ""
        """User, or address of a client without one, in whose share the bytes count after the logon."""

    def set_bytes(self, nbytes: int) -> None:
        """Set the number of bytes. Raises ClientError input_full when it grows and there is no room."""
        if nbytes != self.nbytes:
            before, self.nbytes = self.nbytes, nbytes
            try:
                self._anteroom.reserve_input(nbytes - before, logged_on=self._logged_on)
            finally:  # both count it before either refuses it
                if self._logged_on and self._give_up is not None:
                    self._anteroom.pool.change(self, before)

    def progress(self) -> None:
        """Record that a frame became whole: what is held now is of a younger one."""
        if self.nbytes and self._logged_on and self._give_up is not None:
            self._anteroom.pool.renew(self)

    def on_logged_on(self, share: str = "") -> None:
        """Count with the connections that have logged on, in the share of a user or an address."""
        self._anteroom.on_logged_on(self.nbytes)
        self._logged_on, self.share = True, share
        if self._give_up is not None:
            self._anteroom.pool.change(self, 0)

    def give_up(self, error: ClientError) -> None:
        """Free the bytes, and end the connection with an error."""
        assert self._give_up is not None
        self._give_up(error)


class UnfinishedPool:
    """Unfinished frames of connections that have logged on, by share, the oldest first."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._shares: dict[str, dict[InputBufferUsage, None]] = {}
        self._share_bytes: Counter[str] = Counter()

    def change(self, frame: InputBufferUsage, before: int) -> None:
        """Count a frame that had `before` bytes.

        Beyond the pool others are given up, or ClientError input_full is raised.
        """
        more = frame.nbytes - before
        self.nbytes += more
        self._share_bytes[frame.share] += more
        if more < 0:  # a part of it was taken: what is left is younger
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
        """Make a frame the youngest of its share."""
        self._forget(frame)
        self._shares.setdefault(frame.share, {})[frame] = None

    def _forget(self, frame: InputBufferUsage) -> None:
        of_share = self._shares.get(frame.share, {})
        of_share.pop(frame, None)
        if not of_share:
            self._shares.pop(frame.share, None)
            if not self._share_bytes[frame.share]:
                del self._share_bytes[frame.share]


class PendingConnections:
    """One instance's. Times are milliseconds of the clock that never jumps."""

    def __init__(self) -> None:
        self._most = MAX_CONNECTIONS
        self._number = 0
        """Of all addresses' connections."""
        self.pool = UnfinishedPool()
        self.held = self.input = 0
        """Bytes of what is unfinished or waits, before and after the logon."""
        self.connections: Counter[str] = Counter()
        self._guests: dict[str, dict[PendingConnection, None]] = {}
        """By their address, the oldest first."""
        self.guests = 0
        self._leaving: dict[PendingConnection, None] = {}
        self._logons: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """What is left of each address's allowance, and when that was so."""

    def set_descriptor_limit(self, descriptors: int) -> None:
        """The process may open so many files and sockets."""
        self._most = min(MAX_CONNECTIONS, max(descriptors - DESCRIPTORS_KEPT, descriptors // 2))

    def add_connection(self, remote: str) -> None:
        """A connection was made. ClientError too_many_connections when its address has enough, or all together have; it counts
        until `went`."""
        address = peer_address(remote)
        self.connections[address] += 1
        self._number += 1
        if self._number > self._most:
            raise ClientError(
                "too_many_connections",
                f"This instance accepts at most {self._most} connections.",
                "Try again later; an operator can allow the broker's process more open files.",
            )
        if self.connections[address] > MAX_FROM_ADDRESS:
            raise ClientError(
                "too_many_connections",
                f"This instance accepts at most {MAX_FROM_ADDRESS} connections from one address.",
                "Share connections, or connect from more addresses.",
            )

    def remove_connection(self, remote: str) -> None:
        """It is gone."""
        address = peer_address(remote)
        self.connections[address] -= 1
        self._number -= 1
        if not self.connections[address]:
            del self.connections[address]

    def add_pending(self, guest: PendingConnection) -> None:
        """A connection begins, which is nobody's yet. It counts until it is `known`, `leaves`, or is `gone`."""
        self._guests.setdefault(peer_address(guest.remote), {})[guest] = None
        self.guests += 1
        if self.guests > min(MAX_GUESTS, self._most // 2):
            most = max(self._guests.values(), key=len)
            next(iter(most)).close_for_room()

    def mark_authenticated(self, guest: PendingConnection) -> None:
        """It has logged on, or somebody else counts it."""
        address = peer_address(guest.remote)
        of_address = self._guests.get(address, {})
        if guest in of_address:
            del of_address[guest]
            self.guests -= 1
            if not of_address:
                del self._guests[address]

    def mark_closing(self, guest: PendingConnection) -> None:
        """It was told to go, and still has a socket. The longest told is dropped when there are many."""
        self.mark_authenticated(guest)
        self._leaving[guest] = None
        if len(self._leaving) > MAX_LEAVING:
            longest = next(iter(self._leaving))
            del self._leaving[longest]
            longest.drop()

    def remove_closing(self, guest: PendingConnection) -> None:
        """Its socket is closed."""
        self.mark_authenticated(guest)
        self._leaving.pop(guest, None)

    def check_logon_rate(self, remote: str, now: int) -> None:
        """ClientError too_many_logons when its address has logged on too often of late."""
        address = peer_address(remote)
        left, at = self._logons.pop(address, (float(LOGONS_AT_ONCE), now))
        left = min(left + (now - at) * LOGONS_A_SECOND / 1_000, LOGONS_AT_ONCE)
        allowed = left >= 1
        self._logons[address] = (left - 1 if allowed else left, now)
        if len(self._logons) > MAX_REMEMBERED:
            self._logons.popitem(last=False)
        if not allowed:
            raise ClientError(
                "too_many_logons",
                "Too many clients are logging on from that address.",
                "Try again in a moment.",
                retry_after_ms=1_000,
            )

    def on_logged_on(self, held: int) -> None:
        """A connection that holds so much has logged on."""
        self.held -= held
        self.input += held

    def reserve_input(self, more: int, *, logged_on: bool) -> None:
        """A connection holds so many bytes more of what it sent, or less. ClientError input_full."""
        if logged_on:
            self.input += more
        else:
            self.held += more
        if more > 0 and (self.input > INPUT_BYTES if logged_on else self.held > BUFFER_BYTES):
            raise _input_full()


def _input_full() -> ClientError:
    return ClientError(
        "input_full",
        "This instance holds as much input from clients as it accepts.",
        "Send whole frames, and wait for the logon's answer before others.",
    )


HEARD_A_TURN: Final = 8
"""Sockets at most. asyncio's transports read one turn later, which no clock here measures: some 0.2 ms each."""
ACCEPTED_A_TURN: Final = 4
"""Connections that a listener takes from its kernel in a turn; the others wait there."""
GUEST_READ_BYTES: Final = 64 * 1024
"""What is read at once of somebody whom nobody knows."""
_ONCE: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLONESHOT

Heard = Callable[[], None]


class PreLogonReadQueue:
    """One instance's. Belongs to the loop that runs when the first is watched."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._line = select.epoll()
        self._waiting: dict[int, Heard] = {}
        """By their descriptors."""
        self._loop: asyncio.AbstractEventLoop | None = None

    def add_reader(self, descriptor: int, heard: Heard) -> None:
        """Call this once, in a turn of its own, when the socket has something to be read, or an end."""
        self._waiting[descriptor] = heard
        try:
            self._line.modify(descriptor, _ONCE)
        except FileNotFoundError:
            self._line.register(descriptor, _ONCE)
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._line.fileno(), self._turn)

    def remove_reader(self, descriptor: int, heard: Heard) -> None:
        """Don't call it. Harmless when it was called, and when the descriptor is closed and another's."""
        if self._waiting.get(descriptor) == heard:
            del self._waiting[descriptor]
            with contextlib.suppress(OSError):  # it is closed
                self._line.unregister(descriptor)
            self._rest()

    def _turn(self) -> None:
        began = self._clock.monotonic_ns()
        for _ in range(HEARD_A_TURN):
            found = self._line.poll(0, 1)
            if not found:
                break
            heard = self._waiting.pop(found[0][0], None)
            if heard is not None:
                heard()
            if self._clock.monotonic_ns() - began >= TURN_NS:
                break
        self._rest()

    def _rest(self) -> None:
        """Nobody is there: the loop needn't look."""
        if not self._waiting and self._loop is not None:
            self._loop.remove_reader(self._line.fileno())
            self._loop = None
