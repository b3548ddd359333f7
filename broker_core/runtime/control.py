"""The control socket: how the control plane talks to a broker. A Unix socket that only its owner can open.

One JSON object a line each way: {"do": name, ...} is answered {"ok": true, "result": ...} or {"ok": false,
"error": {code, message, fix, details}}. Lines have a limit; work on files happens in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import structlog

from broker_core.errors import OperatorError, SluiceError

MAX_LINE = 4 * 1024 * 1024
"""Bytes of one request."""

Handler = Callable[[dict[str, Any]], Awaitable[Any]]
log = structlog.get_logger("sluice.control")


class ControlServer:
    """Serves the control socket with a table of handlers by name."""

    def __init__(self, path: Path, handlers: dict[str, Handler]) -> None:
        self._path = path
        self._handlers = handlers
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def listen(self) -> None:
        """Start serving; a socket file that a dead broker left is replaced (the journal's lock rules out a live one)."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        before = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._serve, str(self._path), limit=MAX_LINE)
        finally:
            os.umask(before)

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
                writer.write(orjson.dumps(await self._answer(line), option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError):
            pass  # the peer left, or sent a line over the limit: the connection ends
        finally:
            self._open.discard(writer)
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            return {"ok": True, "result": await self._do(line)}
        except SluiceError as error:
            return {"ok": False, "error": error.as_dict()}
        except Exception as problem:
            log.exception("control_request_failed")
            failure = OperatorError("internal_error", f"The broker failed: {problem!r}.", "See the broker's log.")
            return {"ok": False, "error": failure.as_dict()}

    async def _do(self, line: bytes) -> Any:
        try:
            request = orjson.loads(line)
        except orjson.JSONDecodeError as problem:
            raise OperatorError("bad_request", f"The request isn't JSON: {problem}.", "One object a line.") from None
        handler = self._handlers.get(request.pop("do", None)) if isinstance(request, dict) else None
        if handler is None:
            raise OperatorError("bad_request", "The request names nothing this broker does.",
                                f"do is one of {', '.join(sorted(self._handlers))}.")
        return await handler(request)
