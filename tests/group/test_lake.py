"""A group's lake written by real Spark from one member's journal, then the others', under load."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from broker_core.client import AsyncClient
from pipeline.lake_files import file_metadata
from tests.support.brokers import until
from tests.support.groups import GROUP, RunningMember, running_members
from tests.support.nats_servers import running_nats_servers

pytestmark = pytest.mark.slow
PROJECT = Path(__file__).parents[2]


async def run_job(home: Path, member: RunningMember, job: str) -> str:
    """Run `manage.py pipeline run` over a member's journal into the group's lake; return its output."""
    places = {
        "--home": home / "spark",
        "--instance": GROUP,
        "--journal": member.broker.paths.journal,
        "--archive": member.broker.paths.archive,
        "--lake": home / "lake",
        "--master": "local[2]",
    }
    words = [f"{option}={value}" for option, value in places.items()]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "manage.py",
        "pipeline",
        "run",
        job,
        *words,
        cwd=PROJECT,
        env={**os.environ, "SLUICE_HOME": str(home / "spark")},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, trouble = await process.communicate()
    assert process.returncode == 0, f"{said.decode()[-2_000:]}{trouble.decode()[-4_000:]}"
    return said.decode()


async def publish_on(member: RunningMember, name: str, ends: asyncio.Event) -> int:
    """Publish numbered messages until `ends` is set; return how many were acknowledged."""
    number = 0
    async with AsyncClient(member.address, name) as client:
        while not ends.is_set():
            bodies = [{"by": name, "n": number + one} for one in range(1, 101)]
            await client.publish_many(f"load.{name}", bodies)
            await client.flush()
            number += len(bodies)
            await asyncio.sleep(0.05)
    return number


async def test_runs_over_different_members_journals_make_one_lake_of_one_log(tmp_path: Path) -> None:
    async with running_nats_servers(tmp_path) as engines:
        # Small segments, so that what a run reads ends within some and begins with others.
        async with running_members(
            tmp_path, engines.urls, "a", "b", "c", journal_size=1024 * 1024
        ) as members:
            a, b, c = members
            ends = asyncio.Event()
            load = [
                asyncio.create_task(publish_on(one, name, ends))
                for one, name in zip(members, ("p1", "p2", "p3"), strict=True)
            ]
            await until(lambda: a.journal.next_sequence > 3_000)
            await run_job(tmp_path, a, "lake")  # under load
            taken = lake_of(tmp_path)
            assert taken[:2] == [1, 2] and taken == list(range(1, len(taken) + 1))
            before = len(taken)
            await run_job(tmp_path, c, "lake")  # goes on in another's
            assert len(lake_of(tmp_path)) > before
            ends.set()
            published = dict(zip(("p1", "p2", "p3"), await asyncio.gather(*load), strict=True))
            last = max(one.journal.next_sequence for one in members) - 1
            await until(lambda: all(one.journal.next_sequence > last for one in members))
            await run_job(tmp_path, b, "lake")
            said = await run_job(tmp_path, a, "lake-check")
            assert len({one.journal.identity for one in members}) == 1
        sequences = lake_of(tmp_path)
        assert sequences == list(range(1, len(sequences) + 1)), "one twice, or one missing"
        assert len(sequences) >= last > before
        for name, number in published.items():
            assert bodies_of(tmp_path, f"load.{name}") == list(range(1, number + 1)), f"{name}\n{said}"
        logs = {
            file_metadata(pq.ParquetFile(file))["log"]
            for file in (tmp_path / "lake" / "records").rglob("*.parquet")
        }
        assert logs == {str(a.journal.identity)}


def lake_of(home: Path) -> list[int]:
    """Return the sequences of all records in the lake, in order."""
    found = ds.dataset(home / "lake" / "records", partitioning="hive", exclude_invalid_files=False)
    return sorted(found.to_table(columns=["sequence"])["sequence"].to_pylist())


def bodies_of(home: Path, topic: str) -> list[int]:
    """The numbers of a topic in the order of the log."""
    found = ds.dataset(home / "lake" / "records", partitioning="hive", exclude_invalid_files=False)
    table = found.to_table(columns=["sequence", "body"], filter=ds.field("topic") == topic)
    table = table.sort_by("sequence")
    return [int(body.split(b'"n":')[1].rstrip(b"}")) for body in table["body"].to_pylist()]
