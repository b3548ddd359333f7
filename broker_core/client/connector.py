"""When a client that lost its connection tries again, and where: back-off with jitter, over a list of addresses.

Keeps a client connected: opens a link, logs on, and does it again with back-off when it is lost.

What the frames mean is the client's; this is only when there is a link, and who is told.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from ssl import SSLCertVerificationError
from typing import Any, Final, cast

import msgspec

from broker_core.client.links import BrokerAddress, ClientLink, OnFrames, TcpLink
from broker_core.errors import ClientError, OperatorError, SluiceError
from broker_core.protocols import commands
from broker_core.protocols.close_codes import is_permanent
from broker_core.protocols.liveness import FRAME_GRACE_MS
from broker_core.protocols.native import NativeFrame
from broker_core.protocols.replies import (
    Ack,
    CloseRequested,
    ClosingNotice,
    DecisionNotice,
    ErrorReply,
    parse_reply,
)

STEADY_DELAYS: Final = 6
"""A connection that lasted for so many longest delays was good, whatever ended it."""
PLAIN_LOSS: Final = "broker_away"
"""Code of a connection that was lost without a reason."""


@dataclass(frozen=True, slots=True)
class ConnectionLoss:
    """A connection that ended, or could not be made: why, and when the client tries again."""

    error: SluiceError
    """Its code, sentence and fix: the broker's own where it gave a reason."""
    address: str
    failures: int
    """Losses in a row without a good connection between them, this one included."""
    retry_in_s: float | None
    """Seconds until the next attempt; None when the client gives up."""

    def __str__(self) -> str:
        then = "gives up" if self.retry_in_s is None else f"tries again in {self.retry_in_s:.2f} s"
        return f"{self.error} ({self.address}, loss {self.failures} in a row). The client {then}."


@dataclass(frozen=True, slots=True)
class ReconnectPolicy:
    """Delays in seconds. `give_up_after` bounds one outage, None tries for ever; `enabled=False` never tries again.

    The first connection of a client gets `first_connect_timeout`, then start() raises what went wrong. One address
    gets `connect_timeout` to connect and `logon_timeout` to answer the logon before the next one is tried: a broker to which
    thousands come back at once answers late, and who leaves then comes last again. Each is tried before the client gives up.
    """

    enabled: bool = True
    first_delay: float = 0.05
    longest_delay: float = 10.0
    factor: float = 2.0
    jitter: float = 0.5
    give_up_after: float | None = None
    first_connect_timeout: float = 10.0
    connect_timeout: float = 5.0
    logon_timeout: float = 60.0

    def delay(self, attempt: int) -> float:
        """How long to wait before attempt 0, 1, 2, …; the jitter spreads clients that lost the same broker."""
        whole = min(self.longest_delay, self.first_delay * self.factor ** min(attempt, 60))
        return whole * (1 - self.jitter * random.random())


class AddressRotation:
    """Whose turn it is of a number of addresses. Every failure gives it to the next one; a round grows the delay."""

    def __init__(self, number: int, policy: ReconnectPolicy) -> None:
        self.current = 0
        self._number = number
        self._policy = policy
        self._failures = 0
        self._last_code = ""

    @property
    def failures(self) -> int:
        """Losses in a row without a good connection between them."""
        return self._failures

    @property
    def is_round_complete(self) -> bool:
        """Whether each address has failed since one of them held."""
        return self._failures >= self._number

    def note_connection(self, code: str, up_s: float, *, moved: bool) -> None:
        """Start the delays anew if the connection that ended with `code` after `up_s` seconds was a good one.

        A connection that ends for the same reason as the one before it is not good, however long the peers
        took to notice. A plain loss recurs only if nothing was delivered or acknowledged (`moved`).
        """
        same = code == self._last_code and (code != PLAIN_LOSS or not moved)
        recurs = same and up_s < STEADY_DELAYS * self._policy.longest_delay
        if up_s > self._policy.longest_delay and not recurs:
            self._failures = 0
        self._last_code = code

    def on_failure(self) -> float:
        """The current address failed or was lost; how long to wait before trying the one whose turn it is now."""
        delay = self._policy.delay(self._failures // self._number)
        self._failures += 1
        self.current = (self.current + 1) % self._number
        return delay


log = logging.getLogger("sluice.client")
log.addHandler(logging.NullHandler())

_CHECK_INTERVAL_S = 5.0
"""Longest time between two looks at what a connection has carried."""
_DAMAGE = frozenset({"bad_frame", "frame_too_large", "bad_batch", "bad_command", "unknown_command"})
"""What a broker says of bytes that this library doesn't send: they were damaged on their way."""
MAX_DAMAGED = 10
"""Connections in a row that end so, and bring nothing: then it isn't the network."""


@dataclass(slots=True)
class Connector:
    """The supervisor of one client's connection. `run()` is its task."""

    _addresses: Sequence[BrokerAddress]
    _tls: ssl.SSLContext | None
    _logon: commands.Logon
    _session: Callable[[], int]
    """Returns the publisher session that the next logon names."""
    _policy: ReconnectPolicy
    _on_frames: OnFrames
    _check_answer: Callable[[Ack], None]
    """Raises SluiceError for an answer to the logon with which the client can't stay."""
    _on_up: Callable[[ClientLink, Ack], Awaitable[None]]
    _on_down: Callable[[], None]
    _on_loss: Callable[[ConnectionLoss], None]
    link: ClientLink | None = None
    connections: int = 0
    _answer: asyncio.Future[Ack] | None = None
    _wanted_delay: float = 0.0
    _last_word: SluiceError | None = None
    _heard_heartbeat: bool = False
    _damaged: int = 0
    _moved: bool = False
    _closing: bool = False

    async def run(self) -> SluiceError:
        """Connect and reconnect until that is pointless; returns why."""
        turns, down_since = AddressRotation(len(self._addresses), self._policy), _now()
        while True:
            up_at, failure = None, None
            try:
                link, ack = await self._connect(self._addresses[turns.current])
                up_at = _now()
                failure = await self._stay(link, ack)
            except (OSError, TimeoutError, SluiceError) as problem:
                failure = problem
            finally:
                if self.link is not None and not self.link.lost.done():
                    self.link.abort()
                self.link = None
                if self._answer is not None and self._answer.done() and not self._answer.cancelled():
                    self._answer.exception()
                self._on_down()
            error, now = _as_error(failure), _now()
            if up_at is not None:
                down_since = now
                turns.note_connection(error.code, now - up_at, moved=self._moved)
            address = self._addresses[turns.current]
            delay, wanted = turns.on_failure(), self._wanted_delay
            if error.code == "behind" and not turns.is_round_complete:
                wanted = 0.0  # of that broker; the next address is another one's
            delay = max(delay, wanted)
            end = self._pointless(error, now - down_since, turns)
            if not self._closing:
                self._report(ConnectionLoss(error, address.text, turns.failures, None if end else delay))
            if end is not None:
                return end
            await asyncio.sleep(delay)
            self._wanted_delay = 0.0

    def _report(self, loss: ConnectionLoss) -> None:
        """Tell the log and the client. Of many losses in a row the log gets those whose number is a power of
        two."""
        often = loss.failures & (loss.failures - 1) and loss.retry_in_s is not None
        log.log(logging.DEBUG if often else logging.WARNING, "%s: %s", self._logon.name, loss)
        self._on_loss(loss)

    def _pointless(self, error: SluiceError, outage: float, turns: AddressRotation) -> SluiceError | None:
        if isinstance(error, ClientError) and is_permanent(error.code):
            self._damaged = self._damaged + 1 if error.code in _DAMAGE else MAX_DAMAGED
            if self._damaged >= MAX_DAMAGED:
                return error
        was_lost = self.connections > 0 and error.code != "behind"  # a member that is behind refused it
        if not self._policy.enabled and (was_lost or turns.is_round_complete):
            return error
        limit = self._policy.give_up_after if self.connections else self._policy.first_connect_timeout
        return error if limit is not None and outage >= limit and turns.is_round_complete else None

    async def _connect(self, address: BrokerAddress) -> tuple[ClientLink, Ack]:
        """Open a link and log on. Return the link and the broker's answer."""
        self._last_word = None
        self._heard_heartbeat = self._moved = False
        self._answer = asyncio.get_running_loop().create_future()
        link = await open_link(address, self._receive, self._policy.connect_timeout, self._tls)
        self.link = link
        link.send_command(msgspec.structs.replace(self._logon, session=self._session()))
        async with asyncio.timeout(self._policy.logon_timeout):
            either: list[asyncio.Future[Any]] = [self._answer, link.lost]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._answer.done():
            raise self._why(link) or ConnectionResetError("the connection was closed during logon")
        ack = self._answer.result()
        self._check_answer(ack)  # before it counts as a connection: the next address may be better
        # It has promised them: its silence means something from now on.
        self._heard_heartbeat = bool(ack.heartbeat_ms)
        self.connections += 1
        return link, ack

    async def _stay(self, link: ClientLink, ack: Ack) -> Exception | None:
        """Hand the link over and watch it: what was not acknowledged may take long to be sent again."""
        entering = asyncio.ensure_future(self._on_up(link, ack))

        def entered(task: asyncio.Future[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                link.abort(cast(Exception, error))

        entering.add_done_callback(entered)
        try:
            return await self._watch(link)
        finally:
            entering.cancel()

    async def _watch(self, link: ClientLink) -> Exception | None:
        """Send heartbeats until the link is lost or the broker gives no sign of life. Return the reason."""
        interval_ms = self._logon.heartbeat_ms or 0
        pause = min(interval_ms / 4_000, _CHECK_INTERVAL_S) if interval_ms else _CHECK_INTERVAL_S
        said_at = link.now_ms()
        while not link.lost.done():
            await asyncio.wait([link.lost], timeout=pause)
            if link.lost.done():
                break
            link.sample_liveness()
            now, life = link.now_ms(), link.liveness
            if self._heard_heartbeat and life.is_silent(now, interval_ms):
                link.abort(_silent(now - life.heard_at))
            elif life.is_frame_overdue(now):
                link.abort(_overdue())
            elif interval_ms and now - said_at >= interval_ms / 2 and not link.unwritten_bytes:
                # Behind bytes that wait, a heartbeat would arrive no sooner than they do.
                said_at = now
                link.send_command(commands.ClientHeartbeat())
        return self._why(link)

    def _why(self, link: ClientLink) -> Exception | None:
        return self._last_word or (link.lost.result() if link.lost.done() else None)

    def _receive(self, link: ClientLink, frames: list[NativeFrame]) -> None:
        answer = self._answer
        if answer is not None and not answer.done() and frames:
            reply, frames = parse_reply(frames[0].payload), frames[1:]
            if isinstance(reply, Ack) and reply.of == "logon":
                if reply.name not in (None, self._logon.name):
                    raise ClientError("bad_frame", f"The logon arrived as {reply.name!r}'s.", "")
                answer.set_result(reply)
            elif isinstance(reply, ErrorReply | ClosingNotice):
                answer.set_exception(ClientError.from_dict(reply.code, reply.message, reply.fix))
            if isinstance(reply, ClosingNotice):
                self.on_closing(reply)
        if frames:
            self._on_frames(link, frames)

    # What the client hears on our behalf.

    def on_heartbeat(self) -> None:
        """The broker sends heartbeats: from now on its silence means something."""
        self._heard_heartbeat = True

    def on_progress(self) -> None:
        """Something was delivered or acknowledged."""
        self._damaged, self._moved = 0, True

    def on_closing(self, reply: ClosingNotice | DecisionNotice) -> None:
        """The broker says why it will close the connection, and when to come back."""
        if isinstance(reply, ClosingNotice):
            self._last_word = ClientError.from_dict(reply.code, reply.message, reply.fix)
        if reply.retry_after_ms:
            self._wanted_delay = max(self._wanted_delay, reply.retry_after_ms / 1000)

    def on_close_requested(self, reply: CloseRequested) -> None:
        """The broker asks to close: write what is held, close, and come back when it says."""
        self._last_word = ClientError.from_dict(reply.code, reply.message)
        self._wanted_delay = max(self._wanted_delay, (reply.retry_after_ms or 0) / 1000)
        if self.link is not None:
            self.link.close()

    async def close(self, ends: float) -> None:
        """Write what is held and close the link, until `ends` of the loop's clock and for 2 s at most."""
        self._closing = True
        link = self.link
        if link is not None:
            link.close()
            await asyncio.wait([link.lost], timeout=min(2.0, max(ends - _now(), 0)))


def _as_error(failure: Exception | None) -> SluiceError:
    """Return the failure of a connection as an error with a code, a sentence and a fix."""
    if isinstance(failure, SluiceError):
        return failure
    if isinstance(failure, SSLCertVerificationError):
        return OperatorError(
            "broker_unproven",
            f"Whatever answers can't prove that it is the broker: {failure.verify_message or failure}.",
            "Trust the authority that signed its certificate, and connect to a name that is in the certificate.",
        )
    return OperatorError(
        "broker_away",
        f"The broker can't be reached: {failure or 'the connection was closed'}.",
        "Is it running, and is the address right?",
    )


def _silent(silent_ms: int) -> OperatorError:
    return OperatorError(
        "broker_silent",
        f"The broker sent and acknowledged no byte for {silent_ms / 1_000:.1f} s.",
        "Check the network, or set a longer heartbeat_ms.",
    )


def _overdue() -> OperatorError:
    return OperatorError(
        "frame_timeout",
        f"A frame was not whole after {FRAME_GRACE_MS // 1_000} s and a second for each KiB of it.",
        "Use a faster line, or publish smaller batches.",
    )


def _now() -> float:
    return asyncio.get_running_loop().time()


async def open_link(
    address: BrokerAddress, on_frames: OnFrames, time_out: float, tls: ssl.SSLContext | None
) -> ClientLink:
    """A link that is ready for the logon, with `tls` when the address wants it. Raises OSError, TimeoutError, ClientError."""
    link: ClientLink
    if address.scheme.startswith("tcp"):
        link = TcpLink(on_frames)
    else:
        from broker_core.client.websocket_link import WebSocketLink  # TCP clients don't need the package

        link = WebSocketLink(on_frames, address)
    async with asyncio.timeout(time_out):
        await asyncio.get_running_loop().create_connection(
            lambda: link, address.host, address.port, ssl=tls if address.secure else None
        )
        try:
            await asyncio.shield(link.opened)
        except BaseException:
            link.abort()
            raise
    return link
