"""Connection supervisor of a client: opens a link, logs on, and reconnects with back-off.

The client has one or several addresses. `Connector` manages the connection only; the client handles the
content of the frames. Delays grow exponentially and have jitter.
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
"""A connection that lasted this many times `longest_delay` was stable, regardless of why it ended."""
PLAIN_LOSS: Final = "broker_away"
"""Error code of a connection that was lost without a reason."""


@dataclass(frozen=True, slots=True)
class ConnectionLoss:
    """Lost connection or failed attempt to connect, with its reason and the time of the next attempt."""

    error: SluiceError
    """Reason with code, sentence and fix; the broker's own reason if it sent one."""
    address: str
    """Address of the connection."""
    failures: int
    """Number of consecutive losses without a stable connection between them, including this one."""
    retry_in_s: float | None
    """Seconds until the next attempt. None: the client gives up."""

    def __str__(self) -> str:
        then = "gives up" if self.retry_in_s is None else f"tries again in {self.retry_in_s:.2f} s"
        return f"{self.error} ({self.address}, loss {self.failures} in a row). The client {then}."


@dataclass(frozen=True, slots=True)
class ReconnectPolicy:
    """Delays and limits of connecting and reconnecting. All times are in seconds.

    Each address is tried before the client gives up. The logon timeout is long because a broker to which
    thousands of clients return at the same time answers late, and a client that gives up must queue again.

    Attributes:
        enabled: Whether to reconnect after a lost connection.
        first_delay: Delay after each failure in the first pass over all addresses.
        longest_delay: Upper limit of the delay.
        factor: Growth of the delay per failed pass over all addresses.
        jitter: Fraction of the delay that is randomly subtracted, to spread clients that lost the same
            broker.
        give_up_after: Duration of an outage after which the client fails. None: never.
        first_connect_timeout: Time for the first connection of a client, after which `start()` raises the
            reason.
        connect_timeout: Time to open a connection to one address.
        logon_timeout: Time for the broker's answer to the logon.
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
        """Return the seconds to wait before attempt 0, 1, 2, …, with random jitter."""
        whole = min(self.longest_delay, self.first_delay * self.factor ** min(attempt, 60))
        return whole * (1 - self.jitter * random.random())


class AddressRotation:
    """Rotation over a list of addresses.

    Each failure selects the next address; each full pass increases the delay.
    """

    def __init__(self, number: int, policy: ReconnectPolicy) -> None:
        self.current = 0
        self._number = number
        self._policy = policy
        self._failures = 0
        self._last_code = ""

    @property
    def failures(self) -> int:
        """Number of consecutive losses without a stable connection between them."""
        return self._failures

    @property
    def is_round_complete(self) -> bool:
        """Whether every address has failed since the last stable connection."""
        return self._failures >= self._number

    def note_connection(self, code: str, up_s: float, *, moved: bool) -> None:
        """Reset the delays if the connection that just ended was stable.

        A connection that ended with the same code as the one before it was not stable, however long the peers
        took to notice. A plain loss only counts as the same if nothing was delivered or acknowledged.

        Args:
            code: Error code with which the connection ended.
            up_s: Seconds for which the connection lasted.
            moved: Whether anything was delivered or acknowledged on it.
        """
        same = code == self._last_code and (code != PLAIN_LOSS or not moved)
        recurs = same and up_s < STEADY_DELAYS * self._policy.longest_delay
        if up_s > self._policy.longest_delay and not recurs:
            self._failures = 0
        self._last_code = code

    def on_failure(self) -> float:
        """Select the next address after a failure. Returns the seconds to wait before trying it."""
        delay = self._policy.delay(self._failures // self._number)
        self._failures += 1
        self.current = (self.current + 1) % self._number
        return delay


log = logging.getLogger("sluice.client")
log.addHandler(logging.NullHandler())

_CHECK_INTERVAL_S = 5.0
"""Maximum seconds between two checks of a connection's liveness."""
_DAMAGE = frozenset({"bad_frame", "frame_too_large", "bad_batch", "bad_command", "unknown_command"})
"""Error codes that this client cannot cause: the broker received bytes that were damaged in transit."""
MAX_DAMAGED = 10
"""Maximum number of consecutive connections that end with such a code without progress.

Then the client gives up.
"""


@dataclass(slots=True)
class Connector:
    """Supervisor of one client's connection. `run()` is its task."""

    _addresses: Sequence[BrokerAddress]
    _tls: ssl.SSLContext | None
    _logon: commands.Logon
    _session: Callable[[], int]
    """Returns the publisher session for the next logon."""
    _policy: ReconnectPolicy
    _on_frames: OnFrames
    _check_answer: Callable[[Ack], None]
    """Raises SluiceError for a logon reply after which the client must leave the broker."""
    _on_up: Callable[[ClientLink, Ack], Awaitable[None]]
    """Awaited with the link and the logon reply after each logon."""
    _on_down: Callable[[], None]
    """Called after each lost connection and each failed attempt."""
    _on_loss: Callable[[ConnectionLoss], None]
    """Called with each loss, except while the client closes."""
    link: ClientLink | None = None
    """Open link; None while disconnected."""
    connections: int = 0
    """Number of successful logons."""
    _answer: asyncio.Future[Ack] | None = None
    """Completed by the reply to the current logon."""
    _wanted_delay: float = 0.0
    """Minimum seconds until the next attempt, as the broker requested."""
    _last_word: SluiceError | None = None
    """Reason that the broker gave for closing the connection."""
    _heard_heartbeat: bool = False
    """Whether the broker sends heartbeats, so that its silence is an error."""
    _damaged: int = 0
    """Number of consecutive connections that ended with damaged bytes."""
    _moved: bool = False
    """Whether anything was delivered or acknowledged on this connection."""
    _closing: bool = False

    async def run(self) -> SluiceError:
        """Connect and reconnect until the client closes, gives up, or gets a permanent error.

        Returns the reason.
        """
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
                wanted = 0.0  # the delay is for that broker; the next address is another one
            delay = max(delay, wanted)
            end = self._pointless(error, now - down_since, turns)
            if not self._closing:
                self._report(ConnectionLoss(error, address.text, turns.failures, None if end else delay))
            if end is not None:
                return end
            await asyncio.sleep(delay)
            self._wanted_delay = 0.0

    def _report(self, loss: ConnectionLoss) -> None:
        """Report a loss to the log and the client.

        Of consecutive losses only number 1, 2, 4, 8, … are logged as warnings; the others have level DEBUG.
        """
        often = loss.failures & (loss.failures - 1) and loss.retry_in_s is not None
        log.log(logging.DEBUG if often else logging.WARNING, "%s: %s", self._logon.name, loss)
        self._on_loss(loss)

    def _pointless(self, error: SluiceError, outage: float, turns: AddressRotation) -> SluiceError | None:
        """Return the error with which the client must give up, or None to try again."""
        if isinstance(error, ClientError) and is_permanent(error.code):
            self._damaged = self._damaged + 1 if error.code in _DAMAGE else MAX_DAMAGED
            if self._damaged >= MAX_DAMAGED:
                return error
        # "behind" is no lost connection: the client refused to stay at a member that is cut off.
        was_lost = self.connections > 0 and error.code != "behind"
        if not self._policy.enabled and (was_lost or turns.is_round_complete):
            return error
        limit = self._policy.give_up_after if self.connections else self._policy.first_connect_timeout
        return error if limit is not None and outage >= limit and turns.is_round_complete else None

    async def _connect(self, address: BrokerAddress) -> tuple[ClientLink, Ack]:
        """Open a link and log on. Returns the link and the broker's reply."""
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
        self._check_answer(ack)  # before counting it as a connection: the next address may be better
        # A broker that agreed to send heartbeats must not be silent from now on.
        self._heard_heartbeat = bool(ack.heartbeat_ms)
        self.connections += 1
        return link, ack

    async def _stay(self, link: ClientLink, ack: Ack) -> Exception | None:
        """Run the client's logon callback while watching the link. Sending stored messages may take long."""
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
        """Send heartbeats until the link is lost or the broker is silent for too long. Returns the reason."""
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
                # Skip the heartbeat while bytes wait to be written: it could not arrive before them.
                said_at = now
                link.send_command(commands.ClientHeartbeat())
        return self._why(link)

    def _why(self, link: ClientLink) -> Exception | None:
        """Return the reason of a lost connection; the broker's own reason comes first."""
        return self._last_word or (link.lost.result() if link.lost.done() else None)

    def _receive(self, link: ClientLink, frames: list[NativeFrame]) -> None:
        """Process the logon reply, then pass further frames to the client."""
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

    # Called by the client with replies that concern the connection.

    def on_heartbeat(self) -> None:
        """Record that the broker sends heartbeats, so that its silence is an error."""
        self._heard_heartbeat = True

    def on_progress(self) -> None:
        """Record that something was delivered or acknowledged."""
        self._damaged, self._moved = 0, True

    def on_closing(self, reply: ClosingNotice | DecisionNotice) -> None:
        """Record why the broker will close the connection, and when the client may reconnect."""
        if isinstance(reply, ClosingNotice):
            self._last_word = ClientError.from_dict(reply.code, reply.message, reply.fix)
        if reply.retry_after_ms:
            self._wanted_delay = max(self._wanted_delay, reply.retry_after_ms / 1000)

    def on_close_requested(self, reply: CloseRequested) -> None:
        """Close the connection because the broker asked for it, after writing buffered data.

        The client reconnects after the delay that the broker named.
        """
        self._last_word = ClientError.from_dict(reply.code, reply.message)
        self._wanted_delay = max(self._wanted_delay, (reply.retry_after_ms or 0) / 1000)
        if self.link is not None:
            self.link.close()

    async def close(self, ends: float) -> None:
        """Write buffered data and close the link.

        Args:
            ends: Event-loop time until which to wait for the close, but at most 2 seconds from now.
        """
        self._closing = True
        link = self.link
        if link is not None:
            link.close()
            await asyncio.wait([link.lost], timeout=min(2.0, max(ends - _now(), 0)))


def _as_error(failure: Exception | None) -> SluiceError:
    """Return the failure of a connection as an error with code, sentence and fix."""
    if isinstance(failure, SluiceError):
        return failure
    if isinstance(failure, SSLCertVerificationError):
        return OperatorError(
            "broker_unproven",
            f"Whatever answers can't prove that it is the broker: {failure.verify_message or failure}.",
            "Trust the authority that signed its certificate, and connect to a name that is in the "
            "certificate.",
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
    """Open a link that is ready for the logon.

    Args:
        address: Address to connect to.
        on_frames: Called with received frames.
        time_out: Maximum seconds to connect, with the WebSocket handshake.
        tls: Context, used if the address has a TLS scheme.

    Raises:
        OSError: The connection failed.
        TimeoutError: The timeout expired.
        ClientError: The peer sent invalid data during the handshake.
    """
    link: ClientLink
    if address.scheme.startswith("tcp"):
        link = TcpLink(on_frames)
    else:
        # Imported here: TCP clients do not need the websockets package.
        from broker_core.client.websocket_link import WebSocketLink

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
