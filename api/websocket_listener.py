"""A WebSocket transport of the broker: daphne with the consumer of `transport_consumer`."""

from __future__ import annotations

from typing import Any

from api.transport_consumer import ClientConsumer
from api.websocket_server import PacedServer
from broker_core.config import TransportSettings
from broker_core.runtime.host import Host

_ANSWER = b"This is a Sluice transport: connect with a WebSocket.\n"


class WebSocketListener(PacedServer):
    """Listens for clients of a WebSocket transport."""

    def __init__(self, host: Host, settings: TransportSettings) -> None:
        async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
            if scope["type"] == "websocket":
                await ClientConsumer(host, settings.name)(scope, receive, send)
                return
            headers = [(b"content-type", b"text/plain"), (b"upgrade", b"websocket")]
            await send({"type": "http.response.start", "status": 426, "headers": headers})
            await send({"type": "http.response.body", "body": _ANSWER})

        super().__init__(application, settings.host, settings.port, settings.tls)
