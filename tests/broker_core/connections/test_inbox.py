"""The share of an event-loop iteration that one client's input may use.

Input is processed in order and in slices; meanwhile the socket is not read.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from broker_core.connections.admission import InputBufferUsage, PendingConnections
from broker_core.connections.inbox import ITEM_BYTES, Inbox, InputPauseReason, Item
from broker_core.delivery.scheduling import ITERATION_BUDGET_NS, WorkScheduler
from tests.support.manual_clock import ManualClock

SLOW = ITERATION_BUDGET_NS / 1e9 / 4
"""A command of which four are a turn's budget, in seconds."""


class InboxHarness:
    """The socket side and the connection side of an inbox.

    Each command takes the time that its text gives.
    """

    def __init__(self, clock: ManualClock | None = None, turns: WorkScheduler | None = None) -> None:
        self.clock = clock or ManualClock()
        self.taken: list[Item] = []
        self.reading = True
        sink: Any = self
        self.pending_connections = PendingConnections()
        self.inbox = Inbox(
            sink,
            self.take,
            self.clock,
            turns or WorkScheduler(self.clock),
            InputBufferUsage(self.pending_connections),
        )
        self.told: list[str] = []

    def take(self, item: Item) -> None:
        self.taken.append(item)
        self.clock.advance(SLOW)
        if item == "logon":
            self.inbox.pause(InputPauseReason.LOGON)
        if item == "publish":
            self.inbox.pause(InputPauseReason.JOURNAL)

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True


@pytest.fixture
def peer() -> InboxHarness:
    return InboxHarness()


async def run_loop_iteration() -> None:
    await asyncio.sleep(0)


async def test_what_fits_into_a_turn_is_taken_at_once(peer: InboxHarness) -> None:
    peer.inbox.put(["1", "2", "3"])
    assert peer.taken == ["1", "2", "3"] and peer.reading


async def test_more_is_taken_in_later_turns_in_order_and_nothing_is_read_meanwhile(
    peer: InboxHarness,
) -> None:
    sent = [str(number) for number in range(10)]
    peer.inbox.put(sent)
    assert peer.taken == sent[:4] and not peer.reading
    await run_loop_iteration()
    assert peer.taken == sent[:8] and not peer.reading
    await run_loop_iteration()
    assert peer.taken == sent and peer.reading


async def test_what_was_read_before_the_pause_waits_behind_what_is_left(peer: InboxHarness) -> None:
    peer.inbox.put(map(str, range(6)))
    peer.inbox.put(["6", "7"])
    assert len(peer.taken) == 4
    await run_loop_iteration()
    assert peer.taken == [str(number) for number in range(8)] and peer.reading


async def test_many_reads_in_one_turn_share_its_budget(peer: InboxHarness) -> None:
    for number in range(6):
        peer.inbox.put([str(number)])
    assert len(peer.taken) == 4 and not peer.reading
    await run_loop_iteration()
    assert len(peer.taken) == 6 and peer.reading


async def test_time_in_which_others_had_their_turn_gives_the_budget_back(peer: InboxHarness) -> None:
    for number in range(12):
        peer.inbox.put([str(number)])
        peer.clock.advance(SLOW)
    assert len(peer.taken) == 12 and peer.reading


async def test_a_long_command_is_finished_and_the_next_has_its_own_turn(peer: InboxHarness) -> None:
    peer.inbox.put(["1", "2", "3", "4"])
    peer.clock.advance(60)
    peer.inbox.put(["5"])
    assert peer.taken[-1] == "5", "an old turn is over"


async def test_nothing_is_taken_while_a_logon_is_checked_also_of_the_same_read(peer: InboxHarness) -> None:
    peer.inbox.put(["logon", "subscribe"])
    peer.inbox.put(["flush"])
    await run_loop_iteration()
    assert peer.taken == ["logon"] and not peer.reading
    peer.inbox.resume(InputPauseReason.LOGON)
    assert peer.taken == ["logon", "subscribe", "flush"] and peer.reading


async def test_what_waits_is_counted_until_it_is_taken_or_is_nobodys(peer: InboxHarness) -> None:
    many = ["x" * 10] * 100
    peer.inbox.put(["logon", *many])
    whole = len("logon") + ITEM_BYTES + 100 * (10 + ITEM_BYTES)
    assert peer.pending_connections.buffered == whole, (
        "tiny commands take more than their bytes, and a read stays until all of it is taken"
    )
    peer.inbox.resume(InputPauseReason.LOGON)
    while not peer.reading:
        await run_loop_iteration()
    assert peer.pending_connections.buffered == 0
    peer.inbox.put(["logon", *many])
    peer.inbox.end(lambda: peer.told.append("ended"))
    assert peer.pending_connections.buffered == 0 and peer.told == ["ended"]


async def test_a_client_is_read_from_when_no_reason_is_left_not_to(peer: InboxHarness) -> None:
    peer.inbox.put(["publish", "logon", "next"])
    peer.inbox.resume(InputPauseReason.JOURNAL)
    assert peer.taken == ["publish", "logon"] and not peer.reading
    peer.inbox.pause(InputPauseReason.JOURNAL)
    peer.inbox.resume(InputPauseReason.LOGON)
    assert len(peer.taken) == 2 and not peer.reading
    peer.inbox.resume(InputPauseReason.JOURNAL)
    assert len(peer.taken) == 3 and peer.reading


async def test_a_connection_that_ends_has_everything_taken_that_came_before(peer: InboxHarness) -> None:
    peer.inbox.put(map(str, range(6)))
    peer.inbox.end(lambda: peer.told.append("ended"))
    assert len(peer.taken) == 4 and not peer.told
    await run_loop_iteration()
    assert len(peer.taken) == 6 and peer.told == ["ended"]
    await run_loop_iteration()
    assert peer.told == ["ended"], "once"


async def test_a_full_disk_holds_no_connection_that_has_ended(peer: InboxHarness) -> None:
    peer.inbox.put(["publish", "1", "2"])
    peer.inbox.end(lambda: peer.told.append("ended"))
    assert peer.taken == ["publish", "1", "2"] and peer.told == ["ended"]


async def test_a_connection_that_ends_before_its_logon_publishes_nothing(
    peer: InboxHarness,
) -> None:
    peer.inbox.put(["logon", "publish"])
    peer.inbox.end(lambda: peer.told.append("ended"))
    assert peer.taken == ["logon"] and peer.told == ["ended"]


async def test_many_clients_with_more_than_their_budget_share_one_a_turn_in_line() -> None:
    clock = ManualClock()
    turns = WorkScheduler(clock)
    peers = [InboxHarness(clock, turns) for _ in range(3)]
    for peer in peers:
        peer.inbox.put(map(str, range(10)))
    assert [len(peer.taken) for peer in peers] == [4, 4, 4]
    seen = []
    for _ in range(6):
        await run_loop_iteration()
        seen.append([len(peer.taken) for peer in peers])
    assert seen == [[8, 4, 4], [8, 8, 4], [8, 8, 8], [10, 10, 8], [10, 10, 10], [10, 10, 10]]


async def test_many_clients_that_leave_together_end_a_budget_a_turn() -> None:
    clock = ManualClock()
    turns, ended = WorkScheduler(clock), list[int]()

    def leave(number: int) -> None:
        clock.advance(SLOW)
        ended.append(number)

    for number in range(10):
        InboxHarness(clock, turns).inbox.end(partial(leave, number))
    seen = [len(ended)]
    while len(ended) < 10:
        await run_loop_iteration()
        seen.append(len(ended))
    assert seen == [4, 8, 10]
    assert ended == list(range(10))


async def test_a_single_connection_closes_immediately() -> None:
    clock = ManualClock()
    turns, ended = WorkScheduler(clock), list[int]()
    for number in range(3):
        InboxHarness(clock, turns).inbox.end(partial(ended.append, number))
        assert ended[-1] == number
