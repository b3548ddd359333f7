"""Who may use the control link: tokens, of which the broker keeps hashes in a file, one a line.

    sha256$<64 hexadecimal digits> console      # what follows is a name, for people

The file is looked at again for every request, so a line that is taken out shuts its holder out at once.

The control link between machines: the control socket's protocol over TLS and TCP.

The control plane dials. The broker proves itself by its certificate; the control plane proves itself by a token, with `hello` as the
first line. What isn't proven has little room and little time.
"""

from __future__ import annotations

import asyncio
import hmac
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

from broker_core.access.credential_hashes import MAX_SECRET, hash_token, token_hash_problem
from broker_core.config import TlsSettings
from broker_core.control.line_stream import LineStream
from broker_core.control.link_certificate import LinkCertificate
from broker_core.errors import OperatorError

MAX_TOKENS = 100
MAX_BYTES = 64 * 1024


class ControlTokenFile:
    """The file of hashes, read again when it has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int, int] | None = None
        self._hashes: tuple[str, ...] = ()

    def is_valid(self, token: str) -> bool:
        """Whether the token's hash is in the file now. Raises OperatorError bad_control_link when that can't be read."""
        presented, found = hash_token(token[:MAX_SECRET]), False
        for known in self.read():  # all of them, whichever it is: the time taken says nothing
            found |= hmac.compare_digest(presented, known)
        return found

    def read(self) -> tuple[str, ...]:
        """The hashes. OperatorError bad_control_link."""
        try:
            status = self.path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp != self._stamp:
                if status.st_size > MAX_BYTES:
                    raise self._bad(f"it has over {MAX_BYTES} bytes")
                self._hashes, self._stamp = self._hashes_in(self.path.read_text("utf-8")), stamp
        except (OSError, UnicodeDecodeError) as problem:
            raise self._bad(str(problem)) from None
        return self._hashes

    def _hashes_in(self, text: str) -> tuple[str, ...]:
        lines = [line.split() for line in text.splitlines()]
        hashes = tuple(words[0] for words in lines if words and not words[0].startswith("#"))
        if len(hashes) > MAX_TOKENS:
            raise self._bad(f"it has over {MAX_TOKENS} lines")
        for number, hashed in enumerate(hashes, 1):
            if problem := token_hash_problem(hashed):
                raise self._bad(f"hash {number} can't be used: {problem}")
        return hashes

    def _bad(self, why: str) -> OperatorError:
        return OperatorError(
            "bad_control_link",
            f"The file of tokens {self.path} can't be used: {why}.",
            "Name a file with a hash of `manage.py controltoken` on each line (SLUICE_CONTROL_TOKENS).",
        )


HANDSHAKE_S: Final = 10.0
"""For the TLS handshake, and once more for the `hello`."""
RETRY_DELAY_S: Final = 1.0
"""After the kernel had no connection to give: no descriptors, no memory."""
IDLE_S: Final = 60.0
"""Between two requests, and for an answer to be taken."""
MAX_UNPROVEN: Final = 16
"""Connections that are in their handshake or haven't said `hello`. For one more the oldest of them makes room."""
MAX_PROVEN: Final = 64
"""Connections at once. A console with its workers needs a handful."""
MAX_HELLO: Final = 4_096
"""Bytes of the first line."""
CHECK_INTERVAL_S: Final = 60.0
"""Between two looks at the certificate's files; each connection makes one too."""
SAID_INTERVAL_S: Final = 10.0
"""Refusals for one reason between two lines of the log are counted, not told."""
DISBELIEF: Final = ("CERTIFICATE_EXPIRED", "UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN")
"""Alerts of TLS, as OpenSSL's reasons end."""
log = structlog.get_logger("sluice.control")


@dataclass(frozen=True, slots=True)
class ControlLinkSettings:
    """Where the broker listens for the control plane, as whom, and where the hashes of its tokens are."""

    host: str
    port: int
    tls: TlsSettings
    tokens: Path


def read_link_settings(listen: str, certificate: str, key: str, tokens: str) -> ControlLinkSettings | None:
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
            (
                "Set SLUICE_CONTROL_CERTIFICATE, SLUICE_CONTROL_KEY and SLUICE_CONTROL_TOKENS beside "
                "SLUICE_CONTROL_LISTEN."
            ),
        )
    return ControlLinkSettings(host.strip("[]"), int(port), TlsSettings(certificate, key), Path(tokens))


class RefusedPeerLog:
    """Tells the log of refused peers: the first for each reason at once, then how many more there were for it."""

    def __init__(self) -> None:
        self._said_at: dict[str, float] = {}
        self._unsaid: Counter[str] = Counter()

    def add(self, peer: str, why: str) -> None:
        """One more. `why` is one of a few sentences."""
        if monotonic() - self._said_at.get(why, -SAID_INTERVAL_S) < SAID_INTERVAL_S:
            self._unsaid[why] += 1
            return
        log.warning("control_link_refused", peer=peer, why=why, more=self._unsaid.pop(why, 0))
        self._said_at[why] = monotonic()


class ControlTlsListener:
    """Listens with TLS, lets in who has a token, and hands each of its lines on."""

    def __init__(
        self,
        settings: ControlLinkSettings,
        greet: Callable[[bytes], tuple[str, bytes]],
        answer: Callable[[bytes], Awaitable[bytes]],
        refusal: bytes,
        most_line: int,
    ) -> None:
        """`greet` reads a first line: its token, "" for none, and the answer to it from who is let in. `refusal` is the others'.
        `most_line`: bytes of a request."""
        self._settings, self._greet, self._answer, self._refusal = settings, greet, answer, refusal
        self._most_line = most_line
        self._tokens = ControlTokenFile(settings.tokens)
        self._refusals = RefusedPeerLog()
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
                    (str(address[0]), int(address[1])), family=family, backlog=MAX_PROVEN
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
            await asyncio.sleep(CHECK_INTERVAL_S)
            certificate.reload_if_changed()

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
                await asyncio.sleep(RETRY_DELAY_S)
                continue
            certificate.reload_if_changed()
            self._take(taken, peer, certificate.context)
            await asyncio.sleep(0)  # others want their turn

    def _take(self, taken: socket.socket, peer: Any, context: ssl.SSLContext) -> None:
        if len(self._unproven) >= MAX_UNPROVEN:
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
            await self._serve(LineStream(reader, writer), peer, task)
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

    async def _serve(self, lines: LineStream, peer: str, task: asyncio.Task[None]) -> None:
        async with asyncio.timeout(HANDSHAKE_S):
            first = await lines.read(MAX_HELLO)
        if first is None:
            return
        token, welcome = self._greet(first)
        if not self._holds(token):
            self._refusals.add(peer, "its token isn't known" if token else "it gave no token")
            await self._write(lines, self._refusal)
            return
        if self._proven >= MAX_PROVEN:
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
            return self._tokens.is_valid(token)
        except OperatorError as problem:
            log.error("control_tokens_unreadable", why=problem.sentence, fix=problem.fix)
            return False

    async def _write(self, lines: LineStream, answer: bytes) -> None:
        async with asyncio.timeout(IDLE_S):
            await lines.write(answer)


def unauthorized_error() -> OperatorError:
    """What somebody without a good token is told."""
    return OperatorError(
        "control_refused",
        "The broker doesn't know this token.",
        (
            "Put the hash of the console's token into the broker's SLUICE_CONTROL_TOKENS file (`manage.py "
            "controltoken`)."
        ),
    )
