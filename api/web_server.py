"""Web process: daphne with bounds on requests, over plain HTTP or TLS. The supervisor starts it.

    python -m api.web_server HOST PORT console.project.asgi:application [CERTIFICATE KEY]

daphne's own `-e ssl:…` needs the chain in a file without its first certificate, and Twisted would prompt on
the terminal for a key's passphrase. This module takes the same files as a transport: one chain, a key
without a passphrase, TLS 1.2 or newer.
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
"""Maximum bytes of a message that a browser sends on the live feed."""
BACKLOG: Final = 1_024
"""Maximum connections that wait in the kernel to be accepted.

Beyond it the kernel drops a browser's first packet, which is sent again after 1, 3 and 7 s. Twisted's
default of 50 was exceeded by a few hundred simultaneous connections.
"""


class EscapingAccessLog(AccessLogGenerator):
    """Access log of daphne that escapes the request line, which a stranger controls."""

    def write_entry(self, host: Any, date: Any, request: str, *args: Any, **more: Any) -> None:
        """Write one log line with the request escaped."""
        super().write_entry(host, date, escape_line(request), *args, **more)


class WebServer(Server):
    """daphne's server with bounded requests. The constructor raises OperatorError `bad_certificate`."""

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
            websocket_timeout=-1,  # the live feed's WebSockets have no age limit
            websocket_max_message_size=MAX_FEED_MESSAGE_BYTES,
            websocket_max_frame_size=MAX_FEED_MESSAGE_BYTES,
            **options,
        )
        self.endpoints: list[
            Any
        ] = []  # daphne would create endpoints from strings; it only requires one to be given

    def run(self) -> None:
        """Listen and serve until the process receives a signal."""
        reactor.callWhenRunning(self._listen)
        super().run()

    def _listen(self) -> None:
        self.http_factory = BoundedHTTPFactory(self)
        self.ws_factory.protocol = FeedProtocol
        listener = self._endpoint.listen(self.http_factory)
        listener.addCallbacks(self.listen_success, self.listen_error)
        self.listeners.append(listener)


def main() -> None:
    """Serve the console until the process is stopped. Reads its arguments from `sys.argv`."""
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
