"""Table of all connections, and of the logged-on clients by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from broker_core.connections.admission import PendingConnections
from broker_core.connections.connection_view import ConnectionView
from broker_core.delivery.account import DeliveryAccount
from broker_core.errors import ClientError


class ConnectionTable:
    """Connections of one instance."""

    def __init__(self, pending_connections: PendingConnections) -> None:
        self.pending_connections = pending_connections
        self.connections: set[ConnectionView] = set()
        self.clients: dict[str, ConnectionView] = {}
        """Logged-on clients by name."""
        self.closing: set[ConnectionView] = set()
        """Clients that were sent the reason of their closing and may still answer."""
        self.ended_account = DeliveryAccount()
        """Sum of the delivery accounts of all disconnected clients."""
        self.on_connected: Callable[[ConnectionView], None] | None = None
        self.on_logged_on: Callable[[ConnectionView, str], None] | None = None
        """Called when a client has logged on; set in a group."""

    def __iter__(self) -> Iterator[ConnectionView]:
        return iter(list(self.connections))

    def add(self, connection: ConnectionView) -> None:
        """Add a new connection of a transport. It is closed immediately when there are too many."""
        self.connections.add(connection)
        if self.on_connected is not None:
            self.on_connected(connection)
        try:
            self.pending_connections.add_connection(connection.remote)
        except ClientError as error:
            connection.close(error.code, error.sentence, error.fix)
            return
        self.pending_connections.add_pending(connection)

    def log_on(self, connection: ConnectionView, name: str) -> None:
        """Register a client under its name.

        A connected client of the same name gets a notice and is closed.
        """
        before = self.clients.get(name)
        if before is not None:
            before.close(
                "client_replaced", f"Another client logged on as {name}, from {connection.sink.remote}."
            )
        self.clients[name] = connection
        if self.on_logged_on is not None:
            self.on_logged_on(connection, name)
        self.pending_connections.mark_authenticated(connection)

    def remove(self, connection: ConnectionView) -> None:
        """Remove a connection that has ended.

        Before its logon, it stays counted as closing until its socket is closed.
        """
        if connection in self.connections:
            self.connections.discard(connection)
            self.pending_connections.remove_connection(connection.remote)
            if not connection.logged_on:
                self.pending_connections.mark_closing(connection)
        if self.clients.get(connection.name) is connection:
            del self.clients[connection.name]

    def close_transport(self, name: str) -> None:
        """Close the clients of a transport that was disabled or moved."""
        for connection in self:
            if connection.transport == name:
                connection.close("transport_closed", f"The transport {name} was closed by an operator.")
