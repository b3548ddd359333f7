"""Control link between machines: the control socket's protocol over TLS and TCP, with tokens.

The control plane connects. The broker authenticates with its certificate, the control plane with a token, in
the `hello` that is the first line. Unauthenticated connections are limited in number, bytes and time.

The broker stores hashes of tokens in a file, one per line:

    sha256$<64 hexadecimal digits> console      # a name for people follows the hash

The file is checked for every request, so a client whose line is removed is refused immediately.
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

from broker_core.access.credential_hashes import MAX_SECRET_CHARACTERS, hash_token, token_hash_problem
from broker_core.config import TlsSettings
from broker_core.control.line_stream import LineStream
from broker_core.control.link_certificate import LinkCertificate
from broker_core.errors import OperatorError

MAX_TOKENS = 100
"""Maximum hashes in the file."""
MAX_BYTES = 64 * 1024
"""Maximum size of the file."""


class ControlTokenFile:
    """File of token hashes, read again when it has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int, int] | None = None
        self._hashes: tuple[str, ...] = ()

    def is_valid(self, token: str) -> bool:
        """Return whether the token's hash is in the file now.

        Raises:
            OperatorError: bad_control_link, when the file cannot be read.
        """
        presented, found = hash_token(token[:MAX_SECRET_CHARACTERS]), False
        for known in self.read():  # compare with all, so that the time reveals nothing
            found |= hmac.compare_digest(presented, known)
        return found

    def read(self) -> tuple[str, ...]:
        """Return the hashes. Raises OperatorError bad_control_link."""
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
        """Parse the file. Raises OperatorError bad_control_link."""
        lines = [line.split() for line in text.splitlines()]
        hashes = tuple(words[0] for words in lines if words and not words[0].startswith("#"))
        if len(hashes) > MAX_TOKENS:
            raise self._bad(f"it has over {MAX_TOKENS} lines")
        for number, hashed in enumerate(hashes, 1):
            if problem := token_hash_problem(hashed):
                raise self._bad(f"hash {number} can't be used: {problem}")
        return hashes

    def _bad(self, reason: str) -> OperatorError:
        return OperatorError(
            "bad_control_link",
            f"The file of tokens {self.path} can't be used: {reason}.",
            "Name a file with a hash of `manage.py controltoken` on each line (SLUICE_CONTROL_TOKENS).",
        )


HANDSHAKE_S: Final = 10.0
"""Timeout of the TLS handshake, and again of the `hello`."""
RETRY_DELAY_S: Final = 1.0
"""Pause after the kernel could not provide a connection: no descriptors or no memory."""
IDLE_S: Final = 60.0
"""Timeout between two requests, and for the peer to read a reply."""
MAX_UNPROVEN: Final = 16
"""Maximum connections before their `hello`. For one more, the oldest of them is closed."""
MAX_PROVEN: Final = 64
"""Maximum authenticated connections. A console with its workers needs a few."""
MAX_HELLO: Final = 4_096
"""Maximum bytes of the first line."""
CHECK_INTERVAL_S: Final = 60.0
"""Interval of checks of the certificate's files. Each new connection causes a check, too."""
LOG_INTERVAL_S: Final = 10.0
"""Minimum time between two log lines about refusals for one reason. Those in between are counted."""
CERTIFICATE_REJECTION_ALERTS: Final = (
    "CERTIFICATE_EXPIRED",
    "UNKNOWN_CA",
    "BAD_CERTIFICATE",
    "CERTIFICATE_UNKNOWN",
)
"""TLS alerts of a peer that rejects the certificate, as OpenSSL's reasons end."""
log = structlog.get_logger("sluice.control")


@dataclass(frozen=True, slots=True)
class ControlLinkSettings:
    """Address of the control link, its certificate, and the file of token hashes."""

    host: str
    port: int
    tls: TlsSettings
    tokens: Path


def read_link_settings(listen: str, certificate: str, key: str, tokens: str) -> ControlLinkSettings | None:
    """Return the settings of the link from their text values; None where `listen` is empty.

    Raises:
        OperatorError: bad_control_link.
    """
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
    """Log of refused peers: the first for each reason immediately, later ones as a count."""

    def __init__(self) -> None:
        self._logged_at: dict[str, float] = {}
        self._unlogged: Counter[str] = Counter()

    def add(self, peer: str, reason: str) -> None:
        """Record a refused peer. `reason` is one of a few sentences."""
        if monotonic() - self._logged_at.get(reason, -LOG_INTERVAL_S) < LOG_INTERVAL_S:
            self._unlogged[reason] += 1
            return
        log.warning("control_link_refused", peer=peer, why=reason, more=self._unlogged.pop(reason, 0))
        self._logged_at[reason] = monotonic()


class ControlTlsListener:
    """Listener that accepts TLS connections, authenticates them by token, and passes their lines on."""

    def __init__(
        self,
        settings: ControlLinkSettings,
        greet: Callable[[bytes], tuple[str, bytes]],
        answer: Callable[[bytes], Awaitable[bytes]],
        refusal: bytes,
        max_line: int,
    ) -> None:
        """Create a listener that is not listening yet.

        Args:
            settings: Address, certificate and file of tokens.
            greet: Parses a first line; returns its token ("" for none), and the reply for a valid token.
            answer: Returns the reply to a line.
            refusal: Reply to a peer without a valid token.
            max_line: Maximum bytes of a request.
        """
        self._settings, self._greet, self._answer, self._refusal = settings, greet, answer, refusal
        self._max_line = max_line
        self._tokens = ControlTokenFile(settings.tokens)
        self._refusals = RefusedPeerLog()
        self._listening: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._open: set[asyncio.Task[None]] = set()
        self._unproven: dict[asyncio.Task[None], str] = {}
        """Address of each unauthenticated connection, by task, oldest first."""
        self._unstarted: dict[asyncio.Task[None], socket.socket] = {}
        """Sockets of connections whose task has not started."""
        self._proven = 0
        self.port = 0

    async def listen(self) -> None:
        """Start listening.

        Raises:
            OperatorError: bad_control_link, bad_certificate or port_taken.
        """
        settings = self._settings
        self._tokens.read()
        certificate = LinkCertificate(settings.tls)
        loop = asyncio.get_running_loop()
        try:
            addresses = await loop.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
            for family, address in dict.fromkeys((listener[0], listener[4]) for listener in addresses):
                listener = socket.create_server(
                    (str(address[0]), int(address[1])), family=family, backlog=MAX_PROVEN
                )
                listener.setblocking(False)
                self._listening.append(listener)
        except OSError as problem:
            self._stop_listening()
            raise OperatorError(
                "port_taken",
                f"The control link can't listen on {settings.host}:{settings.port}: {problem}.",
                "Stop the process that listens there, or set SLUICE_CONTROL_LISTEN to another address.",
            ) from None
        self._accepting = [
            loop.create_task(self._accept(listener, certificate), name="control-accept")
            for listener in self._listening
        ]
        self._accepting.append(
            loop.create_task(self._watch_certificate(certificate), name="control-certificate")
        )
        self.port = self._listening[0].getsockname()[1]
        log.info("control_link_listens", host=settings.host, port=self.port)

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        self._stop_listening()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _stop_listening(self) -> None:
        """Stop accepting, and close the listening sockets."""
        for task in self._accepting:
            task.cancel()
        for one in self._listening:
            one.close()
        self._accepting, self._listening = [], []

    async def _watch_certificate(self, certificate: LinkCertificate) -> None:
        """Check the certificate's files regularly."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            certificate.reload_if_changed()

    async def _accept(self, listener: socket.socket, certificate: LinkCertificate) -> None:
        """Accept connections one at a time.

        asyncio's own TLS servers do not report a connection before its handshake is done, so any number of
        silent peers could each occupy a descriptor.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(listener)
            except ConnectionError:
                continue  # the peer has disconnected already
            except OSError as problem:
                log.error("no_connection_taken", why=str(problem))
                await asyncio.sleep(RETRY_DELAY_S)
                continue
            certificate.reload_if_changed()
            self._start_connection(accepted, peer, certificate.context)
            await asyncio.sleep(0)  # let other tasks run

    def _start_connection(self, accepted: socket.socket, peer: Any, context: ssl.SSLContext) -> None:
        """Start the task of an accepted connection.

        If there are too many unauthenticated connections, the oldest of them is closed.
        """
        if len(self._unproven) >= MAX_UNPROVEN:
            oldest = next(iter(self._unproven))
            self._refusals.add(self._unproven.pop(oldest), "too many connections")
            oldest.cancel()
        task = asyncio.get_running_loop().create_task(
            self._handle_connection(accepted, str(peer[0]), context), name="control-link"
        )
        self._open.add(task)
        self._unproven[task], self._unstarted[task] = str(peer[0]), accepted
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        """Clean up after a connection's task."""
        self._open.discard(task)
        self._unproven.pop(task, None)
        if (unstarted := self._unstarted.pop(task, None)) is not None:
            unstarted.close()

    async def _handle_connection(self, accepted: socket.socket, peer: str, context: ssl.SSLContext) -> None:
        """Do the handshake, serve the connection, and close it."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        del self._unstarted[task]  # from here on the transport owns the socket and closes it
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,  # on uvloop the returned protocol is another object
                accepted,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_S,
            )
        except OSError as problem:  # the peer disconnected, was too slow, or does not speak TLS
            self._log_failed_handshake(peer, problem)
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            await self._serve(LineStream(reader, writer), peer, task)
        except (ConnectionError, TimeoutError, ssl.SSLError, ValueError) as problem:
            # The peer disconnected, was too slow, or sent too long a line.
            log.debug("control_link_ended", peer=peer, why=repr(problem))
        finally:
            transport.abort() if task.cancelling() else writer.close()
            with suppress(Exception):
                async with asyncio.timeout(1.0):
                    await writer.wait_closed()

    def _log_failed_handshake(self, peer: str, problem: OSError) -> None:
        """Log a failed handshake. A TLS alert shows that the peer rejects the certificate."""
        reason = problem.reason or "" if isinstance(problem, ssl.SSLError) else ""
        if (
            alert := next(
                (alert_name for alert_name in CERTIFICATE_REJECTION_ALERTS if reason.endswith(alert_name)),
                None,
            )
        ) is not None:
            alert_text = alert.lower().replace("_", " ")
            self._refusals.add(peer, f"it doesn't believe this broker's certificate ({alert_text})")
            return
        log.debug("control_link_ended", peer=peer, why=repr(problem))

    async def _serve(self, lines: LineStream, peer: str, task: asyncio.Task[None]) -> None:
        """Authenticate a connection by its first line, then reply to its requests."""
        async with asyncio.timeout(HANDSHAKE_S):
            first = await lines.read(MAX_HELLO)
        if first is None:
            return
        token, welcome = self._greet(first)
        if not self._is_valid_token(token):
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
                    line = await lines.read(self._max_line)
                if line is None:
                    return
                if not self._is_valid_token(token):  # the token was revoked meanwhile
                    self._refusals.add(peer, "its token was revoked")
                    await self._write(lines, self._refusal)
                    return
                await self._write(lines, await self._answer(line))
        finally:
            self._proven -= 1

    def _is_valid_token(self, token: str) -> bool:
        """Return whether a token is valid; False if the file cannot be read."""
        try:
            return self._tokens.is_valid(token)
        except OperatorError as problem:
            log.error("control_tokens_unreadable", why=problem.sentence, fix=problem.fix)
            return False

    async def _write(self, lines: LineStream, answer: bytes) -> None:
        """Write a reply within IDLE_S."""
        async with asyncio.timeout(IDLE_S):
            await lines.write(answer)


def unauthorized_error() -> OperatorError:
    """Return the error for a peer without a valid token."""
    return OperatorError(
        "control_refused",
        "The broker doesn't know this token.",
        (
            "Put the hash of the console's token into the broker's SLUICE_CONTROL_TOKENS file (`manage.py "
            "controltoken`)."
        ),
    )
