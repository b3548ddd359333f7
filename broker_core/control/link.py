"""The control link between machines: the control socket's protocol over TLS and TCP.

The control plane dials. The broker proves itself by its certificate; the control plane proves itself by a token, with `hello` as the
first line. What isn't proven has little room and little time.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final

import structlog

from broker_core.access.tls import server_context
from broker_core.config import TlsSettings
from broker_core.control.lines import Lines
from broker_core.control.proof import Tokens
from broker_core.errors import OperatorError

HANDSHAKE_S: Final = 10.0
"""For the TLS handshake, and once more for the `hello`."""
IDLE_S: Final = 60.0
"""Between two requests, and for an answer to be taken."""
MOST_UNPROVEN: Final = 16
MOST_PROVEN: Final = 64
"""Connections at once. A console with its workers needs a handful."""
MOST_HELLO: Final = 4_096
"""Bytes of the first line."""
SAID_EVERY_S: Final = 10.0
"""Refusals between two lines of the log are counted, not told."""
log = structlog.get_logger("sluice.control")


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """Where the broker listens for the control plane, as whom, and where the hashes of its tokens are."""

    host: str
    port: int
    tls: TlsSettings
    tokens: Path


def read_link(listen: str, certificate: str, key: str, tokens: str) -> LinkSettings | None:
    """The settings; None where nothing is to listen. Raises OperatorError bad_control_link."""
    if not listen:
        return None
    host, _, port = listen.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65_535:
        raise OperatorError(
            "bad_control_link",
            f"{listen[:80]!r} is no address to listen at.",
            "SLUICE_CONTROL_LISTEN=HOST:PORT",
        )
    if not (certificate and key and tokens):
        raise OperatorError(
            "bad_control_link",
            "The control link needs a certificate, its key, and a file of tokens.",
            "Set SLUICE_CONTROL_CERTIFICATE, SLUICE_CONTROL_KEY and SLUICE_CONTROL_TOKENS beside SLUICE_CONTROL_LISTEN.",
        )
    return LinkSettings(host.strip("[]"), int(port), TlsSettings(certificate, key), Path(tokens))


class Refusals:
    """Tells the log of refused peers: the first at once, then how many more there were."""

    def __init__(self) -> None:
        self._said_at = -SAID_EVERY_S
        self._unsaid = 0

    def add(self, peer: str, why: str) -> None:
        """One more."""
        if monotonic() - self._said_at < SAID_EVERY_S:
            self._unsaid += 1
            return
        log.warning("control_link_refused", peer=peer, why=why, more=self._unsaid)
        self._said_at, self._unsaid = monotonic(), 0


class ControlLink:
    """Listens with TLS, lets in who has a token, and hands each of its lines on."""

    def __init__(
        self,
        settings: LinkSettings,
        greet: Callable[[bytes], tuple[str, bytes]],
        answer: Callable[[bytes], Awaitable[bytes]],
        refusal: bytes,
        most_line: int,
    ) -> None:
        """`greet` reads a first line: its token, "" for none, and the answer to it from who is let in. `refusal` is the others'.
        `most_line`: bytes of a request."""
        self._settings, self._greet, self._answer, self._refusal = settings, greet, answer, refusal
        self._most_line = most_line
        self._tokens = Tokens(settings.tokens)
        self._refusals = Refusals()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._proven = 0
        self.port = 0

    async def listen(self) -> None:
        """Raises OperatorError bad_control_link, bad_certificate, port_taken."""
        settings = self._settings
        self._tokens.read()
        context = server_context(settings.tls)
        try:
            self._server = await asyncio.start_server(
                self._accepted, settings.host, settings.port, ssl=context,
                ssl_handshake_timeout=HANDSHAKE_S, backlog=MOST_PROVEN,
            )  # fmt: skip
        except OSError as problem:
            raise OperatorError(
                "port_taken",
                f"The control link can't listen at {settings.host}:{settings.port}: {problem}.",
                "Stop what listens there, or set SLUICE_CONTROL_LISTEN to another address.",
            ) from None
        self.port = self._server.sockets[0].getsockname()[1]
        log.info("control_link_listens", host=settings.host, port=self.port)

    async def close(self) -> None:
        """Listen no more, and end what is open."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        peer = str((writer.get_extra_info("peername") or ("?",))[0])
        try:
            if len(self._open) - self._proven > MOST_UNPROVEN or self._proven >= MOST_PROVEN:
                self._refusals.add(peer, "too many connections")
                return
            await self._serve(Lines(reader, writer), peer)
        except (ConnectionError, TimeoutError, ssl.SSLError, ValueError) as problem:
            # The peer left, was too slow, or sent a line over its limit.
            log.debug("control_link_ended", peer=peer, why=repr(problem))
        finally:
            self._open.discard(task)
            writer.transport.abort() if task.cancelling() else writer.close()
            with suppress(Exception):
                async with asyncio.timeout(1.0):
                    await writer.wait_closed()

    async def _serve(self, lines: Lines, peer: str) -> None:
        async with asyncio.timeout(HANDSHAKE_S):
            first = await lines.read(MOST_HELLO)
        if first is None:
            return
        token, welcome = self._greet(first)
        if not self._holds(token):
            self._refusals.add(peer, "its token isn't known" if token else "it gave no token")
            await self._write(lines, self._refusal)
            return
        self._proven += 1
        try:
            await self._write(lines, welcome)
            while True:
                async with asyncio.timeout(IDLE_S):
                    line = await lines.read(self._most_line)
                if line is None:
                    return
                if not self._holds(token):  # revoked meanwhile
                    self._refusals.add(peer, "its token was taken back")
                    await self._write(lines, self._refusal)
                    return
                await self._write(lines, await self._answer(line))
        finally:
            self._proven -= 1

    def _holds(self, token: str) -> bool:
        try:
            return self._tokens.know(token)
        except OperatorError as problem:
            log.error("control_tokens_unreadable", why=problem.sentence, fix=problem.fix)
            return False

    async def _write(self, lines: Lines, answer: bytes) -> None:
        async with asyncio.timeout(IDLE_S):
            await lines.write(answer)


def refused_error() -> OperatorError:
    """What somebody without a good token is told."""
    return OperatorError(
        "control_refused",
        "The broker doesn't know this token.",
        "Put the hash of the console's token into the broker's SLUICE_CONTROL_TOKENS file (`manage.py controltoken`).",
    )
