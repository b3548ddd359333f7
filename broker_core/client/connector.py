"""Keeps a client connected: opens a link, logs on, and does it again with back-off when it is lost.

What the frames mean is the client's; this is only when there is a link, and who is told.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from ssl import SSLCertVerificationError
from typing import Any

import msgspec

from broker_core.client.addresses import Address
from broker_core.client.link import Link, OnFrames, TcpLink
from broker_core.client.reconnect import ReconnectPolicy, Turns
from broker_core.errors import ClientError, OperatorError, SluiceError
from broker_core.protocols import commands
from broker_core.protocols.close_codes import ends_for_good
from broker_core.protocols.native import Frame
from broker_core.protocols.replies import Ack, CloseRequested, Closing, Error, Notice, parse_reply

_UNANSWERED = 2
"""Heartbeats without a word from the broker after which it is taken for gone."""
_DAMAGE = frozenset({"bad_frame", "frame_too_large", "bad_batch", "bad_command", "unknown_command"})
"""What a broker says of bytes that this library doesn't send: they were damaged on their way."""
MOST_DAMAGED = 10
"""Connections in a row that end so, and bring nothing: then it isn't the network."""


@dataclass(slots=True)
class Connector:
    """The supervisor of one client's connection. `run()` is its task."""

    _addresses: Sequence[Address]
    _tls: ssl.SSLContext | None
    _logon: commands.Logon
    _policy: ReconnectPolicy
    _on_frames: OnFrames
    _on_up: Callable[[Link, Ack], Awaitable[None]]
    _on_down: Callable[[], None]
    link: Link | None = None
    connections: int = 0
    _answer: asyncio.Future[Ack] | None = None
    _wanted_delay: float = 0.0
    _last_word: SluiceError | None = None
    _heard_heartbeat: bool = False
    _damaged: int = 0

    async def run(self) -> SluiceError:
        """Connect and reconnect until that is pointless; returns why."""
        turns, down_since = Turns(len(self._addresses), self._policy), _now()
        while True:
            up_at, failure = None, None
            try:
                link = await self._connect(self._addresses[turns.current])
                up_at = _now()
                failure = await self._stay(link)
            except (OSError, TimeoutError, SluiceError) as problem:
                failure = problem
            finally:
                if self.link is not None and not self.link.lost.done():
                    self.link.abort()
                self.link = None
                if self._answer is not None and self._answer.done() and not self._answer.cancelled():
                    self._answer.exception()
                self._on_down()
            now = _now()
            if up_at is not None:
                down_since = now
                if now - up_at > self._policy.longest_delay:
                    turns.held()  # a broker that throws us out at once is met with growing delays
            delay = turns.failed()
            end = self._pointless(failure, now - down_since, turns)
            if end is not None:
                return end
            if isinstance(failure, ClientError) and failure.code == "behind" and not turns.whole_round:
                self._wanted_delay = 0.0  # of that broker; the next address is another one's
            await asyncio.sleep(max(delay, self._wanted_delay))
            self._wanted_delay = 0.0

    def _pointless(self, failure: Exception | None, outage: float, turns: Turns) -> SluiceError | None:
        error = failure
        if isinstance(error, SSLCertVerificationError):
            error = OperatorError(
                "broker_unproven",
                f"Whatever answers can't prove that it is the broker: {error.verify_message or error}.",
                "Trust the authority that signed its certificate, and connect to a name that is in the certificate.",
            )
        elif not isinstance(error, SluiceError):
            error = OperatorError(
                "broker_away",
                f"The broker can't be reached: {failure or 'the connection was closed'}.",
                "Is it running, and is the address right?",
            )
        if isinstance(error, ClientError) and ends_for_good(error.code):
            self._damaged = self._damaged + 1 if error.code in _DAMAGE else MOST_DAMAGED
            if self._damaged >= MOST_DAMAGED:
                return error
        if not self._policy.enabled and (self.connections or turns.whole_round):
            return error
        limit = self._policy.give_up_after if self.connections else self._policy.first_connect_timeout
        return error if limit is not None and outage >= limit and turns.whole_round else None

    async def _connect(self, address: Address) -> Link:
        self._last_word = None
        self._heard_heartbeat = False
        self._answer = asyncio.get_running_loop().create_future()
        link = await open_link(address, self._receive, self._policy.connect_timeout, self._tls)
        self.link = link
        link.send_command(self._logon)
        async with asyncio.timeout(self._policy.logon_timeout):
            either: list[asyncio.Future[Any]] = [self._answer, link.lost]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._answer.done():
            raise self._why(link) or ConnectionResetError("the connection was closed during logon")
        ack = self._answer.result()
        # It has promised them: its silence means something from now on.
        self._heard_heartbeat = bool(ack.heartbeat_ms)
        await self._on_up(link, ack)
        self.connections += 1
        return link

    async def _stay(self, link: Link) -> Exception | None:
        interval = (self._logon.heartbeat_ms or 0) / 1000 or None
        said_at = _now()
        while not link.lost.done():
            await asyncio.wait([link.lost], timeout=interval and self._until_due(link, interval, said_at))
            if interval is None or link.lost.done():
                continue
            silent = _now() - link.received_at
            if self._heard_heartbeat and silent >= _UNANSWERED * interval:
                link.abort(ConnectionResetError(f"the broker has been silent for {silent:.1f} s"))
            elif _now() - said_at >= interval / 2:
                said_at = _now()
                link.send_command(commands.Heartbeat())
        return self._why(link)

    def _until_due(self, link: Link, interval: float, said_at: float) -> float:
        """How long until something is to be said, or the broker has been silent for too long."""
        due = said_at + interval / 2
        if self._heard_heartbeat:
            due = min(due, link.received_at + _UNANSWERED * interval)
        return max(due - _now(), 0.001)

    def _why(self, link: Link) -> Exception | None:
        return self._last_word or (link.lost.result() if link.lost.done() else None)

    def _receive(self, link: Link, frames: list[Frame]) -> None:
        answer = self._answer
        if answer is not None and not answer.done() and frames:
            reply, frames = parse_reply(frames[0].payload), frames[1:]
            if isinstance(reply, Ack) and reply.of == "logon":
                if reply.name not in (None, self._logon.name):
                    raise ClientError("bad_frame", f"The logon arrived as {reply.name!r}'s.", "")
                answer.set_result(reply)
            elif isinstance(reply, Error | Closing):
                answer.set_exception(ClientError.received(reply.code, reply.message, reply.fix))
            if isinstance(reply, Closing):
                self.closing(reply)
        if frames:
            self._on_frames(link, frames)

    def use_session(self, session: int) -> None:
        """Name this publisher session at the next logon."""
        self._logon = msgspec.structs.replace(self._logon, session=session)

    # What the client hears on our behalf.

    def heartbeat(self) -> None:
        """The broker sends heartbeats: from now on its silence means something."""
        self._heard_heartbeat = True

    def moved(self) -> None:
        """Something was delivered or acknowledged."""
        self._damaged = 0

    def closing(self, reply: Closing | Notice) -> None:
        """The broker says why it will close the connection, and when to come back."""
        if isinstance(reply, Closing):
            self._last_word = ClientError.received(reply.code, reply.message, reply.fix)
        if reply.retry_after_ms:
            self._wanted_delay = max(self._wanted_delay, reply.retry_after_ms / 1000)

    def close_requested(self, reply: CloseRequested) -> None:
        """The broker asks to close: write what is held, close, and come back when it says."""
        self._last_word = ClientError.received(reply.code, reply.message)
        self._wanted_delay = max(self._wanted_delay, (reply.retry_after_ms or 0) / 1000)
        if self.link is not None:
            self.link.close()

    async def close(self) -> None:
        """Write what is held and close the link."""
        link = self.link
        if link is not None:
            link.close()
            await asyncio.wait([link.lost], timeout=2.0)


def _now() -> float:
    return asyncio.get_running_loop().time()


async def open_link(
    address: Address, on_frames: OnFrames, time_out: float, tls: ssl.SSLContext | None
) -> Link:
    """A link that is ready for the logon, with `tls` when the address wants it. Raises OSError, TimeoutError, ClientError."""
    link: Link
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
