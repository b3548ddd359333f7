"""`reseed` and `join` killed at any step and run again: the member has the group's journal.

Its previous segments are stored elsewhere.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from broker_core.broker import BrokerPaths
from broker_core.errors import SluiceError
from broker_core.group import reseed
from broker_core.group.jetstream import JetStreamLog
from broker_core.group.reseed import SegmentDirectories
from broker_core.group.settings import GroupSettings
from broker_core.journal.tools.inspect import verify_segments
from tests.group.test_one_log import publish
from tests.support.brokers import until
from tests.support.groups import GROUP, SERVER, hash_log, running_members, standalone_broker
from tests.support.nats_servers import running_nats_servers
from tests.torture.faulty_files import FaultyFiles, FileFault

STEPS = 100
"""More than there are."""


def _run_act(act: str, home: Path, source: Path, engine: str, at: FileFault | None, stamp: str) -> None:
    if at is not None:
        FaultyFiles(at).install()
    found = asyncio.run(reseed.find_stream(JetStreamLog(GroupSettings(GROUP, "b", (engine,)))))
    assert found is not None
    own, other = BrokerPaths.in_home(home, GROUP), BrokerPaths.in_home(source, GROUP)
    places, given = (
        SegmentDirectories(own.journal, own.archive),
        SegmentDirectories(other.journal, other.archive),
    )
    plan = reseed.plan_reseed(act, places, given, GROUP, "b", found, stamp)  # type: ignore[arg-type]
    reseed.reseed(plan, places, given, found, stamp, lambda _: None)


def exit_code(act: str, home: Path, source: Path, engine: str, at: FileFault | None, stamp: str) -> int:
    process = SERVER.Process(target=_run_act, args=(act, home, source, engine, at, stamp), daemon=True)
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def stored_segments(home: Path) -> set[tuple[int, int]]:
    """Return first and last sequences of the member's previous segments, wherever they were moved."""
    journal = BrokerPaths.in_home(home, GROUP).journal
    return {
        (report.first_sequence, report.last_sequence)
        for place in journal.glob("aside-*")
        if any(place.glob("*.journal"))
        for report in verify_segments(place, GROUP)
    }


@pytest.mark.slow
@pytest.mark.parametrize("call", ["rename", "sync_directory", "fsync"])
@pytest.mark.parametrize("had", [True, False])
async def test_what_was_killed_at_any_step_is_run_again(tmp_path: Path, call: str, had: bool) -> None:
    alone, source = tmp_path / "alone", tmp_path / "a"
    async with standalone_broker(alone) as address:
        await publish(address, "mine", 1, 5)
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a") as (a,):
            await publish(a.address, "p", 1, 30)
        act, engine, killed = "reseed" if had else "join", engines.urls[0], 0
        for number in range(1, STEPS):
            home = tmp_path / f"{number}" / "b"
            if had:
                shutil.copytree(alone, home)
            at = FileFault(call, number, "before" if number % 2 else "after")
            code = exit_code(act, home, source, engine, at, "first")
            assert code in (0, -9)
            again = 0 if code == 0 else exit_code("reseed", home, source, engine, None, "second")
            assert again == 0, (number, at)
            places = BrokerPaths.in_home(home, GROUP).journal
            assert not list(places.glob("reseed-*"))
            if had:
                assert (1, 5) in {(first, min(last, 5)) for first, last in stored_segments(home)}
            async with running_members(tmp_path / f"{number}", engines.urls, "b") as (b,):
                await until(b.is_taking_part)
                async with running_members(tmp_path, engines.urls, "a") as (a,):
                    await publish(a.address, f"p{number}", 1, 3)
                    await until(lambda a=a, b=b: hash_log(a.journal) == hash_log(b.journal))  # type: ignore[misc]
            if code == 0:
                break
            killed += 1
        assert killed >= 2
        assert number < STEPS - 1


async def test_a_broker_that_is_started_on_what_a_killed_reseed_left_asks_for_an_operator_or_has_everything(
    tmp_path: Path,
) -> None:
    source = tmp_path / "a"
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a") as (a,):
            await publish(a.address, "p", 1, 30)
        for number in range(1, 12):
            home = tmp_path / f"{number}"
            code = exit_code(
                "join", home / "b", source, engines.urls[0], FileFault("rename", number, "after"), "x"
            )
            try:
                async with running_members(home, engines.urls, "b") as (b,):
                    await until(lambda b=b: b.journal.next_sequence > 30)  # type: ignore[misc]
            except SluiceError as refused:
                assert refused.code.startswith("journal_")
            if code == 0:
                break
        assert code == 0


@pytest.mark.slow
async def test_no_broker_starts_with_the_part_of_a_journal_that_a_killed_reseed_left(tmp_path: Path) -> None:
    refused, small = 0, {"journal_size": 32 * 1024}
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a", "b", **small) as (a, b):
            await publish(a.address, "p" * 60, 1, 5_000)
            await until(lambda: hash_log(a.journal) == hash_log(b.journal))
            last, segments = b.journal.next_sequence - 1, len(b.journal.segments())
        assert segments > 5
        for number in range(1, STEPS, 2):
            home = tmp_path / f"{number}"
            shutil.copytree(tmp_path / "b", home / "b")
            fault = FileFault("rename", number, "after")
            code = exit_code("reseed", home / "b", tmp_path / "a", engines.urls[0], fault, "first")
            try:
                async with running_members(home, engines.urls, "b", **small) as (b,):
                    assert b.journal.missing_ranges == [] and b.journal.next_sequence > last
            except SluiceError as error:
                assert error.code == "journal_reseeding"
                refused += 1
                assert exit_code("reseed", home / "b", tmp_path / "a", engines.urls[0], None, "again") == 0
                async with running_members(home, engines.urls, "b", **small) as (b,):
                    assert b.journal.missing_ranges == [] and b.journal.next_sequence > last
            if code == 0:
                break
        assert code == 0 and refused > segments
