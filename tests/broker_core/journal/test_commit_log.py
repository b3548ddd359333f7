"""The local commit log alone: order, effects of failures, free space, and barriers.

The test runs the steps of the disk's thread.
"""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_core import batch as batches
from broker_core.batch import Batch
from broker_core.control import browsing
from broker_core.documents.requests import BrowseMessages
from broker_core.errors import JournalError
from broker_core.journal import commit_log
from broker_core.journal.commit_log import RESERVED_AHEAD, LocalCommitLog, PendingBatch
from broker_core.journal.files import FileSystem
from broker_core.journal.frontier_file import read_mark
from broker_core.journal.journal import Journal
from broker_core.journal.segment import BatchPosition
from tests.support.manual_clock import ManualClock

Said = PendingBatch[str]


class ManualExecutor:
    """The journal's thread, which performs its steps when the test asks."""

    def __init__(self, journal: Journal) -> None:
        self._writes = 0
        self._write = journal.write
        journal.write = self._counted  # type: ignore[method-assign]
        self._step: Callable[[], bool] = lambda: False
        self.ended = False

    def start(self, step: Callable[[], bool]) -> Callable[[], None]:
        self._step = step
        return self._end

    def _counted(self, group: Sequence[Batch]) -> list[BatchPosition]:
        self._writes += 1
        return self._write(group)

    def write(self) -> None:
        """Go on until the next write is done."""
        before = self._writes
        while self._writes == before:
            assert self._step()

    def step(self, log: LocalCommitLog[str]) -> None:
        """The next step, if there is something to do: a write, or less."""
        if log._next_item is not None or not log._to_write.empty():
            self._step()

    def _end(self) -> None:
        while self._step():
            pass
        self.ended = True


class RecordingOutlet:
    """An outlet that records the groups it receives."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.heard: list[tuple[str, list[str | None]]] = []
        self.stamps: list[tuple[int, int]] = []
        self.durable: list[tuple[Batch, BatchPosition]] = []
        self.error: JournalError | None = None
        self.before: list[str | None] = []
        self.shows_early = False
        self.shown: dict[int, set[bytes]] = {}

    def show(self, group: Sequence[Said], before: Iterable[Said]) -> None:
        reach = max(self._journal.reserved, self._journal.durable_sequence)
        assert group[-1].batch.last_sequence <= reach, "shown before it was reserved"
        self.before = [p.owner for p in before]
        for pending in group:
            self.shown.setdefault(pending.batch.first_sequence, set()).add(pending.batch.body(0))
        self.heard.append(("shown", [p.owner for p in group]))

    def on_stamped(self, group: Sequence[Said]) -> None:
        assert group[0].batch.first_sequence >= self._journal.next_sequence, "stamped before it was written"
        self.stamps += [(p.batch.first_sequence, p.batch.accepted_at) for p in group]
        self.heard.append(("stamped", [p.owner for p in group]))

    def on_durable(self, group: Sequence[Said], positions: Sequence[BatchPosition]) -> None:
        assert group[-1].batch.last_sequence <= self._journal.durable_sequence
        self.durable += zip((p.batch for p in group), positions, strict=True)
        self.heard.append(("applied", [p.owner for p in group]))

    def on_failed(self, group: Sequence[Said], error: JournalError) -> None:
        self.error = error
        self.heard.append(("failed", [p.owner for p in group]))

    def on_log_failed(self, error: JournalError) -> None:
        self.error = error
        self.heard.append(("broken", []))


class CommitLogScenario:
    """A commit log over a real journal, and its output."""

    def __init__(self, journal: Journal) -> None:
        self.journal, self.clock, self.thread = journal, ManualClock(), ManualExecutor(journal)
        self.outlet = RecordingOutlet(journal)
        self.log = LocalCommitLog[str](journal, self.outlet, self.clock, self.thread.start)

    def append(self, *owners: str, nbytes: int = 10) -> None:
        built = (
            batches.build_single_topic_batch("p", "a", [name.encode().rjust(nbytes)] * 2) for name in owners
        )
        self.log.append(
            *(PendingBatch(Batch.parse(one), owner) for one, owner in zip(built, owners, strict=True))
        )

    async def write(self) -> None:
        """Perform the next write of the disk's thread, and its callbacks."""
        await run_iterations()
        self.thread.write()
        await run_iterations()

    @property
    def events(self) -> list[tuple[str, list[str | None]]]:
        return self.outlet.heard


async def run_iterations() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@contextmanager
def refusing(files: FileSystem, what: str, number: int) -> Iterator[None]:
    """The disk refuses a system call for a while."""

    def refuse(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(files, what, refuse)
        yield


@pytest.fixture
def files() -> FileSystem:
    return FileSystem()


@pytest.fixture
def bench(tmp_path: Path, files: FileSystem) -> Iterator[CommitLogScenario]:
    journal = Journal.open(tmp_path, "test-1", files=files)
    yield CommitLogScenario(journal)
    journal.close()


async def test_what_gathers_during_a_write_is_one_group_and_comes_out_in_order(
    bench: CommitLogScenario,
) -> None:
    bench.append("1")
    assert bench.events == [], "never within the call"
    await bench.write()
    bench.append("2")
    bench.append("3", "4")
    await run_iterations()
    assert bench.events == [("stamped", ["1"]), ("applied", ["1"]), ("stamped", ["2", "3", "4"])]
    bench.append("5")
    await run_iterations()
    assert bench.events[3:] == [("stamped", ["5"])], "at the end of its turn, whatever the disk does"
    await bench.write()
    assert bench.events[4:] == [("applied", ["2", "3", "4", "5"])]
    stored = bench.journal.read_with_positions(1, 1 << 20, bench.journal.durable_sequence)
    assert [(p, b.first_sequence) for p, b in stored] == [
        (p, b.first_sequence) for b, p in bench.outlet.durable
    ]
    assert [b.first_sequence for b, _ in bench.outlet.durable] == [1, 3, 5, 7, 9]


def slow_delivery(bench: CommitLogScenario, seconds: float) -> None:
    """Make handing out a batch take this long."""
    applied = bench.outlet.on_durable

    def slow(group: Sequence[Said], positions: Sequence[BatchPosition]) -> None:
        bench.clock.advance(seconds * len(group))
        applied(group, positions)

    bench.outlet.on_durable = slow  # type: ignore[method-assign]


async def applied_in(bench: CommitLogScenario, owners: str) -> list[str]:
    """Return the groups in which the batches of `owners` are handed out together."""
    before = len(bench.events)
    bench.append(*owners)
    await run_iterations()
    bench.thread.write()
    await bench.log.barrier()
    return ["".join(map(str, group)) for what, group in bench.events[before:] if what == "applied"]


async def test_a_group_that_keeps_the_loop_for_too_long_comes_out_over_several_turns(
    bench: CommitLogScenario,
) -> None:
    slow_delivery(bench, commit_log.DELIVERY_SLICE_S)
    assert await applied_in(bench, "123") == ["123"], "what it will take isn't known yet"
    assert await applied_in(bench, "123") == ["1", "2", "3"]
    between: list[str | None] = []
    bench.append("4", "5")
    await run_iterations()
    bench.thread.write()
    while not between[1:]:
        await asyncio.sleep(0)
        between += [owner for _, group in bench.events[-1:] for owner in group]
    assert between == ["4", "5"], "others have their turn in between"
    slow_delivery(bench, -commit_log.DELIVERY_SLICE_S)  # it costs nothing any more
    assert await applied_in(bench, "123456") == ["1", "23", "456"]
    assert [b.first_sequence for b, _ in bench.outlet.durable] == list(range(1, 29, 2))


async def test_what_is_durable_and_not_handed_out_yet_comes_before_a_failure_behind_it(
    bench: CommitLogScenario, files: FileSystem
) -> None:
    slow_delivery(bench, commit_log.DELIVERY_SLICE_S)
    await applied_in(bench, "12")
    bench.append("3", "4", "5")
    await run_iterations()
    bench.thread.write()
    bench.append("6")
    bench.log._queue_gathered()
    with refusing(files, "pwritev", errno.ENOSPC):
        bench.thread.write()
    await bench.log.barrier()
    assert bench.events[-3:] == [("applied", ["3"]), ("applied", ["4", "5"]), ("failed", ["6"])]


async def test_a_group_is_stamped_with_the_moment_of_its_turn(bench: CommitLogScenario) -> None:
    began = bench.clock.now_ns()
    bench.append("1")
    await run_iterations()
    bench.clock.advance(3)
    bench.append("2")
    await run_iterations()
    bench.clock.advance(3)
    await bench.write()
    assert bench.outlet.stamps == [(1, began), (3, began + 3_000_000_000)]


async def test_moments_never_go_back_although_the_clock_does(bench: CommitLogScenario) -> None:
    began = bench.clock.now_ns()
    for seconds in (10, -7, 2, 8):
        bench.clock.advance(seconds)
        bench.append("1")
        await bench.write()
    ahead = began + 10_000_000_000
    assert [at for _, at in bench.outlet.stamps] == [ahead, ahead, ahead, began + 13_000_000_000]


async def test_records_of_a_jump_of_the_clock_are_marked_in_the_journal_and_where_messages_are_browsed(
    bench: CommitLogScenario,
) -> None:
    month_s = 30 * 86_400.0
    for step_s in (0.0, month_s, -month_s):
        bench.clock.set_back(-step_s)
        bench.append("1")
        await bench.write()
    found = bench.journal.read(1, 1 << 20, 1 << 40)
    assert [one.is_time_certain for one in found] == [True, False, True]
    assert not found[1].select(np.arange(1), explicit=True).is_time_certain, "a part of it is marked too"
    request = browsing.parse_browse_request(bench.journal, BrowseMessages(topic="a"), None)
    page = browsing.browse_messages(bench.journal, "test-1", request, 1 << 40)
    assert [one.time_is_estimated for one in page.messages] == [False, False, True, True, False, False]


async def test_what_is_raised_where_batches_come_out_early_breaks_the_log_before_they_are_written(
    bench: CommitLogScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("put in by the test")

    monkeypatch.setattr(bench.outlet, "on_stamped", fails)
    bench.append("1")
    waiting = asyncio.create_task(bench.log.barrier())
    await run_iterations()
    bench.thread.step(bench.log)
    await run_iterations()
    assert bench.events == [("broken", [])] and waiting.done() and bench.journal.durable_sequence == 0
    assert bench.journal.failure is bench.outlet.error is not None


async def test_the_disk_writes_nothing_behind_a_failure_until_the_loop_has_heard_of_it(
    bench: CommitLogScenario, files: FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "MAX_GROUP_BYTES", 1)
    for owner in ("1", "2", "3"):
        bench.append(owner)
        await run_iterations()
    with refusing(files, "pwritev", errno.ENOSPC):
        bench.thread.write()
    for _ in range(2):
        assert bench.thread._step(), "the thread goes on, and writes nothing"
    assert bench.journal.durable_sequence == 0
    await run_iterations()
    assert bench.events[3:] == [("failed", ["1", "2", "3"])], "once, and all of it"
    bench.append("4")
    await bench.write()
    assert bench.events[-1] == ("applied", ["4"]) and bench.journal.durable_sequence == 2


async def test_whatever_is_raised_where_batches_come_out_breaks_the_log(bench: CommitLogScenario) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("put in by the test")

    bench.outlet.on_durable = fails  # type: ignore[method-assign]
    bench.append("1")
    await run_iterations()
    bench.thread.write()
    bench.append("2")
    waiting = asyncio.create_task(bench.log.barrier())
    await run_iterations()
    assert bench.events == [("stamped", ["1"]), ("broken", [])]
    assert bench.outlet.error is not None and "put in by the test" in bench.outlet.error.sentence
    assert waiting.done(), "nobody waits for ever"
    assert bench.journal.failure is bench.outlet.error


async def test_a_failed_write_takes_what_gathered_behind_it_along_and_leaves_no_hole(
    bench: CommitLogScenario, files: FileSystem
) -> None:
    bench.append("1")
    await run_iterations()
    with refusing(files, "pwritev", errno.ENOSPC):
        bench.thread.write()
        bench.append("2")
        bench.append("3")
        await run_iterations()
    assert bench.events == [("stamped", ["1"]), ("failed", ["1", "2", "3"])]
    assert bench.outlet.error is not None and bench.outlet.error.code == "disk_full"
    bench.append("4")
    await bench.write()
    assert bench.events[2:] == [("stamped", ["4"]), ("applied", ["4"])]
    assert [b.first_sequence for b, _ in bench.outlet.durable] == [1], (
        "the numbers of what failed are given again"
    )


async def test_a_batch_is_shown_early_once_its_numbers_are_reserved(bench: CommitLogScenario) -> None:
    bench.outlet.shows_early = True
    bench.append("1")
    await run_iterations()
    assert bench.events == [("stamped", ["1"])], (
        "a number that isn't reserved may name another record after a crash"
    )
    bench.thread.step(bench.log)
    await run_iterations()
    assert bench.events[1:] == [("shown", ["1"])], "reserved, and not written yet"
    assert bench.journal.reserved == 2 + RESERVED_AHEAD
    mark = read_mark(bench.journal.directory, "test-1")
    assert mark is not None and mark.reserved == 2 + RESERVED_AHEAD
    bench.append("2")
    await run_iterations()
    assert bench.events[2:] == [("stamped", ["2"]), ("shown", ["2"])], "at the end of its turn"
    assert bench.outlet.before == ["1"]
    await bench.write()
    assert bench.events[4:] == [("applied", ["1", "2"])]


async def test_nothing_is_reserved_while_nobody_gets_batches_early(bench: CommitLogScenario) -> None:
    bench.append("1")
    await bench.write()
    assert bench.journal.reserved == 0
    assert bench.events == [("stamped", ["1"]), ("applied", ["1"])]


async def test_what_can_not_be_reserved_is_shown_when_it_is_durable(
    bench: CommitLogScenario, files: FileSystem
) -> None:
    bench.outlet.shows_early = True
    bench.append("1")
    await run_iterations()
    with refusing(files, "pwritev", errno.ENOSPC):
        bench.thread.step(bench.log)
        await run_iterations()
    await bench.write()
    assert bench.events == [("stamped", ["1"]), ("shown", ["1"]), ("applied", ["1"])]
    bench.append("2")
    await run_iterations()
    bench.thread.step(bench.log)
    await run_iterations()
    assert bench.events[3:] == [("stamped", ["2"]), ("shown", ["2"])], "the next group asks again"


async def test_numbers_that_were_shown_are_not_given_again_after_a_refused_write(
    bench: CommitLogScenario, files: FileSystem
) -> None:
    bench.outlet.shows_early = True
    bench.append("1", "2")
    await run_iterations()
    bench.thread.step(bench.log)
    await run_iterations()
    bench.append("3")
    bench.outlet.shows_early = False
    with refusing(files, "pwritev", errno.ENOSPC):
        await bench.write()
    assert bench.events[-1] == ("failed", ["1", "2", "3"])
    bench.append("4")
    await bench.write()
    assert [b.first_sequence for b, _ in bench.outlet.durable] == [5], "1 to 4 were shown, 5 wasn't"
    assert bench.journal.missing_ranges == [] and bench.journal.skipped() == [(1, 4)]


async def test_a_failed_sync_is_never_believed_afterwards(
    bench: CommitLogScenario, files: FileSystem
) -> None:
    bench.append("1")
    with refusing(files, "fdatasync", errno.EIO):
        await bench.write()
    bench.append("2")
    await bench.write()
    assert [what for what, _ in bench.events] == [
        "stamped",
        "failed",
        "broken",
        "stamped",
        "failed",
        "broken",
    ]
    assert bench.outlet.error is not None and bench.outlet.error.code == "journal_failed"


async def test_a_large_backlog_is_written_in_bounded_groups(
    bench: CommitLogScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "MAX_GROUP_BYTES", 1_000)
    bench.append("1", "2", "3", nbytes=300)
    bench.append("4", nbytes=3_000)
    bench.append("5")
    for _ in range(5):
        await bench.write()
    assert [owners for what, owners in bench.events if what == "applied"] == [
        ["1"],
        ["2"],
        ["3"],
        ["4"],
        ["5"],
    ]


async def test_a_full_log_has_room_again_when_the_disk_has_taken_it(
    bench: CommitLogScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "PENDING_HIGH_BYTES", 1_000)
    await asyncio.wait_for(bench.log.wait_for_room(), 1)
    bench.append("1", nbytes=400)
    await run_iterations()
    bench.append("2", nbytes=400)
    assert bench.log.is_full
    waiting = asyncio.create_task(bench.log.wait_for_room())
    await run_iterations()
    assert not waiting.done()
    await bench.write()
    assert waiting.done() and not bench.log.is_full


async def test_what_fills_the_log_to_the_brim_has_room(
    bench: CommitLogScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(batches.build_single_topic_batch("p", "a", [b"x" * 10] * 2))
    monkeypatch.setattr(commit_log, "PENDING_HIGH_BYTES", 2 * size)
    bench.append("1")
    bench.append("2")
    assert not bench.log.is_full
    await asyncio.wait_for(bench.log.wait_for_room(), 1)
    bench.append("3")
    assert bench.log.is_full
    held = asyncio.create_task(bench.log.wait_for_room())
    await bench.write()
    assert held.done()


async def test_a_group_is_as_large_as_it_may_be_and_no_larger(
    bench: CommitLogScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(batches.build_single_topic_batch("p", "a", [b"x" * 10] * 2))
    for most, groups in ((3 * size, [["1", "2", "3"]]), (3 * size - 1, [["4", "5"], ["6"]])):
        monkeypatch.setattr(commit_log, "MAX_GROUP_BYTES", most)
        before = len([1 for what, _ in bench.events if what == "applied"])
        bench.append(*[owner for group in groups for owner in group])
        for _ in groups:
            await bench.write()
        assert [owners for what, owners in bench.events if what == "applied"][before:] == groups


async def test_a_broken_log_holds_nobody_up_and_nothing_that_waited_comes_out_later(
    bench: CommitLogScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("put in by the test")

    monkeypatch.setattr(commit_log, "PENDING_HIGH_BYTES", 100)
    monkeypatch.setattr(bench.outlet, "on_durable", fails)
    bench.append("1")
    await run_iterations()
    bench.thread.write()
    bench.append("2", "3")
    held = asyncio.create_task(bench.log.wait_for_room())
    await run_iterations()
    assert held.done() and not bench.log.is_full, "what waited counts no more"
    assert bench.events == [("stamped", ["1"]), ("broken", [])]
    bench.append("4")
    await bench.write()
    assert bench.events[2:] == [("stamped", ["4"]), ("failed", ["4"]), ("broken", [])], "neither 2 nor 3"
    await asyncio.wait_for(bench.log.barrier(), 1)


async def test_the_first_reason_of_a_broken_log_stays(bench: CommitLogScenario, files: FileSystem) -> None:
    bench.append("1")
    with refusing(files, "fdatasync", errno.EIO):
        await bench.write()
    first = bench.journal.failure
    bench.append("2")
    await bench.write()
    assert first is not None and bench.journal.failure is first


async def test_a_failed_write_makes_room_too(
    bench: CommitLogScenario, files: FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_log, "PENDING_HIGH_BYTES", 100)
    bench.append("1", "2")
    assert bench.log.is_full
    with refusing(files, "pwritev", errno.ENOSPC):
        await bench.write()
    assert not bench.log.is_full


async def test_a_barrier_waits_for_what_was_appended_before_it_and_not_for_more(
    bench: CommitLogScenario,
) -> None:
    await asyncio.wait_for(bench.log.barrier(), 1)
    bench.append("1")
    await run_iterations()
    bench.thread.write()
    bench.append("2")
    before = asyncio.create_task(bench.log.barrier())
    await run_iterations()
    assert not before.done()
    bench.thread.write()
    bench.append("3")
    after = asyncio.create_task(bench.log.barrier())
    await run_iterations()
    assert before.done() and not after.done()
    await bench.write()
    assert after.done()


async def test_a_barrier_is_reached_when_what_was_before_it_has_failed(
    bench: CommitLogScenario, files: FileSystem
) -> None:
    bench.append("1")
    await run_iterations()
    bench.append("2")
    reached = asyncio.create_task(bench.log.barrier())
    with refusing(files, "pwritev", errno.ENOSPC):
        await bench.write()
    assert reached.done() and bench.events[-1] == ("failed", ["1", "2"])


@settings(max_examples=200)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 3)),
            st.tuples(st.sampled_from(["turn", "write", "refused", "early"]), st.just(0)),
        ),
        max_size=40,
    )
)
def test_whenever_the_disk_refuses_all_come_out_once_in_order_and_a_shown_number_names_one_record(
    happens: list[tuple[str, int]],
) -> None:
    async def run(directory: Path) -> None:
        files = FileSystem()
        with closing(Journal.open(directory, "test-1", files=files)) as journal:
            bench, number = CommitLogScenario(journal), 0
            for what, count in happens:
                if what == "append":
                    bench.append(*(str(number + more) for more in range(count)))
                    number += count
                elif what == "turn":
                    await asyncio.sleep(0)
                elif what == "early":
                    bench.outlet.shows_early = not bench.outlet.shows_early
                else:
                    with refusing(files, "pwritev", errno.ENOSPC) if what == "refused" else nullcontext():
                        bench.thread.step(bench.log)
            closed = asyncio.create_task(bench.log.close())
            while not closed.done():
                await run_iterations()
                bench.thread.step(bench.log)
            ends = [owners for what, owners in bench.events if what in ("applied", "failed")]
            out = [owner for owners in ends for owner in owners]
            assert out == [str(one) for one in range(number)]
            stored = [b.first_sequence for b in journal.read(1, 1 << 20, journal.durable_sequence)]
            while stored and (more := journal.read(stored[-1] + 2, 1 << 20, journal.durable_sequence)):
                stored += [b.first_sequence for b in more]
            assert stored == [b.first_sequence for b, _ in bench.outlet.durable]
            assert all(len(owners) == 1 for owners in bench.outlet.shown.values())
            assert all(
                bench.outlet.shown.get(b.first_sequence, {b.body(0)}) == {b.body(0)}
                for b, _ in bench.outlet.durable
            )
            left = journal.skipped()
            expected = [
                n for n in range(1, journal.next_sequence, 2) if not any(a <= n <= b for a, b in left)
            ]
            assert stored == expected and journal.missing_ranges == []
            assert all(n in bench.outlet.shown for a, b in left for n in range(a, b, 2)), (
                "skipped for nothing"
            )

    with TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory)))


async def test_closing_finishes_what_was_appended_and_ends_the_thread(bench: CommitLogScenario) -> None:
    bench.append("1")
    await run_iterations()
    bench.append("2")
    closing = asyncio.create_task(bench.log.close())
    await run_iterations()
    assert not closing.done()
    await bench.write()
    await asyncio.wait_for(closing, 1)
    assert bench.thread.ended and bench.events[-1] == ("applied", ["1", "2"])


def test_the_end_of_the_journals_thread_is_waited_for() -> None:
    gate, done = Event(), list[int]()

    def step() -> bool:
        gate.wait(10)
        done.append(len(done))
        return len(done) < 1_000

    wait = commit_log.run_steps_in_thread(step)
    gate.set()
    wait()
    assert len(done) == 1_000


def test_a_disk_that_hangs_keeps_no_process_that_ends() -> None:
    hangs = (
        "import time; from broker_core.journal.commit_log import run_steps_in_thread; "
        "run_steps_in_thread(lambda: time.sleep(600) or True)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", hangs], cwd=Path(__file__).parents[3], timeout=60, check=False
    )
    assert ended.returncode == 0
