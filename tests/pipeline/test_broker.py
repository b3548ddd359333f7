"""The pipeline beside a real broker: segments it needs are retained, and removed ones are reported."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from broker_core.broker import Broker
from broker_core.client import AsyncClient
from broker_core.journal.files import FileSystem
from broker_core.journal.reader_leases import ReaderLease, leases_path, release_lease, write_lease
from broker_core.journal.removal_records import read_removals
from broker_core.journal.segment_copies import compress_segment
from sluice_spark.arrow_reader import ReadRequest, plan_log, read_span
from sluice_spark.lease import maintain_lease
from sluice_spark.location import LogLocation
from sluice_spark.log import examine_log
from tests.support.brokers import address_of, ask, running_broker, until

MINUTE = 60_000_000_000


async def publish(broker: Broker, segments: int) -> None:
    """Publish until this many segments are sealed."""
    async with AsyncClient(address_of(broker), "writer") as client:
        while sum(one.state != "current" for one in broker.engine.journal.segments()) < segments:
            await client.publish_many("orders.new", [b"x" * 1_000] * 500)
            await client.flush()


async def test_a_lease_is_seen_in_needed_by_and_holds_back_removal(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await publish(broker, 3)
        journal = broker.engine.journal
        names = [one.name for one in journal.segments() if one.state != "current"]
        second = journal.segments()[1].first_sequence
        lease = ReaderLease("lake on here (7)", second, time.time_ns() + MINUTE)
        write_lease(FileSystem(), journal.directory, "test-1", "lake.7", lease)
        plan = await ask(broker, "journal_plan", action="remove", age_s=0)
        assert plan["chosen"] == names[:1]
        assert plan["skipped"][0]["reason"] == "pipeline"
        assert plan["skipped"][0]["why"].startswith("needed by pipeline lake on here (7) until 20")
        listed = await ask(broker, "journals")
        assert [bool(one["pinned_by"]) for one in listed] == [False] + [True] * (len(listed) - 1)
        with pytest.raises(AssertionError, match="journal_in_use"):
            await ask(broker, "journal_remove", names=names, age_s=0)
        release_lease(journal.directory, "test-1", "lake.7")
        gone = await ask(broker, "journal_remove", names=names, age_s=0)
        (told,) = read_removals(journal.directory, "test-1")
        assert (told.first, told.last, told.records) == (1, gone["last_sequence"], gone["records"])
        assert abs(told.removed_at - time.time_ns()) < 10 * MINUTE


async def test_a_job_holds_what_it_reads_renews_and_lets_go(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        await publish(broker, 3)
        journal, notes = broker.engine.journal, list[str]()
        place = LogLocation(journal.directory, tmp_path / "archive", "test-1")
        log = examine_log(place)
        file = leases_path(journal.directory, "test-1")
        with maintain_lease(place, "lake", log.first, notes.append, renew_s=0.01):
            plan = await ask(broker, "journal_plan", action="remove", age_s=0)
            assert plan["chosen"] == []
            assert plan["skipped"][0]["why"].startswith("needed by pipeline lake on ")
            (held,) = file.iterdir()
            before = held.read_bytes()
            await until(lambda: held.read_bytes() not in (b"", before))
            # A segment can be archived or compressed while the reader reads it, since both keep its records.
            names = [one.name for one in journal.segments() if one.state != "current"]
            compress_segment(journal.directory / names[0], journal.directory / f"{names[0]}.gz.prepared")
            prepared = str(journal.directory / f"{names[0]}.gz.prepared")
            await ask(broker, "journal_swap", action="compress", name=names[0], prepared=prepared)
            read = [
                batch
                for span in plan_log(log, ReadRequest())
                for batch in read_span(log.location, span, ReadRequest())
            ]
            assert sum(batch.num_rows for batch in read) == log.frontier
        assert not file.exists()
        assert notes == []
        assert len((await ask(broker, "journal_plan", action="remove", age_s=0))["chosen"]) == len(names)


async def test_where_a_lease_cannot_be_written_the_job_says_so_and_goes_on(tmp_path: Path) -> None:
    place = LogLocation(tmp_path / "journal", None, "test-1")
    place.directory.mkdir()
    leases_path(place.directory, "test-1").touch()
    notes: list[str] = []
    with maintain_lease(place, "lake", 1, notes.append):
        pass
    assert notes[0].startswith("The job can't create a lease on the log")
