"""Reads of clients before logon: only a few per event-loop iteration, on asyncio and uvloop."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable, Iterator

import pytest
import uvloop

from broker_core.connections.admission import READS_PER_ITERATION, PreLogonReadQueue
from broker_core.delivery.scheduling import ITERATION_BUDGET_NS
from tests.support.manual_clock import ManualClock

Loops = Callable[[], asyncio.AbstractEventLoop]
LOOPS = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])


@pytest.fixture
def crowd() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    """Forty peers, each with its own end and the broker's."""
    made = [socket.socketpair() for _ in range(5 * READS_PER_ITERATION)]
    yield made
    for pair in made:
        for one in pair:
            one.close()


async def reads_per_iteration(heard: list[int], number: int) -> list[int]:
    """Return how many clients were read in each iteration, until `number` were."""
    parts, before = [], 0
    async with asyncio.timeout(20):
        while before < number:
            await asyncio.sleep(0)
            if len(heard) > before:
                parts.append(len(heard) - before)
                before = len(heard)
    return parts


@LOOPS
def test_of_those_who_speak_at_once_a_few_are_heard_in_a_turn_and_each_once(
    loop: Loops, crowd: list[tuple[socket.socket, socket.socket]]
) -> None:
    async def run() -> None:
        door, heard = PreLogonReadQueue(ManualClock()), list[int]()
        for number, (peer, own) in enumerate(crowd):
            peer.send(b"x")
            door.add_reader(own.fileno(), lambda number=number: heard.append(number))
        parts = await reads_per_iteration(heard, len(crowd))
        assert max(parts) <= READS_PER_ITERATION and sorted(heard) == list(range(len(crowd)))

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


@LOOPS
def test_who_costs_more_than_a_turns_budget_is_heard_alone(
    loop: Loops, crowd: list[tuple[socket.socket, socket.socket]]
) -> None:
    async def run() -> None:
        clock, heard = ManualClock(), list[int]()
        door = PreLogonReadQueue(clock)

        def costly() -> None:
            heard.append(0)
            clock.advance(ITERATION_BUDGET_NS / 1e9)

        for peer, own in crowd[:6]:
            peer.send(b"x")
            door.add_reader(own.fileno(), costly)
        assert await reads_per_iteration(heard, 6) == [1] * 6

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


async def test_a_client_read_before_queues_behind_the_others(
    crowd: list[tuple[socket.socket, socket.socket]],
) -> None:
    """A client that sends without end does not block the others."""
    door, heard = PreLogonReadQueue(ManualClock()), list[int]()

    def again(number: int, own: socket.socket) -> None:
        heard.append(number)
        door.add_reader(own.fileno(), lambda: again(number, own))  # what it sent is still there

    for number, (peer, own) in enumerate(crowd):
        peer.send(b"x")
        door.add_reader(own.fileno(), lambda number=number, own=own: again(number, own))
    await reads_per_iteration(heard, 2 * len(crowd))
    assert sorted(heard[: 2 * len(crowd)]) == sorted(2 * list(range(len(crowd))))


async def test_a_removed_socket_is_not_read_and_its_descriptor_may_be_reused(
    crowd: list[tuple[socket.socket, socket.socket]],
) -> None:
    door, heard = PreLogonReadQueue(ManualClock()), list[str]()
    (first_peer, first), (second_peer, second) = crowd[:2]

    def former() -> None:
        heard.append("former")

    def latter() -> None:
        heard.append("latter")

    first_peer.send(b"x")
    door.add_reader(first.fileno(), former)
    descriptor = first.fileno()
    first.close()
    taken = socket.socket(fileno=socket.dup(second.fileno()))
    assert taken.fileno() == descriptor, "the lowest that is free"
    second_peer.send(b"x")
    door.add_reader(taken.fileno(), latter)
    door.remove_reader(descriptor, former)
    async with asyncio.timeout(20):
        while not heard:
            await asyncio.sleep(0)
    assert heard == ["latter"]
    door.add_reader(taken.fileno(), latter)
    door.remove_reader(taken.fileno(), latter)
    for _ in range(5):
        await asyncio.sleep(0)
    assert heard == ["latter"]
    taken.close()
    assert select.select([second], [], [], 0)[0] == [second]
