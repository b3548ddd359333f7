"""Requests that the web process has not received whole: how many an address may have, and what bodies may
hold in memory."""

from __future__ import annotations

from typing import Final, Protocol

MAX_PER_ADDRESS: Final = 128
"""Connections of one address (of IPv6, of a network of 64 bits) that wait for a request or send one."""
MAX_TOGETHER: Final = 1_024
BODY_BYTES_PER_ADDRESS: Final = 16 * 1024 * 1024
"""Bodies of one address that are in memory, until their requests are answered."""
BODY_BYTES_TOGETHER: Final = 64 * 1024 * 1024


class RequestConnection(Protocol):
    """A connection whose request is not whole yet."""

    def make_room(self) -> None:
        """Close the connection: another one needs its place. `leave` was called before."""


class UnfinishedRequests:
    """Connections that wait for a request or send one, and the bytes of bodies, by address.

    An empty address has no share of its own: a trusted proxy carries the requests of many.
    """

    def __init__(self) -> None:
        self._connections: dict[str, dict[RequestConnection, None]] = {}
        self._connection_count = 0
        self._body_bytes: dict[str, int] = {}
        self._all_body_bytes = 0

    def enter(self, address: str, connection: RequestConnection) -> None:
        """Count a connection.

        Beyond a bound the oldest one of the address, or of the address with most, is closed.
        """
        self._connections.setdefault(address, {})[connection] = None
        self._connection_count += 1
        if address and len(self._connections[address]) > MAX_PER_ADDRESS:
            self._close_oldest(address)
        if self._connection_count > MAX_TOGETHER:
            self._close_oldest(max(self._connections, key=lambda one: len(self._connections[one])))

    def leave(self, address: str, connection: RequestConnection) -> None:
        """Stop counting a connection: its request is whole, or it is closed. Does nothing the second time."""
        of_address = self._connections.get(address, {})
        if connection in of_address:
            del of_address[connection]
            self._connection_count -= 1
            if not of_address:
                del self._connections[address]

    def hold_body(self, address: str, nbytes: int) -> bool:
        """Count bytes of a body if there is room for them; return whether there was."""
        held = self._body_bytes.get(address, 0) + nbytes
        if (address and held > BODY_BYTES_PER_ADDRESS) or self._all_body_bytes + nbytes > BODY_BYTES_TOGETHER:
            return False
        self._body_bytes[address] = held
        self._all_body_bytes += nbytes
        return True

    def release_body(self, address: str, nbytes: int) -> None:
        """Stop counting bytes of a body that `hold_body` counted."""
        self._all_body_bytes -= nbytes
        left = self._body_bytes.get(address, 0) - nbytes
        if left > 0:
            self._body_bytes[address] = left
        else:
            self._body_bytes.pop(address, None)

    def _close_oldest(self, address: str) -> None:
        oldest = next(iter(self._connections[address]))
        self.leave(address, oldest)
        oldest.make_room()
