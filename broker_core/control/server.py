"""The control socket: how the control plane talks to a broker. A Unix socket that only its owner can open.

One JSON object a line each way: {"do": name, ...}, one of `documents.requests`, is answered {"ok": true, "result": ...} or
{"ok": false, "error": {code, message, fix, details}}. Lines have a limit; work on files happens in a thread.
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

from broker_core.control.requests.table import Handler
from broker_core.documents.requests import Request, name_of
from broker_core.errors import OperatorError, SluiceError

MAX_LINE = 4 * 1024 * 1024
"""Bytes of one request."""
log = structlog.get_logger("sluice.control")


class ControlServer:
    """Serves the control socket with a table of handlers by request."""

    def __init__(self, path: Path, handlers: Mapping[type[Request[Any]], Handler]) -> None:
        self._path = path
        self._handlers = handlers
        self._decoder = msgspec.json.Decoder(Union[tuple(handlers)])  # noqa: UP007 (of as many as there are)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def listen(self) -> None:
        """Start serving; a socket file that a dead broker left is replaced (the journal's lock rules out a live one)."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Linux gives the file the socket's own mode (unix_bind): its owner's alone from its first moment. A umask would
        # be the whole process's, for every file that another thread makes in that moment.
        os.fchmod(listening.fileno(), 0o600)
        listening.bind(str(self._path))
        self._server = await asyncio.start_unix_server(self._serve, sock=listening, limit=MAX_LINE)

    async def close(self) -> None:
        """Stop serving and remove the socket."""
        if self._server is not None:
            self._server.close()
            for writer in list(self._open):
                writer.close()
            await self._server.wait_closed()
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while line := await reader.readline():
                writer.write(msgspec.json.encode(await self._answer(line), enc_hook=_plain) + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError):
            pass  # the peer left, or sent a line over the limit: the connection ends
        finally:
            self._open.discard(writer)
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, object]:
        try:
            request = self._read(line)
            return {"ok": True, "result": await self._handlers[type(request)](request)}
        except SluiceError as error:
            return {"ok": False, "error": error.as_dict()}
        except Exception as problem:
            log.exception("control_request_failed")
            failure = OperatorError(
                "internal_error", f"The broker failed: {problem!r}.", "See the broker's log."
            )
            return {"ok": False, "error": failure.as_dict()}

    def _read(self, line: bytes) -> Request[Any]:
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
        """bad_request with the field's name, from what msgspec says."""
        named = re.search(r"field `([^`]+)`|at `\$\.([^`.\[]+)", problem)
        field = (named[1] or named[2]) if named is not None else ""
        if field in ("", "do"):
            return OperatorError(
                "bad_request",
                "The request names nothing this broker does.",
                f"do is one of {', '.join(sorted(map(name_of, self._handlers)))}.",
                field="do",
            )
        sentence, _, _ = problem.partition(" - at ")
        return OperatorError(
            "bad_request", f"{field}: {sentence}.", f"Give {field} as it is asked for.", field=field
        )


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} isn't JSON")
