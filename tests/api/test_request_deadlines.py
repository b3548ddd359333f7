"""Deadlines and limits of the web process's connections, on Twisted's test clock and without sockets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from api import bounded_http, unfinished_requests
from api.bounded_http import BODY_WITHIN_S, HEAD_WITHIN_S, KEEP_ALIVE_TIMEOUT_S, LINGER_S, BoundedHTTPFactory
from api.unfinished_requests import UnfinishedRequests

HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\n"


class Connection:
    """Connection to a factory whose application answers when the test calls `finish`."""

    def __init__(self, factory: BoundedHTTPFactory) -> None:
        self.transport = StringTransport()
        self.protocol = factory.buildProtocol(self.transport.getPeer())
        self.protocol.makeConnection(self.transport)

    def send(self, data: bytes) -> None:
        self.protocol.dataReceived(data)

    @property
    def status(self) -> int:
        said = self.transport.value().split(b" ")
        return int(said[1]) if len(said) > 1 else 0

    @property
    def closing(self) -> bool:
        return bool(self.transport.disconnecting or self.transport.disconnected)

    def lose(self) -> None:
        self.protocol.connectionLost(Failure(ConnectionDone()))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(bounded_http, "reactor", made)
    return made


@pytest.fixture
def factory(clock: Clock) -> BoundedHTTPFactory:
    known: dict[Any, Any] = {}
    server = SimpleNamespace(
        protocol_connected=lambda one: known.update({one: {}}),
        protocol_disconnected=lambda one: None,
        server_name="",
        create_application=lambda *_: None,
        root_path="",
        proxy_forwarded_address_header=None,
        request_buffer_size=8192,
    )
    return BoundedHTTPFactory(server)


def test_more_bytes_of_a_head_do_not_move_its_deadline(clock: Clock, factory: BoundedHTTPFactory) -> None:
    one = Connection(factory)
    for _ in range(HEAD_WITHIN_S - 1):
        one.send(b"G")
        clock.advance(1)
    assert not one.closing
    clock.advance(1)
    assert (one.status, one.closing) == (408, True)


def test_a_body_has_a_deadline_and_is_gone_from_memory(clock: Clock, factory: BoundedHTTPFactory) -> None:
    one = Connection(factory)
    one.send(HEAD + b"Content-Length: 1000\r\n\r\n")
    for _ in range(BODY_WITHIN_S):
        one.send(b"x")
        clock.advance(1)
    assert (one.status, one.closing) == (408, True)
    one.lose()
    assert factory.unfinished.reserve_body("", unfinished_requests.BODY_BYTES_TOGETHER)
    assert not clock.getDelayedCalls()


def test_a_length_over_the_bound_is_refused_and_what_follows_is_thrown_away(
    clock: Clock, factory: BoundedHTTPFactory
) -> None:
    one = Connection(factory)
    one.send(HEAD + b"Content-Length: 900000000\r\n\r\n")
    assert (one.status, one.closing) == (413, True)
    said = one.transport.value()
    for _ in range(100):
        one.send(bytes(1_000_000))
    assert one.transport.value() == said
    clock.advance(LINGER_S)
    assert one.transport.disconnected


def test_bodies_of_one_address_have_a_budget_until_their_requests_are_answered(
    clock: Clock, factory: BoundedHTTPFactory
) -> None:
    budget = unfinished_requests.BODY_BYTES_PER_ADDRESS
    size = 4 * 1024 * 1024
    full = [Connection(factory) for _ in range(budget // size)]
    for one in full:
        one.send(HEAD + f"Content-Length: {size}\r\n\r\n".encode() + bytes(size))
    beyond = Connection(factory)
    beyond.send(HEAD + b"Content-Length: 10\r\n\r\n0123456789")
    assert beyond.status == 503
    full[0].lose()
    again = Connection(factory)
    again.send(HEAD + b"Content-Length: 10\r\n\r\n0123456789")
    assert again.status == 0


def test_an_idle_connection_is_closed_without_an_answer(clock: Clock, factory: BoundedHTTPFactory) -> None:
    one = Connection(factory)
    one.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    clock.advance(KEEP_ALIVE_TIMEOUT_S * 3)
    assert not one.closing, "no deadline applies while a request is processed"
    channel = one.protocol._channel
    channel.requests[0].finish()
    said = one.transport.value()
    clock.advance(KEEP_ALIVE_TIMEOUT_S)
    assert (one.closing, one.transport.value()) == (True, said)


def test_a_pipelined_request_begins_when_the_answer_before_it_was_read(
    clock: Clock, factory: BoundedHTTPFactory
) -> None:
    one = Connection(factory)
    one.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2)
    channel = one.protocol._channel
    channel.pauseProducing()  # as a transport does whose buffer is full
    channel.requests[0].finish()
    assert (channel.requests, one.transport.producerState) == ([], "paused")
    channel.resumeProducing()
    assert (len(channel.requests), one.transport.producerState) == (1, "producing")
    one.lose()


def test_input_behind_an_unread_answer_is_not_read(clock: Clock, factory: BoundedHTTPFactory) -> None:
    one = Connection(factory)
    one.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    channel = one.protocol._channel
    channel.pauseProducing()
    one.send(b"G")
    assert one.transport.producerState == "paused"
    channel.resumeProducing()
    assert one.transport.producerState == "paused", "the request is still being processed"
    channel.requests[0].finish()
    assert one.transport.producerState == "producing"
    one.lose()


class Line:
    """Connection that counts evictions."""

    closed = 0

    def evict(self) -> None:
        self.closed += 1


def test_the_oldest_of_the_address_with_most_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfinished_requests, "MAX_PER_ADDRESS", 3)
    monkeypatch.setattr(unfinished_requests, "MAX_TOGETHER", 4)
    hall, lines = UnfinishedRequests(), [Line() for _ in range(8)]
    for line in lines[:4]:
        hall.enter("192.0.2.1", line)
    assert [line.closed for line in lines[:4]] == [1, 0, 0, 0]
    hall.enter("192.0.2.2", lines[4])
    hall.enter("192.0.2.3", lines[5])
    assert [line.closed for line in lines[:6]] == [1, 1, 0, 0, 0, 0]
    hall.remove("192.0.2.1", lines[2])
    hall.remove("192.0.2.1", lines[2])
    hall.enter("", lines[6])
    assert sum(line.closed for line in lines) == 2
