"""The control link between machines: the control socket's protocol over TLS and TCP.

The control plane dials. The broker proves itself by its certificate; the control plane proves itself by a token, with `hello` as the
first line. What isn't proven has little room and little time.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Final

import structlog

from broker_core.config import TlsSettings
from broker_core.control.certificate import LinkCertificate
from broker_core.control.lines import Lines
from broker_core.control.proof import Tokens
from broker_core.errors import OperatorError

HANDSHAKE_S: Final = 10.0
"""For the TLS handshake, and once more for the `hello`."""
AGAIN_S: Final = 1.0
"""After the kernel had no connection to give: no descriptors, no memory."""
IDLE_S: Final = 60.0
"""Between two requests, and for an answer to be taken."""
MOST_UNPROVEN: Final = 16
"""Connections that are in their handshake or haven't said `hello`. For one more the oldest of them makes room."""
MOST_PROVEN: Final = 64
"""Connections at once. A console with its workers needs a handful."""
MOST_HELLO: Final = 4_096
"""Bytes of the first line."""
LOOK_S: Final = 60.0
"""Between two looks at the certificate's files; each connection makes one too."""
SAID_EVERY_S: Final = 10.0
"""Refusals for one reason between two lines of the log are counted, not told."""
DISBELIEF: Final = ("CERTIFICATE_EXPIRED", "UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN")
"""Alerts of TLS, as OpenSSL's reasons end."""
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
            f"{listen[:80]!r} isn't an address to listen on.",
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
    """Tells the log of refused peers: the first for each reason at once, then how many more there were for it."""

    def __init__(self) -> None:
        self._said_at: dict[str, float] = {}
        self._unsaid: Counter[str] = Counter()

    def add(self, peer: str, why: str) -> None:
        """One more. `why` is one of a few sentences."""
        if monotonic() - self._said_at.get(why, -SAID_EVERY_S) < SAID_EVERY_S:
            self._unsaid[why] += 1
            return
        log.warning("control_link_refused", peer=peer, why=why, more=self._unsaid.pop(why, 0))
        self._said_at[why] = monotonic()


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
        self._listening: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._open: set[asyncio.Task[None]] = set()
        self._unproven: dict[asyncio.Task[None], str] = {}
        """And from where; the longest there first."""
        self._taken: dict[asyncio.Task[None], socket.socket] = {}
        """Of those whose task hasn't begun."""
        self._proven = 0
        self.port = 0

    async def listen(self) -> None:
        """Raises OperatorError bad_control_link, bad_certificate, port_taken."""
        settings = self._settings
        self._tokens.read()
        certificate = LinkCertificate(settings.tls)
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
            for family, address in dict.fromkeys((one[0], one[4]) for one in found):
                made = socket.create_server(
                    (str(address[0]), int(address[1])), family=family, backlog=MOST_PROVEN
                )
                made.setblocking(False)
                self._listening.append(made)
        except OSError as problem:
            self._listen_no_more()
            raise OperatorError(
                "port_taken",
                f"The control link can't listen on {settings.host}:{settings.port}: {problem}.",
                "Stop what listens there, or set SLUICE_CONTROL_LISTEN to another address.",
            ) from None
        self._accepting = [
            loop.create_task(self._accept(one, certificate), name="control-accept") for one in self._listening
        ]
        self._accepting.append(loop.create_task(self._follow(certificate), name="control-certificate"))
        self.port = self._listening[0].getsockname()[1]
        log.info("control_link_listens", host=settings.host, port=self.port)

    async def close(self) -> None:
        """Listen no more, and end what is open."""
        self._listen_no_more()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _listen_no_more(self) -> None:
        for task in self._accepting:
            task.cancel()
        for one in self._listening:
            one.close()
        self._accepting, self._listening = [], []

    async def _follow(self, certificate: LinkCertificate) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            certificate.look()

    async def _accept(self, listening: socket.socket, certificate: LinkCertificate) -> None:
        """Take connections one by one. asyncio's own servers with TLS tell nobody of one before its handshake is done, and any number
        of silent peers would have a descriptor each."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                taken, peer = await loop.sock_accept(listening)
            except ConnectionError:
                continue  # it has left again
            except OSError as problem:
                log.error("no_connection_taken", why=str(problem))
                await asyncio.sleep(AGAIN_S)
                continue
            certificate.look()
            self._take(taken, peer, certificate.context)
            await asyncio.sleep(0)  # others want their turn

    def _take(self, taken: socket.socket, peer: Any, context: ssl.SSLContext) -> None:
        if len(self._unproven) >= MOST_UNPROVEN:
            oldest = next(iter(self._unproven))
            self._refusals.add(self._unproven.pop(oldest), "too many connections")
            oldest.cancel()
        task = asyncio.get_running_loop().create_task(
            self._welcome(taken, str(peer[0]), context), name="control-link"
        )
        self._open.add(task)
        self._unproven[task], self._taken[task] = str(peer[0]), taken
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        self._unproven.pop(task, None)
        if (never_begun := self._taken.pop(task, None)) is not None:
            never_begun.close()

    async def _welcome(self, taken: socket.socket, peer: str, context: ssl.SSLContext) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        del self._taken[task]  # from here on it is its transport's, which closes it
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,  # what is returned beside is another's on uvloop
                taken,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_S,
            )
        except OSError as problem:  # it left, was too slow, or speaks no TLS
            self._not_met(peer, problem)
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            await self._serve(Lines(reader, writer), peer, task)
        except (ConnectionError, TimeoutError, ssl.SSLError, ValueError) as problem:
            # The peer left, was too slow, or sent a line over its limit.
            log.debug("control_link_ended", peer=peer, why=repr(problem))
        finally:
            transport.abort() if task.cancelling() else writer.close()
            with suppress(Exception):
                async with asyncio.timeout(1.0):
                    await writer.wait_closed()

    def _not_met(self, peer: str, problem: OSError) -> None:
        """A handshake that failed. What a peer has against the certificate it says with an alert."""
        reason = problem.reason or "" if isinstance(problem, ssl.SSLError) else ""
        if (about := next((said for said in DISBELIEF if reason.endswith(said)), None)) is not None:
            why = about.lower().replace("_", " ")
            self._refusals.add(peer, f"it doesn't believe this broker's certificate ({why})")
            return
        log.debug("control_link_ended", peer=peer, why=repr(problem))

    async def _serve(self, lines: Lines, peer: str, task: asyncio.Task[None]) -> None:
        async with asyncio.timeout(HANDSHAKE_S):
            first = await lines.read(MOST_HELLO)
        if first is None:
            return
        token, welcome = self._greet(first)
        if not self._holds(token):
            self._refusals.add(peer, "its token isn't known" if token else "it gave no token")
            await self._write(lines, self._refusal)
            return
        if self._proven >= MOST_PROVEN:
            self._refusals.add(peer, "too many connections")
            return
        self._unproven.pop(task, None)
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
