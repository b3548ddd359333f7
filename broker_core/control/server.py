"""Control server: requests of the control plane over a Unix socket, and optionally over TLS.

Only the owner of the socket file can open it. Each line is one JSON object. A request {"do": name, ...} is
one of `documents.requests`; its reply is {"ok": true, "result": ...} or {"ok": false, "error": {code,
message, fix, details}}. Lines have a maximum length. Work on files happens in a thread.

The first line over TLS is {"do": "hello", "token": ...}. On the socket, a client that can open it is
authenticated, and `hello` only reports which broker replies.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Union

import msgspec
import numpy as np
import structlog

from broker_core.activity import LAST
from broker_core.control.line_stream import LineStream
from broker_core.control.requests.dispatch_table import Handler
from broker_core.control.tls_listener import ControlLinkSettings, ControlTlsListener, unauthorized_error
from broker_core.documents.requests import Hello, Request, Welcome, request_name
from broker_core.errors import OperatorError, SluiceError

MAX_LINE = 4 * 1024 * 1024
"""Maximum bytes of one request."""
log = structlog.get_logger("sluice.control")


class ControlServer:
    """Server of the control socket and, if configured, of the TLS link."""

    def __init__(
        self,
        path: Path,
        handlers: Mapping[type[Request[Any]], Handler],
        welcome: Welcome | None = None,
        link: ControlLinkSettings | None = None,
    ) -> None:
        """Create a server that is not listening yet.

        Args:
            path: Path of the control socket.
            handlers: Handler of each request type.
            welcome: Reply to `hello`: which broker this is.
            link: Settings of the TLS link; None without one.
        """
        self._path = path
        self._welcome = welcome
        self._handlers: dict[type[Request[Any]], Handler] = dict(handlers)
        if welcome is not None:
            self._handlers[Hello] = self._hello
        self._link: ControlTlsListener | None = None
        if link is not None:
            refusal = _failure(unauthorized_error())
            self._link = ControlTlsListener(link, self._greet, self._answer, refusal, MAX_LINE)
        self._decoder = msgspec.json.Decoder(Union[tuple(self._handlers)])  # noqa: UP007 (a computed union)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def listen(self) -> None:
        """Start serving.

        A socket file that a dead broker left is replaced. The journal's lock ensures that no other broker is
        alive.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Before bind: Linux gives the file the socket's mode (unix_bind), so that only its owner can ever
        # open it. A umask would apply to the whole process, also to files of other threads.
        os.fchmod(listening.fileno(), 0o600)
        listening.bind(str(self._path))
        self._server = await asyncio.start_unix_server(self._serve, sock=listening)
        if self._link is not None:
            await self._link.listen()

    @property
    def link_port(self) -> int:
        """Port of the TLS link; 0 without one."""
        return self._link.port if self._link is not None else 0

    async def close(self) -> None:
        """Stop serving and remove the socket."""
        if self._link is not None:
            await self._link.close()
        if self._server is not None:
            self._server.close()
            for writer in list(self._open):
                writer.close()
            await self._server.wait_closed()
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to the control socket."""
        self._open.add(writer)
        try:
            lines = LineStream(reader, writer)
            while (line := await lines.read(MAX_LINE)) is not None:
                await lines.write(await self._answer(line))
        except (ConnectionError, ValueError):
            pass  # the peer disconnected, or sent too long a line: the connection ends
        finally:
            self._open.discard(writer)
            writer.close()

    async def _answer(self, line: bytes) -> bytes:
        """Return the reply to one request line. Never raises."""
        try:
            request = self._read(line)
            LAST.latest, LAST.periodic_task = "periodic_task", f"control request {request_name(request)}"
            return _result(await self._handlers[type(request)](request))
        except SluiceError as error:
            return _failure(error)
        except Exception as problem:
            log.exception("control_request_failed")
            return _failure(
                OperatorError("internal_error", f"The broker failed: {problem!r}.", "See the broker's log.")
            )

    async def _hello(self, request: Hello) -> Welcome:
        """Reply to `hello` on the socket."""
        assert self._welcome is not None
        return self._welcome

    def _greet(self, line: bytes) -> tuple[str, bytes]:
        """Return the token of the first line over the link, and the reply for a valid token.

        The token is "" if the line is no valid `hello`.
        """
        try:
            return _HELLO.decode(line).token, _result(self._welcome)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return "", b""

    def _read(self, line: bytes) -> Request[Any]:
        """Parse a request. Raises OperatorError bad_request."""
        try:
            request: Request[Any] = self._decoder.decode(line)
        except msgspec.ValidationError as problem:
            raise self._refusal(str(problem)) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise OperatorError(
                "bad_request", f"The request isn't JSON: {problem}.", "One object a line."
            ) from None
        return request

    def _refusal(self, problem: str) -> OperatorError:
        """Return bad_request with the field's name, extracted from msgspec's message."""
        named = re.search(r"field `([^`]+)`|at `\$\.([^`.\[]+)", problem)
        field = (named[1] or named[2]) if named is not None else ""
        if field in ("", "do"):
            return OperatorError(
                "bad_request",
                "This broker doesn't know the request.",
                f"do is one of {', '.join(sorted(map(request_name, self._handlers)))}.",
                field="do",
            )
        sentence, _, _ = problem.partition(" - at ")
        return OperatorError(
            "bad_request", f"{field}: {sentence}.", f"Give {field} in the required format.", field=field
        )


_HELLO = msgspec.json.Decoder(Hello)


def _result(result: object) -> bytes:
    """Return the line of a successful reply."""
    return msgspec.json.encode({"ok": True, "result": result}, enc_hook=_plain) + b"\n"


def _failure(error: SluiceError) -> bytes:
    """Return the line of an error reply."""
    return msgspec.json.encode({"ok": False, "error": error.as_dict()}, enc_hook=_plain) + b"\n"


def _plain(value: object) -> object:
    """Convert NumPy scalars for JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} isn't JSON")
