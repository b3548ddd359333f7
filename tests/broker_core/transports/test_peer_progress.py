"""Sinks' figures about their peers, against real readers: bytes read and bytes in kernels."""

from __future__ import annotations

import ctypes
import socket
import struct
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from broker_core.client import tls_context
from broker_core.config import TransportSettings
from broker_core.transports.peer_progress import (
    BUFFERED_PER_WINDOW,
    MERGED_BYTES,
    PATH_WAITS_US,
    PeerProgress,
    TcpInfo,
    read_tcp_info,
)
from tests.support.certificates import Authority
from tests.support.paced_reader import READS_A_SECOND, PacedReader
from tests.support.progress_process import (
    SAMPLE_INTERVAL_S,
    SinkSample,
    TransportsProcess,
    transports_process,
)

RATES = (1_000, 10_000, 20_000, 50_000, 100_000)
BUFFERS = (8 * 1024, 32 * 1024, None)
READ_FOR_S = 36
"""Longer than one window step of the default buffer at 5,000 B/s; shorter than the timeout of WebSocket
pings.
"""
FLOOR = 5_000
"""Bytes a second that a policy may ask for."""
SEGMENT = 1_448


def shut(taken: int, *, window: int = 0, **other: int) -> TcpInfo:
    """Return a view of a peer with a closed window."""
    return SHUT._replace(acknowledged=taken, window=window, **other)


SHUT = TcpInfo(
    queued=60_000,
    unsent=60_000,
    unacked_segments=0,
    acknowledged=0,
    segment=SEGMENT,
    window=0,
    unanswered=0,
    busy=0,
    shut=0,
    short=0,
)


class ManualKernel:
    """A kernel whose answers the test sets, and the progress derived from them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, window: int) -> None:
        self._answer: TcpInfo | None = SHUT._replace(queued=0, unsent=0, window=window)
        monkeypatch.setattr("broker_core.transports.peer_progress.read_tcp_info", lambda _: self._answer)
        self.progress = PeerProgress(object())

    def update(self, view: TcpInfo | None, handed: int = 10_000_000) -> int:
        self._answer = view
        return self.progress.update(handed, handed - view.acknowledged - view.queued if view else 0)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> ManualKernel:
    return ManualKernel(monkeypatch, 30_000)


def test_the_window_step_is_unknown_until_the_window_was_seen_closed(
    kernel: ManualKernel,
) -> None:
    assert kernel.update(SHUT._replace(acknowledged=40_000, unacked_segments=3, window=20_000)) == 40_000
    assert kernel.progress.window_step_bytes == 0
    assert kernel.update(shut(50_000)) == 50_000
    assert kernel.progress.window_step_bytes == 50_000


def test_the_window_step_of_a_long_reader_is_its_window_size(
    kernel: ManualKernel,
) -> None:
    kernel.update(SHUT._replace(acknowledged=900_000_000, unacked_segments=3, window=40_000))
    kernel.update(shut(900_100_000))
    assert kernel.progress.window_step_bytes == BUFFERED_PER_WINDOW * 40_000


def test_a_large_buffer_is_opened_before_it_is_empty(kernel: ManualKernel) -> None:
    kernel.update(SHUT._replace(acknowledged=900_000_000, unacked_segments=3, window=16_000_000))
    kernel.update(shut(900_100_000))
    assert kernel.progress.window_step_bytes == BUFFERED_PER_WINDOW * 1_000_000 + MERGED_BYTES


def test_a_larger_step_after_an_idle_time_is_learned_but_not_a_sum_of_steps(
    kernel: ManualKernel,
) -> None:
    for taken in (50_000, 120_000, 190_000):
        kernel.update(shut(taken))
    assert kernel.progress.window_step_bytes == 50_000
    kernel.update(shut(190_000))
    kernel.update(
        SHUT._replace(acknowledged=230_000, unacked_segments=9, window=30_000)
    )  # in the middle of a step
    kernel.update(shut(255_000))
    assert kernel.progress.window_step_bytes == 65_000


def test_what_was_taken_never_shrinks_and_stays_when_the_socket_is_closed(kernel: ManualKernel) -> None:
    assert kernel.update(shut(50_000)) == 50_000
    assert kernel.update(shut(49_000)) == 50_000
    assert kernel.update(None) == 50_000
    kernel.progress.close()
    assert kernel.progress.closed and kernel.progress.update(10_000_000, 0) == 50_000


def test_what_waits_waits_for_the_network_when_the_window_was_open_most_of_the_time(
    kernel: ManualKernel,
) -> None:
    begun = SHUT._replace(acknowledged=1_000, window=30_000, unacked_segments=5)
    kernel.update(begun._replace(busy=PATH_WAITS_US, shut=PATH_WAITS_US))
    assert not kernel.progress.is_network_limited
    kernel.update(begun._replace(busy=PATH_WAITS_US * 3 // 2, shut=PATH_WAITS_US))
    assert not kernel.progress.is_network_limited, "too short to be told"
    kernel.update(begun._replace(busy=3 * PATH_WAITS_US, shut=PATH_WAITS_US))
    assert kernel.progress.is_network_limited
    kernel.update(begun._replace(busy=5 * PATH_WAITS_US, shut=PATH_WAITS_US, short=2 * PATH_WAITS_US))
    assert not kernel.progress.is_network_limited, "this side's buffer was short"
    kernel.update(begun._replace(busy=7 * PATH_WAITS_US, shut=PATH_WAITS_US, short=2 * PATH_WAITS_US))
    kernel.update(begun._replace(queued=0, unsent=0, unacked_segments=0, busy=8 * PATH_WAITS_US))
    assert not kernel.progress.is_network_limited, "nothing waits"


def test_a_shut_window_that_nobody_answers_for_is_the_networks(kernel: ManualKernel) -> None:
    kernel.update(shut(1_000, busy=PATH_WAITS_US, shut=PATH_WAITS_US, unanswered=1))
    assert not kernel.progress.is_network_limited
    kernel.update(shut(1_000, busy=PATH_WAITS_US, shut=PATH_WAITS_US, unanswered=2))
    assert kernel.progress.is_network_limited


def test_where_the_kernel_tells_nothing_what_this_process_holds_is_under_way() -> None:
    near, far = socket.socketpair()
    with near, far:
        assert read_tcp_info(near) is None
        progress = PeerProgress(near)
        assert progress.update(1_000, 400) == 600 and progress.update(1_000, 0) == 1_000
        assert progress.window_step_bytes == 0 and not progress.is_network_limited


def test_a_kernel_says_what_is_on_its_way_and_nothing_of_a_closed_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as far:
        far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        far.connect(listening.getsockname())
        near, _ = listening.accept()
        near.setblocking(False)
        sent = 0
        with pytest.raises(BlockingIOError):
            while True:
                sent += near.send(bytes(1 << 16))
        wait_for(lambda: (view := read_tcp_info(near)) is not None and view.is_shut)
        view = read_tcp_info(near)
        assert view is not None and 0 < view.acknowledged == sent - view.queued and view.unsent == view.queued
        near.close()
        assert read_tcp_info(near) is None


def test_a_peer_without_memory_for_what_its_window_let_through_is_no_trouble_of_the_network() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as far,
    ):
        near, _ = listening.accept()
        with near:
            progress = PeerProgress(near)
            far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)  # its first window was for far more
            near.setblocking(False)
            sent = 0
            with pytest.raises(BlockingIOError):
                while True:
                    sent += near.send(bytes(1 << 16))
            end = time.monotonic() + 1.5
            while time.monotonic() < end:
                assert progress.update(sent, 0) < 1 << 20 and not progress.is_network_limited
                time.sleep(0.1)
            view = read_tcp_info(near)
            assert view is not None and view.unacked_segments and view.is_shut and progress.window_step_bytes


# Readers at their own pace.


def wait_for(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait for a change made by another process or the kernel."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it doesn't come"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


def transports(authority: Authority, *names: str) -> list[TransportSettings]:
    """Transports called tcp, tcps, ws, wss."""
    return [
        TransportSettings(
            name,
            "websocket" if name.startswith("ws") else "tcp",
            0,
            tls=authority.transport() if name in ("tcps", "wss") else None,
        )
        for name in names
    ]


def reader(
    authority: Authority, made: TransportsProcess, name: str, rate: int, buffer: int | None
) -> PacedReader:
    tls = tls_context(authority.certificate) if name in ("tcps", "wss") else None
    return PacedReader(made.ports[name], rate, buffer, websocket=name.startswith("ws"), tls=tls)


def rates(looks: list[SinkSample], at_least_s: float) -> Iterator[float]:
    """Bytes a second from the end of one step to the end of a later one."""
    ends = [
        now
        for before, now, after in zip(looks, looks[1:], looks[2:], strict=False)
        if before.acked < now.acked == after.acked
    ]
    for first in ends:
        last = next((end for end in ends if end.at >= first.at + at_least_s), None)
        if last is not None:
            yield (last.acked - first.acked) / (last.at - first.at)


def check(reader: PacedReader, looks: list[SinkSample]) -> int:
    """Compare the sink's figures with the reader's; return how many rates were compared."""
    assert all(before.acked <= now.acked <= now.written for before, now in pairwise(looks))
    newest = reader.samples[-1].at  # of what came since nobody knows what its kernel has
    for look in looks:
        assert look.at > newest or look.acked <= reader.kernel_bytes_at(look.at), "more than its kernel had"
    known = [look for look in looks if look.window_step]
    assert known, "its window was never seen shut"
    lump = known[-1].window_step
    # One law: what was taken runs ahead of what was read by an amount that varies by a lump at most.
    ahead = [look.acked - reader.bytes_read_at(look.at) for look in known]
    unseen = reader.rate * (SAMPLE_INTERVAL_S + 1 / READS_A_SECOND)
    assert max(ahead) - min(ahead) <= lump + unseen
    if reader.rate * READ_FOR_S > 3 * lump:
        assert lump <= 2 * (max(ahead) - min(ahead) + unseen), "a lump far beyond what it is"
    compared = list(rates(known, max(1.0, lump / FLOOR, lump / reader.rate)))
    for rate in compared:
        assert abs(rate - reader.rate) <= 0.2 * reader.rate
    return len(compared)


@pytest.mark.slow
@pytest.mark.serial
def test_progress_is_that_of_the_reader_whatever_its_pace_its_buffer_and_the_transport(
    authority: Authority,
) -> None:
    compared, readers = 0, list[tuple[TransportsProcess, str, PacedReader]]()
    with (
        transports_process("uvloop", *transports(authority, "tcp", "tcps", "ws", "wss")) as usual,
        transports_process("asyncio", *transports(authority, "tcp", "tcps")) as plain,
    ):
        try:
            for made, names, buffers in (
                (usual, ("tcp", "tcps", "ws", "wss"), BUFFERS),
                (plain, ("tcp", "tcps"), BUFFERS[1:]),
            ):
                readers += [
                    (made, name, reader(authority, made, name, rate, buffer))
                    for name in names
                    for rate in RATES
                    for buffer in buffers
                ]
            time.sleep(READ_FOR_S)
            for made, name, one in readers:
                try:
                    compared += check(one, list(made.samples[one.address]))
                except AssertionError as problem:
                    raise AssertionError(f"{name}, {one}: {problem}") from problem
            assert compared > 5 * len(readers)
            for made in (usual, plain):
                made.stop_sending()
            for _, _, one in readers:
                one.read_at_full_speed()
            for made, name, one in readers:
                one.read_to_end()
                wait_for(lambda made=made, one=one: made.samples[one.address][-1].at > one.samples[-1].at)
                last, read = made.samples[one.address][-1], one.samples[-1].read
                assert last.acked == last.written <= read, f"{name}, {one}: it has read everything"
                assert name != "tcp" or last.acked == read
        finally:
            for _, _, one in readers:
                one.close()


# Networks that carry nothing.

SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27


def cut(peer: PacedReader) -> None:
    """Drop all further data for the peer before its kernel gets it, with a socket filter."""
    instruction = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
    program = struct.pack("HP", 1, ctypes.addressof(instruction))
    peer.socket.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


def mend(peer: PacedReader) -> None:
    peer.socket.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)


def test_a_dead_network_is_distinguished_from_a_peer_that_does_not_read(
    authority: Authority, tmp_path: Path
) -> None:
    with transports_process("uvloop", *transports(authority, "tcp", "ws")) as made:
        fast = [reader(authority, made, name, 4_000_000, 1 << 18) for name in ("tcp", "ws")]
        still = [reader(authority, made, name, 0, 8 * 1024) for name in ("tcp", "ws")]
        try:
            wait_for(
                lambda: all(made.samples.get(one.address, [SILENT])[-1].acked > 1_000_000 for one in fast)
            )
            wait_for(lambda: all(made.samples.get(one.address, [SILENT])[-1].window_step for one in still))
            for one in fast:
                cut(one)
            wait_for(lambda: all(made.samples[one.address][-1].network_limited for one in fast))
            assert not any(look.network_limited for one in still for look in made.samples[one.address])
            for one in fast:
                mend(one)
            wait_for(lambda: not any(made.samples[one.address][-1].network_limited for one in fast))
            for one in still:
                cut(one)
            wait_for(lambda: all(made.samples[one.address][-1].network_limited for one in still))
        finally:
            for one in (*fast, *still):
                one.close()


SILENT = SinkSample(0.0, 0, 0, 0, False)
