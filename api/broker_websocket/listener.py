"""Listener of a WebSocket transport: the server of this package with its consumer."""

from __future__ import annotations

from typing import Any

from api.broker_websocket.consumer import ClientConsumer
from api.broker_websocket.server import BackpressureServer
from api.broker_websocket.stomp import StompConsumer
from broker_core.config import TransportSettings
from broker_core.engine.engine import Engine
from broker_core.protocols.stomp.message_frames import MessageTailCache

_ANSWER = b"This is a Sluice transport: connect with a WebSocket.\n"
"""Body of the 426 response to a request that is not a WebSocket handshake."""


class WebSocketListener(BackpressureServer):
    """Listener of one WebSocket transport, for the native protocol or STOMP."""

    def __init__(self, engine: Engine, settings: TransportSettings) -> None:
        tails = MessageTailCache(engine.instance)

        def consumer() -> ClientConsumer:
            if settings.kind == "stomp-ws":
                return StompConsumer(engine, settings.name, settings.origins, tails)
            return ClientConsumer(engine, settings.name, settings.origins)

        async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
            if scope["type"] == "websocket":
                await consumer()(scope, receive, send)
                return
            headers = [(b"content-type", b"text/plain"), (b"upgrade", b"websocket")]
            await send({"type": "http.response.start", "status": 426, "headers": headers})
            await send({"type": "http.response.body", "body": _ANSWER})

        super().__init__(
            application,
            settings.host,
            settings.port,
            engine.pending_connections,
            engine.pre_logon_reads,
            settings.tls,
        )
