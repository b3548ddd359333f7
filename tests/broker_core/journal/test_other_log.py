"""Files of another log with the name of a segment or sidecar: reported, never read, never changed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from broker_core.client import AsyncClient
from broker_core.errors import JournalError, OperatorError
from broker_core.journal.journal import Journal
from broker_core.journal.segment import index_path
from broker_core.journal.segment_copies import compress_segment, copy_segment
from tests.broker_core.test_broker import take
from tests.support.brokers import address_of, running_broker
from tests.support.raw import RawClient

from .support import INSTANCE, accept, fill, open_journal, read_all, topics_batch

EVERYTHING = list(range(1, 241))


def closed_log(home: Path, size: int = 1_000) -> None:
    """A log of several segments: the second is archived, the third archived and compressed."""
    journal = open_journal(home)
    fill(journal, 80, size=size)
    journal.finish_sealed()
    _archive(journal, journal.segments()[1].name)
    third = journal.segments()[2].name
    compress_segment(journal.segments()[2].path, home / "journal" / "prepared")
    journal.compress_swap(third, home / "journal" / "prepared")
    _archive(journal, f"{third}.gz")
    assert [one.state for one in journal.segments()[:4]] == ["sealed", "archived", "archived", "sealed"]
    journal.close()


def _archive(journal: Journal, name: str) -> None:
    path = next(one.path for one in journal.segments() if one.name == name)
    prepared = journal.directory.parent / "archive" / "prepared"
    copy_segment(path, prepared)
    journal.archive_swap(name, prepared)


def segments(home: Path) -> list[Path]:
    """Return the segment files of a closed log, oldest first."""
    return sorted(home.glob(f"*/{INSTANCE}.*.journal*"), key=lambda path: path.name)


def all_records(home: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in home.rglob("*") if path.is_file()}


@pytest.mark.parametrize("number", [0, 1, 2, -1])
def test_a_segment_of_another_log_is_refused_by_its_name_wherever_it_stands(tmp_path: Path, number: int):
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    closed_log(mine)
    closed_log(theirs)
    path = segments(mine)[number]
    shutil.copy(path, tmp_path / "mine's")
    shutil.copy(segments(theirs)[number], path)
    before = all_records(mine)
    for refused in (lambda: open_journal(mine), lambda: accept(mine)):
        with pytest.raises(OperatorError) as caught:
            refused()
        assert caught.value.code == "other_log"
        assert str(path) in caught.value.sentence and "restore" in caught.value.fix
        assert caught.value.details["files"] == [path.name]
    lock = str(mine / "journal" / f"{INSTANCE}.lock")
    assert all_records(mine) | {lock: b""} == before | {lock: b""}, "nothing is touched, not even put aside"
    shutil.copy(tmp_path / "mine's", path)
    again = open_journal(mine)
    assert again.recovery.clean and read_all(again) == EVERYTHING
    again.close()


def test_a_segment_under_another_ones_name_is_refused_and_many_are_counted(tmp_path: Path):
    closed_log(tmp_path)
    paths = segments(tmp_path)
    for path in paths[3:]:
        shutil.copy(paths[0], path)
    with pytest.raises(OperatorError, match=f"{len(paths) - 3} of {len(paths)} segments") as caught:
        open_journal(tmp_path)
    assert f"is segment {paths[0].name} of the log" in caught.value.sentence


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_sidecar_of_another_segment_is_made_anew(tmp_path: Path, number: int):
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    closed_log(mine)
    closed_log(theirs, size=1_100)
    own = index_path(segments(mine)[number])
    others = index_path(segments(theirs)[number])
    if number == 0:
        assert own.name == others.name
    shutil.copy(others, own)
    again = open_journal(mine)
    assert again.recovery.clean and read_all(again) == EVERYTHING
    again.close()
    third = open_journal(mine)
    assert third.recovery.scanned_segments == 1, "the last one alone"
    third.close()


def test_topics_are_not_looked_up_in_another_segments_sidecar(tmp_path: Path) -> None:
    """The foreign sidecar is put there while the log is open; its name and length fit."""
    for topic in ("mine", "them"):
        journal = open_journal(tmp_path / topic)
        while len(journal.segments()) < 4:
            journal.write([topics_batch(journal, [topic] * 20)])
            journal.sync()
        journal.finish_sealed()
        journal.close()
    mine = open_journal(tmp_path / "mine")
    own, others = (index_path(segments(tmp_path / name)[0]) for name in ("mine", "them"))
    assert own.name == others.name
    shutil.copy(others, own)
    assert mine.next_sequence_of_topics({"mine"}, 1) == 1
    mine.close()


def put(source: Path, target: Path) -> None:
    """Replace a file by another one under its name, as `mv` does."""
    shutil.copy(source, target.with_name("beside"))
    target.with_name("beside").rename(target)


def overwrite_file(source: Path, target: Path) -> None:
    """Overwrite a file's content in place, as `cp` does."""
    target.write_bytes(source.read_bytes())


@pytest.mark.parametrize("change", [put, overwrite_file])
@pytest.mark.parametrize("number", [1, 2])
def test_a_segment_that_is_swapped_while_the_log_is_open_is_not_read(tmp_path: Path, change, number: int):
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    closed_log(mine)
    closed_log(theirs)
    path = segments(mine)[number]
    shutil.copy(path, tmp_path / "mine's")
    journal = open_journal(mine)
    assert read_all(journal) == EVERYTHING
    change(segments(theirs)[number], path)
    journal._log._sources.clear()  # as when many others were read since
    with pytest.raises(JournalError) as caught:
        read_all(journal)
    assert (caught.value.code, caught.value.details["file"]) == ("other_log", path.name)
    assert str(path) in caught.value.sentence
    change(tmp_path / "mine's", path)
    assert read_all(journal) == EVERYTHING
    journal.close()


def test_an_open_segment_that_is_written_over_is_looked_at_anew(tmp_path: Path):
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    closed_log(mine)
    closed_log(theirs)
    journal = open_journal(mine)
    assert read_all(journal) == EVERYTHING
    path = segments(mine)[1]
    overwrite_file(segments(theirs)[1], path)
    os.utime(path, ns=(1, 1))
    with pytest.raises(JournalError, match="other_log"):
        read_all(journal)
    journal.close()


async def test_a_broker_tells_who_reads_it_and_does_not_start_on_it(tmp_path: Path):
    """From the socket to the files and back: mine is archived, a copy of another installation's is put over
    it.
    """
    for home in ("mine", "theirs"):
        async with running_broker(tmp_path / home) as broker, AsyncClient(address_of(broker), "w") as writer:
            for start in range(0, 120, 10):
                await writer.publish_many("a", [b"%6d" % n + b"." * 20_000 for n in range(start, start + 10)])
            await writer.flush()
            journal = broker.engine.journal
            journal.finish_sealed()
            first = journal.segments()[0]
            assert first.state == "sealed"
            copy_segment(first.path, tmp_path / home / "archive" / "prepared")
            journal.archive_swap(first.name, tmp_path / home / "archive" / "prepared")
            archived = tmp_path / home / "archive" / first.name
            if home == "mine":
                mine = archived
    shutil.copy(mine, tmp_path / "mine's")
    async with running_broker(tmp_path / "mine") as broker:
        put(archived, mine)
        reader = await RawClient.connect(broker, "reader")
        reader.send_command({"c": "subscribe", "id": "s", "topic": "a", "bookmark": "0"})
        assert str(mine) in (await reader.read_until("error"))["message"]
        assert (await reader.read_until("closing"))["code"] == "other_log"
        live = await RawClient.connect(broker, "live")
        live.send_command({"c": "subscribe", "id": "s", "topic": "a"})
        await live.read_until("processed")
        await live.publish("a", [b"goes on"], first=1)
        assert await live.deliveries(1) == [b"goes on"]
    with pytest.raises(OperatorError, match="other_log"):
        async with running_broker(tmp_path / "mine"):
            pass
    put(tmp_path / "mine's", mine)
    async with (
        running_broker(tmp_path / "mine") as broker,
        AsyncClient(address_of(broker), "r") as client,
    ):
        got = await client.subscribe("a", bookmark="0")
        assert [body[:6] for body in await take(got, 121)] == [b"%6d" % n for n in range(120)] + [b"goes o"]
