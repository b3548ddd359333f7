"""`manage.py replication init`, `join` and `reseed`: a group made from an existing journal, and members
rebuilt from others.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from broker_core.broker import BrokerPaths
from broker_core.group.reseed import ReseedReceipt
from broker_core.group.settings import GroupSettings
from broker_core.journal.journal import Journal
from broker_core.journal.segment import HEADER_SIZE
from broker_core.journal.tools import inspect
from tests.group.test_one_log import publish, read
from tests.group.test_states import refusal_of
from tests.support.brokers import until
from tests.support.groups import GROUP, RunningMember, hash_log, running_members, standalone_broker
from tests.support.nats_servers import running_nats_servers

pytestmark = pytest.mark.django_db(transaction=True)


async def replication(home: Path, engines: Sequence[str], *words: str) -> str:
    """Return the output of `manage.py replication` run for the member in `home`."""

    def run() -> str:
        out = StringIO()
        call_command("replication", *words, f"--instance={GROUP}", stdout=out)
        return out.getvalue()

    paths = BrokerPaths.in_home(home, GROUP)
    group = GroupSettings(GROUP, home.name, tuple(engines))
    with override_settings(
        SLUICE_GROUP=group,
        SLUICE_JOURNAL_DIRECTORY=str(paths.journal),
        SLUICE_ARCHIVE_DIRECTORY=str(paths.archive),
    ):
        return await asyncio.to_thread(run)


async def refusal(home: Path, engines: Sequence[str], *words: str) -> str:
    with pytest.raises(CommandError) as told:
        await replication(home, engines, *words)
    return str(told.value)


def has_same_journal(member: RunningMember) -> bool:
    """Return whether the member takes part, has heard of another, and both have the same journal."""
    others = member.member.status().members[1:]
    return member.is_taking_part() and [one.alike for one in others] == [True]


def have(members: Sequence[RunningMember], records: int) -> bool:
    return all(one.journal.durable_sequence >= records for one in members)


def journal_of(home: Path) -> Path:
    return BrokerPaths.in_home(home, GROUP).journal


async def test_a_broker_by_itself_becomes_a_group_and_members_join_diverge_and_are_reseeded(
    tmp_path: Path,
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    async with standalone_broker(a) as address:
        await publish(address, "p", 1, 30)
    async with running_nats_servers(tmp_path, 1) as engines:
        assert "has no log" in await refusal(b, engines.urls, "join", "--yes")
        said = await replication(a, engines.urls, "init")
        assert "Nothing was changed" in said
        assert "in a new generation" in said
        made = msgspec.json.decode(
            await replication(a, engines.urls, "init", "--yes", "--json"), type=ReseedReceipt
        )
        assert "already" in await refusal(a, engines.urls, "init", "--yes")

        # Nobody but the journal has what came before: the engine alone can't make a member.
        assert "behind record" in await refusal(b, engines.urls, "join", "--yes")
        copied = ("--from", str(journal_of(a)))
        assert "check every batch" in await replication(b, engines.urls, "join", *copied)
        await replication(b, engines.urls, "join", *copied, "--yes")
        async with running_members(tmp_path, engines.urls, "a", "b") as members:
            await until(lambda: all(one.is_taking_part() for one in members))
            assert members[0].member.status().generation == made.generation
            await publish(members[1].address, "p", 31, 50)
            await until(lambda: has_same_journal(members[0]))
            found = await read(members[0].address, "reader", 50)
            assert [n for _, by, n in found if by == "p"] == list(range(1, 51))
            # Its broker runs, so its journal isn't to be taken away under it.
            assert "is in use by" in await refusal(b, engines.urls, "reseed", *copied, "--yes")

        # A member with a journal of its own making: not the group's, kept aside, and a member again.
        shutil.rmtree(journal_of(b))
        async with standalone_broker(b) as address:
            await publish(address, "q", 1, 5)
        assert "already" in await refusal(b, engines.urls, "join", *copied, "--yes")
        assert "of log" in await refusal(a, engines.urls, "reseed", "--from", str(journal_of(b)), "--yes")
        before = {one.name for one in journal_of(b).iterdir()}
        async with running_members(tmp_path, engines.urls, "a") as (source,):
            await publish(source.address, "p", 51, 60)
            said = await replication(b, engines.urls, "reseed", *copied, "--yes", "--json")
            receipt = msgspec.json.decode(said, type=ReseedReceipt)
            aside = journal_of(b) / receipt.plan.aside
            assert {one.name for one in aside.iterdir()} >= {name for name in before if "lock" not in name}
            assert msgspec.json.decode((aside / "receipt.json").read_bytes(), type=ReseedReceipt) == receipt
            async with running_members(tmp_path, engines.urls, "b") as (other,):
                await publish(other.address, "p", 61, 70)
                await until(lambda: has_same_journal(source))
                await until(lambda: hash_log(source.journal) == hash_log(other.journal))


async def test_when_the_engines_lost_everything_a_journal_is_the_new_generations_beginning(
    tmp_path: Path,
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a", "b") as members:
            await publish(members[0].address, "p", 1, 20)
            await until(lambda: len({hash_log(one.journal) for one in members}) == 1)
        async with running_members(tmp_path, engines.urls, "a") as (only,):
            await publish(only.address, "p", 21, 40)
        engines.kill()
        assert "log service isn't reachable" in await refusal(a, engines.urls, "init", "--yes")
        shutil.rmtree(tmp_path / "engine-1")
        engines.start()
        await engines.wait_ready("other")
        assert "has no log" in await refusal(b, engines.urls, "reseed", "--yes")
        await replication(a, engines.urls, "init", "--yes")
        async with running_members(tmp_path, engines.urls, "b") as (behind,):
            await until(lambda: behind.state == "member_behind")  # it lacks what the other alone had
        damaged = tmp_path / "damaged"
        shutil.copytree(journal_of(a), damaged)
        segment = max(damaged.glob("*.journal"))
        content = bytearray(segment.read_bytes())
        content[HEADER_SIZE + 200] ^= 1
        segment.write_bytes(content)
        assert "isn't a healthy source" in await refusal(
            b, engines.urls, "reseed", "--from", str(damaged), "--yes"
        )
        await replication(b, engines.urls, "reseed", "--from", str(journal_of(a)), "--yes")
        async with running_members(tmp_path, engines.urls, "a", "b") as members:
            await publish(members[1].address, "p", 41, 50)
            found = await read(members[1].address, "reader", 50)
            assert [n for _, by, n in found if by == "p"] == list(range(1, 51))
            await until(lambda: has_same_journal(members[0]))


async def test_an_engine_that_lost_its_end_is_replaced_by_a_journal_and_its_log_is_set_aside(
    tmp_path: Path,
) -> None:
    a = tmp_path / "a"
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a", "b") as members:
            await publish(members[0].address, "p", 1, 20)
            await until(lambda: have(members, 22))  # with the broker's own of the client that came and went
            engines.kill()
            shutil.copytree(tmp_path / "engine-1", tmp_path / "earlier")
            engines.start()
            await publish(members[0].address, "p", 21, 40)
            await until(lambda: have(members, 44))
        assert "log is this journal's own" in await refusal(a, engines.urls, "init", "--replace", "--yes")
        engines.kill()
        shutil.rmtree(tmp_path / "engine-1")
        shutil.move(tmp_path / "earlier", tmp_path / "engine-1")
        engines.start()
        await engines.wait_ready("other")
        async with running_members(tmp_path, engines.urls, "b", hold_ms=400) as (b,):
            await until(lambda: b.state == "engine_lost")
            assert "--replace" in await refusal(a, engines.urls, "init", "--yes")
            assert "set aside as SLUICE_group" in await replication(
                a, engines.urls, "init", "--replace", "--yes"
            )
            # The other had the same to the last record: it goes on by itself.
            await until(b.is_taking_part)
            async with running_members(tmp_path, engines.urls, "a") as (first,):
                await publish(first.address, "p", 41, 50)
                found = await read(b.address, "reader", 50)
                assert [n for _, by, n in found if by == "p"] == list(range(1, 51))
                await until(lambda: has_same_journal(first))


async def test_a_member_at_a_log_that_is_set_aside_appends_to_it_no_more(tmp_path: Path) -> None:
    a = tmp_path / "a"
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a") as (first,):
            await publish(first.address, "p", 1, 20)
        engines.kill()
        shutil.rmtree(tmp_path / "engine-1")
        engines.start()
        async with running_members(tmp_path, engines.urls, "b", hold_ms=400) as (b,):
            await publish(b.address, "q", 1, 5)  # it had nothing, and has begun a log of its own
            await replication(a, engines.urls, "init", "--replace", "--yes")
            assert await refusal_of(b, "r") == "behind"
            await until(lambda: b.state == "engine_lost")
            async with running_members(tmp_path, engines.urls, "a") as (first,):
                await publish(first.address, "p", 21, 30)
                assert {by for _, by, _ in await read(first.address, "reader", 30)} == {"p"}


async def test_a_member_is_rebuilt_from_the_nats_log_while_it_has_its_first_entry(
    tmp_path: Path,
) -> None:
    b = tmp_path / "b"
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a", "b") as members:
            await publish(members[0].address, "p", 1, 20)
            await until(lambda: have(members, 20))
        async with standalone_broker(b) as address:
            await publish(address, "q", 1, 3)
        await replication(b, engines.urls, "reseed", "--yes")
        async with running_members(tmp_path, engines.urls, "a", "b") as members:
            await until(lambda: has_same_journal(members[0]))
            found = await read(members[1].address, "reader", 20)
            assert [n for _, by, n in found if by == "p"] == list(range(1, 21))
        # What it had by itself is kept, and can be read.
        (aside,) = journal_of(b).glob("aside-*")
        kept = Journal.open(aside, GROUP)
        assert hash_log(kept)[0] > 20
        kept.close()


async def test_a_group_is_restored_from_a_backup_copied_under_load(tmp_path: Path) -> None:
    """The mark was copied behind the segments, so it knows of records that the copy lacks."""
    live, restored, b = tmp_path / "live" / "a", tmp_path / "restored" / "a", tmp_path / "restored" / "b"
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(live.parent, engines.urls, "a") as (a,):
            await publish(a.address, "p", 1, 30)
            journal_of(restored).mkdir(parents=True)
            for segment in journal_of(live).glob("*.journal"):
                shutil.copy2(segment, journal_of(restored))
            copied = a.journal.durable_sequence
            await publish(a.address, "p", 31, 40)
            shutil.copy2(journal_of(live) / f"{GROUP}.durable", journal_of(restored))
            acknowledged = a.journal.durable_sequence
    (tmp_path / "new").mkdir()
    async with running_nats_servers(tmp_path / "new", 1) as engines:
        assert "were acknowledged" in await refusal(restored, engines.urls, "init", "--yes")
        accepted = inspect.repair_journal(journal_of(restored), GROUP, None, accept=True)
        assert accepted["next_sequence"] > acknowledged >= copied
        await replication(restored, engines.urls, "init", "--yes")
        source = ("--from", str(journal_of(restored)))
        for number in (1, 2):  # of the journal as it was restored, and as it has gone on
            await replication(b, engines.urls, "join" if number == 1 else "reseed", *source, "--yes")
            async with running_members(restored.parent, engines.urls, "a", "b") as members:
                await publish(members[1].address, "p", 31 + number * 10, 40 + number * 10)
                await until(lambda members=members: has_same_journal(members[0]))  # type: ignore[misc]
                await until(
                    lambda members=members: hash_log(members[0].journal) == hash_log(members[1].journal)  # type: ignore[misc]
                )
                found = [
                    n for _, by, n in await read(members[0].address, "reader", 30 + number * 10) if by == "p"
                ]
                assert found == [*range(1, 31), *range(41, 41 + number * 10)]
