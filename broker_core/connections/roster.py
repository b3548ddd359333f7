"""Who is connected: every connection, and the clients among them by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from broker_core.connections.admission import PendingConnections
from broker_core.connections.connection_view import ConnectionView
from broker_core.delivery.account import DeliveryAccount
from broker_core.errors import ClientError


class ConnectionTable:
    """One instance's."""

    def __init__(self, anteroom: PendingConnections) -> None:
        self.anteroom = anteroom
        self.connections: set[ConnectionView] = set()
        self.clients: dict[str, ConnectionView] = {}
        """Those that are logged on."""
        self.parting: set[ConnectionView] = set()
        """Clients that were told why they are closed, and may still answer."""
        self.gone = DeliveryAccount()
        """What became of everything that was for clients that have left."""
        self.on_connected: Callable[[ConnectionView], None] | None = None
        self.on_logged_on: Callable[[ConnectionView, str], None] | None = None
        """Called when a client has taken a name; set in a group."""

    def __iter__(self) -> Iterator[ConnectionView]:
        return iter(list(self.connections))

    def add(self, connection: ConnectionView) -> None:
        """A transport has a new connection; it is closed at once when there are too many."""
        self.connections.add(connection)
        if self.on_connected is not None:
            self.on_connected(connection)
        try:
            self.anteroom.add_connection(connection.remote)
        except ClientError as error:
            connection.close(error.code, error.sentence, error.fix)
            return
        self.anteroom.add_pending(connection)

    def log_on(self, connection: ConnectionView, name: str) -> None:
        """A client takes a name. One of the same name that is connected is told, and replaced."""
        before = self.clients.get(name)
        if before is not None:
            before.close(
                "client_replaced", f"Another client logged on as {name}, from {connection.sink.remote}."
            )
        self.clients[name] = connection
        if self.on_logged_on is not None:
            self.on_logged_on(connection, name)
        self.anteroom.mark_authenticated(connection)

    def remove(self, connection: ConnectionView) -> None:
        if connection in self.connections:
            self.connections.discard(connection)
            self.anteroom.remove_connection(connection.remote)
            if not connection.logged_on:
                self.anteroom.mark_closing(connection)
        if self.clients.get(connection.name) is connection:
            del self.clients[connection.name]

    def close_transport(self, name: str) -> None:
        """A transport was disabled or moved: its clients are told and closed."""
        for connection in self:
            if connection.transport == name:
                connection.close("transport_closed", f"The transport {name} was closed by an operator.")
