"""The store of positions for disconnected clients: its file, its single writer, and its pins."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_core.bookmark import MAX_SEQUENCE
from broker_core.checksum import crc32c
from broker_core.errors import JournalError, OperatorError
from broker_core.journal.files import FileSystem
from broker_core.journal.open_segments import Pin, PinTable
from broker_core.replay.positions.file import (
    VERSION,
    DurableSubscriptionRecord,
    ManagedReplayRecord,
    encode_entries,
    encode_positions,
    join_encoded,
    load_applied_upto,
    load_positions,
)
from broker_core.replay.positions.store import PositionStore
from broker_core.replay.span import NEVER
from tests.broker_core.journal.support import FailingFiles
from tests.support.lost_renames import LostRenames

DURABLE = {
    "client": "reader",
    "name": "orders",
    "topic": "t",
    "filter": None,
    "position": 7,
    "created_at": 11,
    "seen_at": 12,
}
REPLAY = {
    "name": "nightly",
    "client": "auditor",
    "topic": "orders.>",
    "filter": "/n > 1",
    "bookmark": "0",
    "rate": "2X",
    "rate_max_gap": "10s",
    "conflation": None,
    "conflation_key": None,
    "paused": True,
    "first": 3,
    "not_before": 0,
    "last": MAX_SEQUENCE,
    "not_after": NEVER,
    "position": 9,
    "begun": True,
    "created_at": 13,
    "began_at": 3,
    "recorded_at": 14,
    "delivered_messages": 6,
    "certain": 5,
    "caught_up": False,
    "ended": "",
    "ended_at": 0,
    "carried": 0,
    "carried_limit": 0,
    "carried_to": "",
    "carried_generation": 0,
    "set_back": None,
    "steered_at": 15,
}
GOLDEN = (
    b'{"version":2,"crc":3447198121,"kept":[{"kind":"durable","seen_at":12,"sharing":null,"name":"orders","client":"reader","topic":"t",'
    b'"filter":null,"position":7,"created_at":11}]}'
)


def durable(name: str = "orders", position: int = 7) -> DurableSubscriptionRecord:
    return DurableSubscriptionRecord(
        name=name, client="reader", topic="t", filter=None, position=position, created_at=11, seen_at=12
    )


class InstanceDirectory:
    """Directories of an instance, and the pins of its log."""

    def __init__(self, path: Path) -> None:
        self.path = path / "journal" / "i.kept.json"
        self.pins = PinTable()
        self.path.parent.mkdir()

    def store(self, files: FileSystem | None = None) -> PositionStore:
        return PositionStore(self.path, self.pins.add, files)

    def pinned_from(self) -> dict[str, int]:
        return {pin.owner: pin.sequence for pin in self.pins.list_pins()}

    def stored(self) -> dict[str, int]:
        """Return the positions on disk by name."""
        entries = orjson.loads(self.path.read_bytes())["kept"] if self.path.exists() else []
        return {one["name"]: one["position"] for one in entries}


@pytest.fixture
def home(tmp_path: Path) -> InstanceDirectory:
    return InstanceDirectory(tmp_path)


class SlowFiles(FileSystem):
    """A disk on which each rename waits until the test lets it through."""

    def __init__(self) -> None:
        self.begun = 0
        self._let = threading.Semaphore(0)

    def rename(self, source: Path, target: Path) -> None:
        self.begun += 1
        assert self._let.acquire(timeout=30)
        super().rename(source, target)

    def let(self, number: int = 1) -> None:
        self._let.release(number)


async def start_renames(files: SlowFiles, number: int) -> None:
    async with asyncio.timeout(30):
        while files.begun < number:
            await asyncio.sleep(0)


# The file.


def test_golden_bytes(home: InstanceDirectory) -> None:
    assert encode_positions([durable()]) == GOLDEN
    home.path.write_bytes(GOLDEN)
    assert list(home.store().durables) == [("reader", "orders")]


def test_what_is_stored_comes_back_and_unknown_fields_are_passed_over(home: InstanceDirectory) -> None:
    entries = [{"kind": "durable", **DURABLE, "later": [1]}, {"kind": "managed", **REPLAY, "later": {}}]
    crc = crc32c(orjson.dumps(entries))
    home.path.write_bytes(orjson.dumps({"version": VERSION, "crc": crc, "kept": entries, "later": 1}))
    kept = home.store()
    assert orjson.loads(encode_positions(kept))["kept"] == [
        {"kind": "durable", "sharing": None, **DURABLE},
        {"kind": "managed", **REPLAY},
    ]
    assert home.pinned_from() == {"durable subscription orders of reader": 7, "managed replay nightly": 5}


def test_a_flipped_bit_is_reported_or_harmless_and_no_update_is_skipped(
    home: InstanceDirectory,
) -> None:
    """On a group's member, a `taken` that moved forward would skip updates of other members."""
    content = join_encoded(encode_entries([durable()]), {}, 4_711)
    home.path.write_bytes(content)
    assert home.store().applied_upto == 4_711
    anew = 0
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        home.path.write_bytes(flipped)
        try:
            found = load_positions(FileSystem(), home.path)
        except OperatorError as problem:
            assert problem.code == "bad_kept_positions"
            continue
        assert encode_positions(found) == encode_positions([durable()])
        upto = load_applied_upto(home.path)
        assert upto in (0, 4_711)
        anew += upto == 0
    assert anew, "what isn't believed doesn't keep the broker from starting"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        GOLDEN[:-10],
        b"[]",
        b'{"version":1,"kept":[]}',
        b'{"version":2,"kept":[]}',
        b'{"version":3,"crc":0,"kept":[]}',
        GOLDEN.replace(b'"position":7', b'"position":6'),
        b'{"version":1}',
        GOLDEN.replace(b"durable", b"lasting"),
        GOLDEN.replace(b'"position":7', b'"position":"7"'),
        GOLDEN.replace(b'"topic":"t",', b""),
        GOLDEN.replace(b"orders", b"\xff"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_by_name(home: InstanceDirectory, content: bytes) -> None:
    home.path.write_bytes(content)
    with pytest.raises(OperatorError) as refused:
        home.store()
    assert (refused.value.code, home.path.read_bytes()) == ("bad_kept_positions", content)


def test_positions_torn_at_any_byte_are_refused_by_name_and_none_is_taken_for_a_smaller_whole(
    home: InstanceDirectory,
) -> None:
    whole = encode_positions([durable(), durable("other", 70)], {"queue.x": 17})
    for kept in range(len(whole)):
        for torn in (whole[:kept], whole[:kept].ljust(len(whole), b"\0")):
            home.path.write_bytes(torn)
            with pytest.raises(OperatorError) as refused:
                home.store()
            assert (refused.value.code, home.path.read_bytes()) == ("bad_kept_positions", torn), kept
    assert home.pinned_from() == {}, "what can't be read holds nothing"
    home.path.write_bytes(whole)
    assert [one.position for one in home.store()] == [7, 70]


async def test_a_position_that_was_told_to_be_saved_outlives_a_rename_that_a_power_cut_loses(
    home: InstanceDirectory,
) -> None:
    lost = told = at = 0
    while True:
        at += 1
        home.path.write_bytes(encode_positions([durable()]))
        files = LostRenames(home.path.parent.parent)
        kept = home.store(files)
        kept.durables["reader", "orders"].position = 8
        kept.mark_changed(kept.durables["reader", "orders"])
        files.calls, files.power_goes_at = 0, at
        saved = True
        try:
            await kept.save()
        except JournalError:
            saved = False
        held, cut = home.pinned_from()["durable subscription orders of reader"], files.calls >= at
        files.power_goes_at = 0
        lost += files.power_on()
        assert home.stored() == {"orders": 8} if saved else home.stored()["orders"] in (7, 8)
        assert held <= home.stored()["orders"], "the log is there from where it goes on"
        told += saved
        for pin in home.pins.list_pins():
            pin.release()
        if not cut:
            break
    assert (told, lost) == (1, 1) and at >= 4, (
        "write, sync, rename, and the directory's sync, whose failure loses the rename"
    )


# The writer.


async def test_however_many_wait_they_share_the_next_write(home: InstanceDirectory) -> None:
    files = SlowFiles()
    kept = home.store(files)
    waiting = []
    for number in range(500):
        kept.add(durable(f"d{number}"))
        waiting.append(asyncio.create_task(kept.save()))
        if number == 249:
            await start_renames(files, 1)
    files.let(2)
    await asyncio.gather(*waiting)
    assert (files.begun, len(home.stored())) == (2, 500)


async def test_a_save_is_not_answered_by_a_write_that_had_begun(home: InstanceDirectory) -> None:
    files = SlowFiles()
    kept = home.store(files)
    kept.add(durable("early"))
    early = asyncio.create_task(kept.save())
    await start_renames(files, 1)
    kept.add(durable("late"))
    late = asyncio.create_task(kept.save())
    files.let()
    await early
    assert home.stored() == {"early": 7}
    await start_renames(files, 2)
    assert not late.done()
    files.let()
    await late
    assert home.stored() == {"early": 7, "late": 7}


async def test_a_waiter_that_is_cancelled_takes_the_write_away_from_nobody(home: InstanceDirectory) -> None:
    files = SlowFiles()
    kept = home.store(files)
    kept.add(durable())
    impatient, patient = asyncio.create_task(kept.save()), asyncio.create_task(kept.save())
    await start_renames(files, 1)
    impatient.cancel()
    files.let()
    await patient
    assert impatient.cancelled()
    assert home.stored() == {"orders": 7}


async def test_a_failed_write_is_reported_to_its_waiters_and_repeated(home: InstanceDirectory) -> None:
    files = FailingFiles()
    kept = home.store(files)
    kept.add(durable())
    files.fail = lambda name: name == "fsync"
    waiting = [asyncio.create_task(kept.save()) for _ in range(3)]
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [one.code for one in answers if isinstance(one, JournalError)] == ["not_kept"] * 3
    kept.save_soon()
    await kept.close()
    assert home.stored() == {}
    files.fail = lambda name: False
    kept.save_soon()
    await kept.close()
    assert home.stored() == {"orders": 7}


async def test_what_has_not_changed_is_not_written_each_second_and_what_has_is_at_the_end(
    home: InstanceDirectory,
) -> None:
    files = FailingFiles()
    kept = home.store(files)
    kept.save_soon()
    await kept.close()
    assert files.calls == []
    kept.add(durable())
    await kept.close()
    assert home.stored() == {"orders": 7}
    written = len(files.calls)
    kept.save_soon()
    await kept.close()
    assert len(files.calls) == written


async def test_the_log_is_held_until_the_new_position_is_on_disk(home: InstanceDirectory) -> None:
    files = FailingFiles()
    kept, one = home.store(files), durable(position=7)
    replay = ManagedReplayRecord(**REPLAY)
    kept.add(one)
    kept.add(replay)
    assert home.pinned_from() == {one.owner: 7, replay.owner: 5}
    one.position, replay.ended = 20, "cancelled"
    kept.mark_changed(one)
    files.fail = lambda name: True
    with pytest.raises(JournalError):
        await kept.save()
    assert home.pinned_from() == {one.owner: 7, replay.owner: 5}
    files.fail = lambda name: False
    await kept.save()
    assert home.pinned_from() == {one.owner: 20}
    kept.remove(one)
    assert home.pinned_from() == {}
    kept.remove(one)
    assert list(kept) == [replay]


def test_dropping_one_leaves_another_of_the_same_name_alone(home: InstanceDirectory) -> None:
    kept, earlier, later = home.store(), durable(), durable(position=9)
    kept.add(earlier)
    kept.remove(earlier)
    kept.add(later)
    kept.remove(earlier)
    assert (list(kept), home.pinned_from()) == ([later], {later.owner: 9})


steps = st.lists(st.sampled_from(["keep", "drop", "move", "save", "fail", "mend", "wait"]), max_size=40)


@settings(max_examples=100, deadline=None)
@given(steps)
def test_a_position_reported_as_saved_is_found_after_a_restart(
    tmp_path_factory: pytest.TempPathFactory, plan: list[str]
) -> None:
    """Also the log is pinned from the position on disk, whatever fails in between."""
    home, files = InstanceDirectory(tmp_path_factory.mktemp("kept")), FailingFiles()

    async def run() -> None:
        kept, states, saving = (
            home.store(files),
            list[dict[str, int]](),
            list[tuple[int, asyncio.Task[None]]](),
        )

        async def check() -> None:
            since, save = saving.pop(0)
            await asyncio.wait([save])
            if save.exception() is None:
                assert home.stored() in states[since:]

        for number, step in enumerate(plan):
            match step:
                case "keep":
                    kept.add(durable(f"d{number}", number))
                case "drop" if kept.durables:
                    kept.remove(next(iter(kept.durables.values())))
                case "move" if kept.durables:
                    moved = list(kept.durables.values())[-1]
                    moved.position += 1_000
                    kept.mark_changed(moved)
                case "fail" | "mend":
                    files.fail = lambda name, fails=step == "fail": fails
                case "wait" if saving:
                    await check()
            states.append({one.name: one.position for one in kept})
            if step == "save":
                saving.append((number, asyncio.create_task(kept.save())))
                await asyncio.sleep(0)
            on_disk = home.stored()
            assert all(
                pin.sequence <= on_disk.get(pin.owner.split()[2], MAX_SEQUENCE)
                for pin in home.pins.list_pins()
            )
        files.fail = lambda name: False
        while saving:
            await check()
        await kept.save()
        assert home.stored() == {one.name: one.position for one in kept}

    asyncio.run(run())


def test_pins_are_of_the_kinds_that_removal_names() -> None:
    for entry, kind in ((durable(), "durable"), (ManagedReplayRecord(**REPLAY), "managed replay")):
        assert Pin(entry.owner, 1, lambda pin: None).kind.startswith(kind)
