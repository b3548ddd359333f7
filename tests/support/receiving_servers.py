"""A real mail server and a real web server that store what they receive, for tests of outgoing traffic."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller


class Mailbox:
    """Received mails. While `refusing` is set, each mail gets a temporary error."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.recipients: list[list[str]] = []
        self.refusing = False
        self.port = 0

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        """Store one mail, or refuse it."""
        if self.refusing:
            return "451 later, please"
        mail = message_from_bytes(envelope.content, policy=policy.default)
        assert isinstance(mail, EmailMessage)
        self.mails.append(mail)
        self.recipients.append(list(envelope.rcpt_tos))
        return "250 taken"


class _OnFreePort(Controller):
    """A controller that checks its server at the port where it really listens."""

    def _trigger_server(self) -> None:
        assert self.server is not None
        self.port = self.server.sockets[0].getsockname()[1]
        super()._trigger_server()


@contextmanager
def mail_server() -> Iterator[Mailbox]:
    """Run an SMTP server on a free port of loopback."""
    box = Mailbox()
    controller = _OnFreePort(box, hostname="127.0.0.1", port=0)
    controller.start()
    box.port = controller.port
    try:
        yield box
    finally:
        controller.stop()


class Hook:
    """Received calls; `status` is the HTTP status of the answers."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.status = 204
        self.port = 0


@contextmanager
def web_sink() -> Iterator[Hook]:
    """Run an HTTP server on a free port of loopback that accepts POSTs."""
    hook = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if hook.status < 300:
                hook.calls.append(json.loads(body))
            hook.keys.append(self.headers["Idempotency-Key"])
            self.send_response(hook.status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hook.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield hook
    finally:
        server.shutdown()
        server.server_close()
