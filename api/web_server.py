"""The web process: daphne with bounds on requests, in plain HTTP or with TLS. Started by the supervisor.

    python -m api.web_server HOST PORT console.project.asgi:application [CERTIFICATE KEY]

daphne's own `-e ssl:…` wants the chain in a file without its first certificate, and Twisted would ask at a terminal for a
key's passphrase. Here the files are those of a transport: one chain, a key without a passphrase, TLS 1.2 or newer.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from daphne.access import AccessLogGenerator
from daphne.server import Server
from daphne.utils import import_by_path
from twisted.internet import reactor
from twisted.internet.endpoints import SSL4ServerEndpoint, TCP4ServerEndpoint, TCP6ServerEndpoint

from api.bounded_http import BoundedHTTPFactory, FeedProtocol
from api.broker_websocket.tls import context_factory
from broker_core.config import TlsSettings
from broker_core.errors import OperatorError
from broker_core.safe_text import escape_line

MAX_FEED_MESSAGE_BYTES: Final = 64 * 1024
"""Largest message that a browser sends on the live feed."""
BACKLOG: Final = 1_024
"""Connections that the kernel holds until they are accepted. Beyond it a browser's first packet is dropped and
sent again after 1, 3 and 7 s; with Twisted's 50 a few hundred connections at once were enough."""


class EscapingAccessLog(AccessLogGenerator):
    """daphne's access log; a request's line holds whatever a stranger sent."""

    def write_entry(self, host: Any, date: Any, request: str, *args: Any, **more: Any) -> None:
        """Write one line."""
        super().write_entry(host, date, escape_line(request), *args, **more)


class WebServer(Server):
    """daphne's server with bounded requests. Raises OperatorError bad_certificate when it is made."""

    def __init__(
        self, application: Any, host: str, port: int, tls: TlsSettings | None = None, **options: Any
    ) -> None:
        address = host.strip("[]")
        if tls is not None:
            self._endpoint: Any = SSL4ServerEndpoint(reactor, port, context_factory(tls), BACKLOG, address)
        elif ":" in address:
            self._endpoint = TCP6ServerEndpoint(reactor, port, BACKLOG, address)
        else:
            self._endpoint = TCP4ServerEndpoint(reactor, port, BACKLOG, address)
        super().__init__(
            application,
            endpoints=["own"],
            websocket_timeout=-1,  # the live feed has no age limit
            websocket_max_message_size=MAX_FEED_MESSAGE_BYTES,
            websocket_max_frame_size=MAX_FEED_MESSAGE_BYTES,
            **options,
        )
        self.endpoints: list[
            Any
        ] = []  # daphne would make its own out of texts; it only insists that there be one

    def run(self) -> None:
        """Listen and serve until a signal."""
        reactor.callWhenRunning(self._listen)
        super().run()

    def _listen(self) -> None:
        self.http_factory = BoundedHTTPFactory(self)
        self.ws_factory.protocol = FeedProtocol
        listener = self._endpoint.listen(self.http_factory)
        listener.addCallbacks(self.listen_success, self.listen_error)
        self.listeners.append(listener)


def main() -> None:
    """Serve the console until stopped."""
    host, port, path, *files = sys.argv[1:]
    application = import_by_path(path)
    try:
        tls = TlsSettings(*files) if files else None
        server = WebServer(application, host, int(port), tls, action_logger=EscapingAccessLog(sys.stdout))
    except OperatorError as problem:
        raise SystemExit(escape_line(f"{problem.sentence} {problem.fix}")) from None
    server.run()


if __name__ == "__main__":
    main()
