"""TLS handshakes in steps, on asyncio and uvloop, with any behaviour and pace of the peer."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from broker_core.access.tls import make_server_context
from broker_core.clock import SystemClock
from broker_core.connections.admission import READS_PER_ITERATION, PendingConnections, PreLogonReadQueue
from broker_core.transports.accept import Acceptor
from broker_core.transports.peer_progress import CountingSslContext, CountingSslObject
from tests.support.brokers import until
from tests.support.certificates import Authority

LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
Loops = Callable[[], asyncio.AbstractEventLoop]


class CountingHandshake(CountingSslObject):
    """A TLS object that counts the steps of all handshakes."""

    taken = 0

    def do_handshake(self) -> None:
        CountingHandshake.taken += 1
        super().do_handshake()


class StepsContext(CountingSslContext):
    sslobject_class = CountingHandshake


class RecordingProtocol(asyncio.BufferedProtocol):
    """A protocol that records its callbacks in order."""

    def __init__(self, all_made: list[RecordingProtocol]) -> None:
        self.told: list[str] = []
        self.got = b""
        self.transport: asyncio.Transport | None = None
        self._buffer = bytearray(7)  # smaller than what comes
        all_made.append(self)

    def connection_made(self, transport: Any) -> None:
        self.told.append("made")
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.told.append("got")
        self.got += self._buffer[:nbytes]

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append("lost")


class TlsServer:
    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.made: list[RecordingProtocol] = []
        self.pending_connections, self.door = PendingConnections(), PreLogonReadQueue(SystemClock())
        context = make_server_context(self.authority.transport(), StepsContext)
        self.listener = Acceptor(
            lambda: RecordingProtocol(self.made), self.pending_connections, self.door, context
        )
        self.port = 0

    @property
    def is_idle(self) -> bool:
        """Return whether no handshake and no pending connection is left."""
        return not (self.listener.handshakes or self.pending_connections.pending or self.door._waiting)


@asynccontextmanager
async def listening(directory: Path) -> AsyncIterator[TlsServer]:
    made = TlsServer(directory)
    _, made.port = await made.listener.listen("127.0.0.1", 0)
    try:
        yield made
    finally:
        made.listener.close()
        for one in made.made:
            if one.transport is not None:
                one.transport.abort()
        await until(lambda: made.is_idle)


class ManualTlsClient:
    """A TLS client whose bytes the test sends."""

    def __init__(self, there: TlsServer) -> None:
        self.socket = socket.create_connection(("127.0.0.1", there.port), 20)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context(cafile=str(there.authority.certificate))
        self.tls = context.wrap_bio(self._in, self._out, server_hostname="localhost")

    def hello(self) -> bytes:
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self._out.read()

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def finished(self) -> bytes:
        """The last flight, when the broker's is there."""
        while True:
            data = await asyncio.get_running_loop().sock_recv(self.socket, 1 << 16)
            assert data, "the broker hung up"
            self._in.write(data)
            with contextlib.suppress(ssl.SSLWantReadError):
                self.tls.do_handshake()
                return self._out.read()

    def sealed(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self._out.read()


def run(loop: Loops, test: Callable[[TlsServer], Awaitable[None]], directory: Path) -> None:
    async def main() -> None:
        async with listening(directory) as there, asyncio.timeout(30):
            await test(there)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


@LOOPS
def test_of_those_who_begin_with_a_byte_and_say_the_rest_at_once_a_few_are_computed_in_a_turn(
    tmp_path: Path, loop: Loops
) -> None:
    async def test(there: TlsServer) -> None:
        peers = [ManualTlsClient(there) for _ in range(10 * READS_PER_ITERATION)]
        hellos = [peer.hello() for peer in peers]
        before = CountingHandshake.taken
        for peer, hello in zip(peers, hellos, strict=True):
            await peer.send(hello[:1])
        begun = 2 * len(peers)  # told of their transport, and of the byte
        await until(
            lambda: CountingHandshake.taken == before + begun and len(there.door._waiting) == len(peers)
        )
        for peer, hello in zip(peers, hellos, strict=True):
            peer.socket.send(hello[1:])
        parts, now = [], CountingHandshake.taken
        while now < before + begun + len(peers):
            await asyncio.sleep(0)
            parts.append(CountingHandshake.taken - now)
            now = CountingHandshake.taken
        assert 0 < max(parts) <= READS_PER_ITERATION
        for peer in peers:
            await peer.send(await peer.finished())
        await until(lambda: len(there.made) == len(peers) and there.is_idle)
        for peer in peers:
            peer.socket.close()

    run(loop, test, tmp_path)


@LOOPS
def test_what_is_said_with_the_end_of_the_handshake_is_read_behind_the_beginning(
    tmp_path: Path, loop: Loops
) -> None:
    async def test(there: TlsServer) -> None:
        peer, said = ManualTlsClient(there), b"x" * 30_000
        await peer.send(peer.hello())
        await peer.send(await peer.finished() + peer.sealed(said))
        await until(lambda: there.made and there.made[0].got == said)
        await peer.send(peer.sealed(b"later"))
        await until(lambda: there.made[0].got == said + b"later")
        assert there.made[0].told[0] == "made" and there.made[0].told.count("made") == 1
        peer.socket.close()
        await until(lambda: there.made[0].told[-1] == "lost")

    run(loop, test, tmp_path)


@LOOPS
def test_a_handshake_that_comes_byte_by_byte_is_made(tmp_path: Path, loop: Loops) -> None:
    async def test(there: TlsServer) -> None:
        peer = ManualTlsClient(there)
        for byte in peer.hello():
            await peer.send(bytes([byte]))
            await asyncio.sleep(0)
        for byte in await peer.finished() + peer.sealed(b"hello"):
            await peer.send(bytes([byte]))
            await asyncio.sleep(0)
        await until(lambda: there.made and there.made[0].got == b"hello")
        peer.socket.close()

    run(loop, test, tmp_path)


@LOOPS
@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("when", ["at once", "begun", "answered", "finished"])
def test_of_who_leaves_in_the_middle_nothing_stays(
    tmp_path: Path, loop: Loops, when: str, reset: bool
) -> None:
    async def test(there: TlsServer) -> None:
        peer = ManualTlsClient(there)
        hello = peer.hello()
        await peer.send(hello[:1] if when == "begun" else hello)
        if when == "begun":
            await until(lambda: len(there.door._waiting) == 1 and there.listener._tasks)
        elif when != "at once":
            last = await peer.finished()
            if when == "finished":
                await peer.send(last)
        if reset:
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.socket.close()
        await until(lambda: there.is_idle and not there.listener._tasks)
        await until(lambda: all(one.told[0] == "made" and one.told[-1] == "lost" for one in there.made))

    run(loop, test, tmp_path)


@LOOPS
def test_a_peer_without_tls_is_refused(tmp_path: Path, loop: Loops) -> None:
    async def test(there: TlsServer) -> None:
        peer = ManualTlsClient(there)
        await peer.send(b"GET / HTTP/1.1\r\n\r\n" * 5_000)
        await until(lambda: there.is_idle and not there.listener._tasks)
        assert not there.made
        peer.socket.close()

    run(loop, test, tmp_path)
