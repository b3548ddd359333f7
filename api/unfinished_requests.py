"""Limits on unfinished requests and buffered bodies of the web process, per address and in total."""

from __future__ import annotations

from typing import Final, Protocol

MAX_PER_ADDRESS: Final = 128
"""Maximum connections of one address that wait for a request or send one.

For IPv6 a /64 network counts as one address.
"""
MAX_TOGETHER: Final = 1_024
"""Maximum connections of all addresses that wait for a request or send one."""
BODY_BYTES_PER_ADDRESS: Final = 16 * 1024 * 1024
"""Maximum body bytes of one address in memory. A body counts until its request is answered."""
BODY_BYTES_TOGETHER: Final = 64 * 1024 * 1024
"""Maximum body bytes of all addresses in memory."""


class RequestConnection(Protocol):
    """Connection whose request is not yet complete."""

    def evict(self) -> None:
        """Close the connection to free a slot for another. `remove` was called before."""


class UnfinishedRequests:
    """Registry of connections that wait for a request or send one, and of body bytes, by address.

    The empty address has no limit of its own, because a trusted proxy carries requests of many addresses.
    """

    def __init__(self) -> None:
        self._connections: dict[str, dict[RequestConnection, None]] = {}
        self._connection_count = 0
        self._body_bytes: dict[str, int] = {}
        self._total_body_bytes = 0

    def enter(self, address: str, connection: RequestConnection) -> None:
        """Count a connection.

        If a limit is exceeded, the oldest connection is closed: that of this address, or of the address
        with most connections.
        """
        self._connections.setdefault(address, {})[connection] = None
        self._connection_count += 1
        if address and len(self._connections[address]) > MAX_PER_ADDRESS:
            self._close_oldest(address)
        if self._connection_count > MAX_TOGETHER:
            self._close_oldest(max(self._connections, key=lambda one: len(self._connections[one])))

    def remove(self, address: str, connection: RequestConnection) -> None:
        """Stop counting a connection, because its request is complete or it was closed.

        Does nothing for a connection that is not counted.
        """
        of_address = self._connections.get(address, {})
        if connection in of_address:
            del of_address[connection]
            self._connection_count -= 1
            if not of_address:
                del self._connections[address]

    def reserve_body(self, address: str, nbytes: int) -> bool:
        """Count `nbytes` of a body if both limits allow it. Returns whether they do."""
        reserved = self._body_bytes.get(address, 0) + nbytes
        if (
            address and reserved > BODY_BYTES_PER_ADDRESS
        ) or self._total_body_bytes + nbytes > BODY_BYTES_TOGETHER:
            return False
        self._body_bytes[address] = reserved
        self._total_body_bytes += nbytes
        return True

    def release_body(self, address: str, nbytes: int) -> None:
        """Stop counting `nbytes` that `reserve_body` counted."""
        self._total_body_bytes -= nbytes
        remaining = self._body_bytes.get(address, 0) - nbytes
        if remaining > 0:
            self._body_bytes[address] = remaining
        else:
            self._body_bytes.pop(address, None)

    def _close_oldest(self, address: str) -> None:
        oldest = next(iter(self._connections[address]))
        self.remove(address, oldest)
        oldest.evict()
