"""A group that has lost its log service and its journals does not start empty without an operator.

The control plane knows that it had records.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from uuid import uuid4

import pytest

from broker_core.client import AsyncClient
from broker_core.errors import OperatorError
from broker_core.group import reseed
from broker_core.group.jetstream import JetStreamLog
from broker_core.group.member import KnownGroup
from broker_core.group.settings import GroupSettings
from tests.support.brokers import until
from tests.support.groups import GROUP, running_members, start_member
from tests.support.nats_servers import running_nats_servers


def engine_at(urls: tuple[str, ...], member: str = "a") -> JetStreamLog:
    return JetStreamLog(GroupSettings(GROUP, member, tuple(urls), 0, 5_000, ""))


async def publish(address: str, number: int) -> None:
    async with AsyncClient(address, "feed") as feed:
        await feed.publish_many("a", [b"{}"] * number)
        await feed.flush()


async def had_records(home: Path) -> KnownGroup:
    """Run a group of two that has had 100 records; return the control plane's knowledge of it."""
    async with running_nats_servers(home / "before", 1) as engines:
        async with running_members(home, engines.urls, "a", "b") as members:
            await publish(members[0].address, 100)
            await until(lambda: all(one.journal.next_sequence >= 101 for one in members), seconds=60)
            return KnownGroup(frozenset((members[0].journal.identity,)), 100)


async def test_empty_members_at_an_empty_log_service_begin_no_new_log_of_a_group_that_had_records(
    tmp_path: Path,
) -> None:
    (tmp_path / "before").mkdir()
    known = await had_records(tmp_path)
    for name in ("a", "b"):
        shutil.rmtree(tmp_path / name)
    async with running_nats_servers(tmp_path, 1) as engines:
        for name in ("a", "b"):
            with pytest.raises(OperatorError) as refused:
                await start_member(tmp_path, name, engines.urls, known_group=known)
            assert refused.value.code == "group_log_lost" and refused.value.details["known"] == 100
            assert "replication init" in refused.value.fix and "reseed" in refused.value.fix
        assert await reseed.find_stream(engine_at(engines.urls)) is None, "no log was made"

        # All is lost, and an operator says so.
        places = reseed.SegmentDirectories(tmp_path / "a" / "journal")
        plan = reseed.plan_empty(places, GROUP, "a", None, known.sequence)
        assert "100 records" in plan.steps[0]
        receipt = await reseed.begin_empty(plan, engine_at(engines.urls), "now", lambda _: None)
        found = await reseed.find_stream(engine_at(engines.urls))
        assert found is not None and str(found.log) == receipt.plan.log
        after = KnownGroup(known.logs | {found.log}, known.sequence)
        a = await start_member(tmp_path, "a", engines.urls, known_group=after)
        try:
            await until(a.is_taking_part, seconds=60)
            await publish(a.address, 5)
        finally:
            await a.stop()


async def test_a_member_without_records_begins_no_log_either(tmp_path: Path) -> None:
    async with running_nats_servers(tmp_path, 1) as engines:
        a = await start_member(tmp_path, "a", engines.urls)  # it has joined, and nothing was published yet
        await until(a.is_taking_part, seconds=60)
        log = a.journal.identity
        await a.stop()
    known = KnownGroup(frozenset((log,)), 100)
    (tmp_path / "after").mkdir()
    async with running_nats_servers(tmp_path / "after", 1) as engines:
        a = await start_member(tmp_path, "a", engines.urls, known_group=known)
        try:
            await until(lambda: a.state == "engine_lost", seconds=60)
        finally:
            await a.stop()
        assert await reseed.find_stream(engine_at(engines.urls)) is None, "no log was made"


async def test_an_empty_member_joins_no_other_log_than_its_groups(tmp_path: Path) -> None:
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a") as (a,):
            other = KnownGroup(frozenset((uuid4(),)), 100)
            with pytest.raises(OperatorError) as refused:
                await start_member(tmp_path, "b", engines.urls, known_group=other)
            assert refused.value.code == "group_log_other" and "replication join" in refused.value.fix
            own = KnownGroup(other.logs | {a.journal.identity}, 100)
            b = await start_member(tmp_path, "b", engines.urls, known_group=own)
            await until(b.is_taking_part, seconds=60)
            await b.stop()


async def test_an_empty_member_that_is_started_before_init_waits_for_it(tmp_path: Path) -> None:
    """A standalone broker becomes a group: its journal is the beginning, whichever member starts first."""
    (tmp_path / "before").mkdir()
    known = await had_records(tmp_path)
    shutil.rmtree(tmp_path / "b")
    async with running_nats_servers(tmp_path, 1) as engines:
        with pytest.raises(OperatorError, match="group_log_lost"):
            await start_member(tmp_path, "b", engines.urls, known_group=known)
        places = reseed.SegmentDirectories(tmp_path / "a" / "journal", tmp_path / "a" / "archive")
        found = await reseed.find_stream(engine_at(engines.urls))
        assert found is None
        plan = reseed.plan_init(places, GROUP, "a", found)
        await reseed.init_group(plan, places, found, engine_at(engines.urls), "now", lambda _: None)
        a = await start_member(tmp_path, "a", engines.urls, known_group=known)
        try:
            await until(a.is_taking_part, seconds=60)
            assert a.journal.next_sequence >= 101
        finally:
            await a.stop()
