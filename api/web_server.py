"""The web process over TLS: daphne with the certificate that SLUICE_WEB_TLS_CERTIFICATE names. Started by the supervisor.

    python -m api.web_server HOST PORT CERTIFICATE KEY console.project.asgi:application

daphne's own `-e ssl:…` wants the chain in a file without its first certificate, and Twisted would ask at a terminal for a
key's passphrase. Here the files are those of a transport: one chain, a key without a passphrase, TLS 1.2 or newer.
"""

from __future__ import annotations

import sys
from typing import Any

from daphne.access import AccessLogGenerator
from daphne.server import Server
from daphne.utils import import_by_path
from twisted.internet import reactor
from twisted.internet.endpoints import SSL4ServerEndpoint

from api.broker_websocket.tls import context_factory
from broker_core.config import TlsSettings
from broker_core.errors import OperatorError


class SecureServer(Server):
    """daphne's server behind TLS. Raises OperatorError bad_certificate when it is made."""

    def __init__(self, application: Any, host: str, port: int, tls: TlsSettings, **options: Any) -> None:
        context = context_factory(tls)
        self._endpoint = SSL4ServerEndpoint(reactor, port, context, interface=host.strip("[]"))
        super().__init__(application, endpoints=["tls"], **options)
        self.endpoints = []  # daphne would make its own out of texts; it only insists that there be one

    def run(self) -> None:
        """Listen and serve until a signal."""
        reactor.callWhenRunning(self._listen)  # type: ignore[attr-defined]
        super().run()

    def _listen(self) -> None:
        listener = self._endpoint.listen(self.http_factory)
        listener.addCallbacks(self.listen_success, self.listen_error)
        self.listeners.append(listener)


def main() -> None:
    """Serve the console until stopped."""
    host, port, certificate, key, path = sys.argv[1:]
    application = import_by_path(path)
    try:
        server = SecureServer(
            application,
            host,
            int(port),
            TlsSettings(certificate, key),
            action_logger=AccessLogGenerator(sys.stdout),
        )
    except OperatorError as problem:
        raise SystemExit(f"{problem.sentence} {problem.fix}") from None
    server.run()


if __name__ == "__main__":
    main()
