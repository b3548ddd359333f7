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
from broker_core.errors import ClientError, OperatorError, SluiceError, describe_exception
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
        full_delay = min(self.longest_delay, self.first_delay * self.factor ** min(attempt, 60))
        return full_delay * (1 - self.jitter * random.random())


class AddressRotation:
    """Rotation over a list of addresses.

    Each failure selects the next address; each full pass increases the delay.
    """

    def __init__(self, address_count: int, policy: ReconnectPolicy) -> None:
        self.current = 0
        self._address_count = address_count
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
        return self._failures >= self._address_count

    def record_connection(self, code: str, up_s: float, *, had_progress: bool) -> None:
        """Reset the delays if the connection that just ended was stable.

        A connection that ended with the same code as the one before it was not stable, however long the peers
        took to notice. A plain loss only counts as the same if nothing was delivered or acknowledged.

        Args:
            code: Error code with which the connection ended.
            up_s: Seconds for which the connection lasted.
            had_progress: Whether anything was delivered or acknowledged on it.
        """
        same = code == self._last_code and (code != PLAIN_LOSS or not had_progress)
        recurs = same and up_s < STEADY_DELAYS * self._policy.longest_delay
        if up_s > self._policy.longest_delay and not recurs:
            self._failures = 0
        self._last_code = code

    def on_failure(self) -> float:
        """Select the next address after a failure. Returns the seconds to wait before trying it."""
        delay = self._policy.delay(self._failures // self._address_count)
        self._failures += 1
        self.current = (self.current + 1) % self._address_count
        return delay


log = logging.getLogger("sluice.client")
log.addHandler(logging.NullHandler())

_CHECK_INTERVAL_S = 5.0
"""Maximum seconds between two checks of a connection's liveness."""
_DAMAGE_CODES = frozenset({"bad_frame", "frame_too_large", "bad_batch", "bad_command", "unknown_command"})
"""Error codes that this client cannot cause: the broker received bytes that were damaged in transit."""
MAX_DAMAGED_CONNECTIONS = 10
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
    _check_logon_reply: Callable[[Ack], None]
    """Raises SluiceError for a logon reply after which the client must leave the broker."""
    _on_logged_on: Callable[[ClientLink, Ack], Awaitable[None]]
    """Awaited with the link and the logon reply after each logon."""
    _on_disconnected: Callable[[], None]
    """Called after each lost connection and each failed attempt."""
    _on_loss: Callable[[ConnectionLoss], None]
    """Called with each loss, except while the client closes."""
    link: ClientLink | None = None
    """Open link; None while disconnected."""
    connections: int = 0
    """Number of successful logons."""
    _logon_reply: asyncio.Future[Ack] | None = None
    """Completed by the reply to the current logon."""
    _requested_delay: float = 0.0
    """Minimum seconds until the next attempt, as the broker requested."""
    _close_reason: SluiceError | None = None
    """Reason that the broker gave for closing the connection."""
    _expects_heartbeats: bool = False
    """Whether the broker sends heartbeats, so that its silence is an error."""
    _damaged_connections: int = 0
    """Number of consecutive connections that ended with damaged bytes."""
    _has_progress: bool = False
    """Whether anything was delivered or acknowledged on this connection."""
    _closing: bool = False

    async def run(self) -> SluiceError:
        """Connect and reconnect until the client closes, gives up, or gets a permanent error.

        Returns the reason.
        """
        rotation, down_since = AddressRotation(len(self._addresses), self._policy), _loop_time()
        while True:
            up_at, failure = None, None
            try:
                link, ack = await self._connect(self._addresses[rotation.current])
                up_at = _loop_time()
                failure = await self._run_connection(link, ack)
            except (OSError, TimeoutError, SluiceError) as problem:
                failure = problem
            finally:
                if self.link is not None and not self.link.lost.done():
                    self.link.abort()
                self.link = None
                if (
                    self._logon_reply is not None
                    and self._logon_reply.done()
                    and not self._logon_reply.cancelled()
                ):
                    self._logon_reply.exception()
                self._on_disconnected()
            error, now = _to_sluice_error(failure), _loop_time()
            if up_at is not None:
                down_since = now
                rotation.record_connection(error.code, now - up_at, had_progress=self._has_progress)
            address = self._addresses[rotation.current]
            delay, requested_delay = rotation.on_failure(), self._requested_delay
            if error.code == "behind" and not rotation.is_round_complete:
                requested_delay = 0.0  # the delay is for that broker; the next address is another one
            delay = max(delay, requested_delay)
            final_error = self._final_error(error, now - down_since, rotation)
            if not self._closing:
                self._report(
                    ConnectionLoss(error, address.text, rotation.failures, None if final_error else delay)
                )
            if final_error is not None:
                return final_error
            await asyncio.sleep(delay)
            self._requested_delay = 0.0

    def _report(self, loss: ConnectionLoss) -> None:
        """Report a loss to the log and the client.

        Of consecutive losses only number 1, 2, 4, 8, … are logged as warnings; the others have level DEBUG.
        """
        is_repeated = loss.failures & (loss.failures - 1) and loss.retry_in_s is not None
        log.log(logging.DEBUG if is_repeated else logging.WARNING, "%s: %s", self._logon.name, loss)
        self._on_loss(loss)

    def _final_error(
        self, error: SluiceError, outage: float, rotation: AddressRotation
    ) -> SluiceError | None:
        """Return the error with which the client must give up, or None to try again."""
        if isinstance(error, ClientError) and is_permanent(error.code):
            self._damaged_connections = (
                self._damaged_connections + 1 if error.code in _DAMAGE_CODES else MAX_DAMAGED_CONNECTIONS
            )
            if self._damaged_connections >= MAX_DAMAGED_CONNECTIONS:
                return error
        # "behind" is no lost connection: the client refused to stay at a member that is cut off.
        was_lost = self.connections > 0 and error.code != "behind"
        if not self._policy.enabled and (was_lost or rotation.is_round_complete):
            return error
        limit = self._policy.give_up_after if self.connections else self._policy.first_connect_timeout
        return error if limit is not None and outage >= limit and rotation.is_round_complete else None

    async def _connect(self, address: BrokerAddress) -> tuple[ClientLink, Ack]:
        """Open a link and log on. Returns the link and the broker's reply."""
        self._close_reason = None
        self._expects_heartbeats = self._has_progress = False
        self._logon_reply = asyncio.get_running_loop().create_future()
        link = await open_link(address, self._receive, self._policy.connect_timeout, self._tls)
        self.link = link
        link.send_command(msgspec.structs.replace(self._logon, session=self._session()))
        async with asyncio.timeout(self._policy.logon_timeout):
            outcomes: list[asyncio.Future[Any]] = [self._logon_reply, link.lost]
            await asyncio.wait(outcomes, return_when=asyncio.FIRST_COMPLETED)
        if not self._logon_reply.done():
            raise self._loss_reason(link) or ConnectionResetError("the connection was closed during logon")
        ack = self._logon_reply.result()
        self._check_logon_reply(ack)  # before counting it as a connection: the next address may be better
        # A broker that agreed to send heartbeats must not be silent from now on.
        self._expects_heartbeats = bool(ack.heartbeat_ms)
        self.connections += 1
        return link, ack

    async def _run_connection(self, link: ClientLink, ack: Ack) -> Exception | None:
        """Run the client's logon callback while watching the link. Sending stored messages may take long."""
        on_logged_on_task = asyncio.ensure_future(self._on_logged_on(link, ack))

        def abort_on_error(task: asyncio.Future[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                link.abort(cast(Exception, error))

        on_logged_on_task.add_done_callback(abort_on_error)
        try:
            return await self._watch(link)
        finally:
            on_logged_on_task.cancel()

    async def _watch(self, link: ClientLink) -> Exception | None:
        """Send heartbeats until the link is lost or the broker is silent for too long. Returns the reason."""
        interval_ms = self._logon.heartbeat_ms or 0
        pause = min(interval_ms / 4_000, _CHECK_INTERVAL_S) if interval_ms else _CHECK_INTERVAL_S
        heartbeat_sent_at = link.now_ms()
        while not link.lost.done():
            await asyncio.wait([link.lost], timeout=pause)
            if link.lost.done():
                break
            link.sample_liveness(pause)
            now, liveness = link.now_ms(), link.liveness
            if self._expects_heartbeats and liveness.is_silent(now, interval_ms):
                link.abort(_silence_error(now - liveness.last_alive_at))
            elif liveness.is_frame_overdue(now):
                link.abort(_frame_timeout_error())
            elif interval_ms and now - heartbeat_sent_at >= interval_ms / 2 and not link.unwritten_bytes:
                # Skip the heartbeat while bytes wait to be written: it could not arrive before them.
                heartbeat_sent_at = now
                link.send_command(commands.ClientHeartbeat())
        return self._loss_reason(link)

    def _loss_reason(self, link: ClientLink) -> Exception | None:
        """Return the reason of a lost connection; the broker's own reason comes first."""
        return self._close_reason or (link.lost.result() if link.lost.done() else None)

    def _receive(self, link: ClientLink, frames: list[NativeFrame]) -> None:
        """Process the logon reply, then pass further frames to the client."""
        logon_reply = self._logon_reply
        if logon_reply is not None and not logon_reply.done() and frames:
            reply, frames = parse_reply(frames[0].payload), frames[1:]
            if isinstance(reply, Ack) and reply.of == "logon":
                if reply.name not in (None, self._logon.name):
                    raise ClientError("bad_frame", f"The logon arrived as {reply.name!r}'s.", "")
                logon_reply.set_result(reply)
            elif isinstance(reply, ErrorReply | ClosingNotice):
                logon_reply.set_exception(ClientError.from_dict(reply.code, reply.message, reply.fix))
            if isinstance(reply, ClosingNotice):
                self.on_closing(reply)
        if frames:
            self._on_frames(link, frames)

    # Called by the client with replies that concern the connection.

    def on_heartbeat(self) -> None:
        """Record that the broker sends heartbeats, so that its silence is an error."""
        self._expects_heartbeats = True

    def on_progress(self) -> None:
        """Record that something was delivered or acknowledged."""
        self._damaged_connections, self._has_progress = 0, True

    def on_closing(self, reply: ClosingNotice | DecisionNotice) -> None:
        """Record why the broker will close the connection, and when the client may reconnect."""
        if isinstance(reply, ClosingNotice):
            self._close_reason = ClientError.from_dict(reply.code, reply.message, reply.fix)
        if reply.retry_after_ms:
            self._requested_delay = max(self._requested_delay, reply.retry_after_ms / 1000)

    def on_close_requested(self, reply: CloseRequested) -> None:
        """Close the connection because the broker asked for it, after writing buffered data.

        The client reconnects after the delay that the broker named.
        """
        self._close_reason = ClientError.from_dict(reply.code, reply.message)
        self._requested_delay = max(self._requested_delay, (reply.retry_after_ms or 0) / 1000)
        if self.link is not None:
            self.link.close()

    async def close(self, deadline: float) -> None:
        """Write buffered data and close the link.

        Args:
            deadline: Event-loop time until which to wait for the close, but at most 2 seconds from now.
        """
        self._closing = True
        link = self.link
        if link is not None:
            link.close()
            await asyncio.wait([link.lost], timeout=min(2.0, max(deadline - _loop_time(), 0)))


def _to_sluice_error(failure: Exception | None) -> SluiceError:
    """Return the failure of a connection as an error with code, sentence and fix."""
    if isinstance(failure, SluiceError):
        return failure
    if isinstance(failure, SSLCertVerificationError):
        return OperatorError(
            "broker_unproven",
            f"The server can't prove that it is the broker: {failure.verify_message or failure}.",
            "Trust the authority that signed its certificate, and connect to a name that is in the "
            "certificate.",
        )
    return OperatorError(
        "broker_away",
        f"The broker can't be reached: "
        f"{describe_exception(failure) if failure is not None else 'the connection was closed'}.",
        "Is it running, and is the address right?",
    )


def _silence_error(silent_ms: int) -> OperatorError:
    return OperatorError(
        "broker_silent",
        f"The broker sent and acknowledged no byte for {silent_ms / 1_000:.1f} s.",
        "Check the network, or set a longer heartbeat_ms.",
    )


def _frame_timeout_error() -> OperatorError:
    return OperatorError(
        "frame_timeout",
        f"A frame was not whole after {FRAME_GRACE_MS // 1_000} s and a second for each KiB of it.",
        "Use a faster line, or publish smaller batches.",
    )


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


async def open_link(
    address: BrokerAddress, on_frames: OnFrames, timeout: float, tls: ssl.SSLContext | None
) -> ClientLink:
    """Open a link that is ready for the logon.

    Args:
        address: Address to connect to.
        on_frames: Called with received frames.
        timeout: Maximum seconds to connect, with the WebSocket handshake.
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
    async with asyncio.timeout(timeout):
        await asyncio.get_running_loop().create_connection(
            lambda: link, address.host, address.port, ssl=tls if address.secure else None
        )
        try:
            await asyncio.shield(link.ready)
        except BaseException:
            link.abort()
            raise
    return link
