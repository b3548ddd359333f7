"""Member states: each reason for not taking part has a name; publishes are refused, and existing records
served.
"""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.test import override_settings

from broker_core.batch import Buffer
from broker_core.client import AsyncClient, ReconnectPolicy
from broker_core.errors import OperatorError
from broker_core.group import group_status as status_module
from broker_core.journal.files import FileSystem
from tests.group.test_one_log import publish, read
from tests.support.brokers import ask, until
from tests.support.groups import RunningMember, hash_log, running_members, standalone_broker, start_member
from tests.support.nats_servers import running_nats_servers
from tests.support.partition_proxy import running_partition_proxy

HOLD_MS = 400
QUICK = ReconnectPolicy(first_delay=0.02, longest_delay=0.2)


async def refusal_of(member: RunningMember, name: str) -> str:
    """Publish, and return the broker's error."""
    told: list[str] = []
    client = await AsyncClient(member.address, name, reconnect=QUICK).start()
    await client.publish("t", {"by": name, "n": 1})
    async with asyncio.timeout(60):
        while not told:
            told = [error.code for error in client.errors]
            await asyncio.sleep(0.01)
    with pytest.raises(OperatorError, match="unsent_messages"):
        await client.close(0)
    return told[0]


async def replication_status(member: RunningMember) -> tuple[int, str]:
    """Return the exit code of `manage.py replication status`, and the state of the last member."""

    def run() -> int:
        try:
            call_command("replication", "status", instance="group", stdout=out)
        except SystemExit as ended:
            return int(str(ended.code))
        return 0

    out = StringIO()
    with override_settings(SLUICE_RUN_DIRECTORY=member.broker.paths.control.parent):
        code = await asyncio.to_thread(run)
    return code, out.getvalue().splitlines()[-1].split()[1]


async def test_without_its_engine_a_member_serves_what_it_has_and_goes_on_when_it_is_back(
    tmp_path: Path,
) -> None:
    async with running_nats_servers(tmp_path, 1) as engines:
        engines.kill()
        starting = asyncio.create_task(start_member(tmp_path, "a", engines.urls, hold_ms=HOLD_MS))
        await asyncio.sleep(0)
        engines.start()
        member = (
            await starting
        )  # a member that has nothing yet waits for its engine to be told which log it begins
        await publish(member.address, "p", 1, 20)
        await member.stop()
        engines.kill()

        async with running_members(tmp_path, engines.urls, "a", hold_ms=HOLD_MS) as (member,):
            assert len(await read(member.address, "reader", 20)) == 20
            assert await refusal_of(member, "q") == "behind"
            assert (await ask(member.broker, "group"))["state"] == "away"
            engines.start()
            await publish(member.address, "p", 21, 40)
            assert [n for _, by, n in await read(member.address, "reader", 40) if by == "p"] == list(
                range(1, 41)
            )

            engines.kill()
            shutil.rmtree(tmp_path / "engine-1")
            engines.start()
            await until(lambda: member.state == "engine_lost")
            assert await refusal_of(member, "r") == "behind"
            async with running_members(tmp_path, engines.urls, "b") as (other,):
                await until(other.is_taking_part)  # it begins a log of its own, which isn't the first one's
                await until(lambda: "is of" in member.member.status().why)
                assert member.state == "engine_lost"


async def test_of_two_processes_with_one_name_only_the_later_appends(tmp_path: Path) -> None:
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a", hold_ms=HOLD_MS) as (first,):
            await publish(first.address, "p", 1, 5)
            async with running_members(tmp_path / "elsewhere", engines.urls, "a") as (second,):
                await publish(second.address, "p", 6, 10)
                await until(lambda: first.state == "member_fenced")
                assert first.member.status().members[0].behind is None  # it doesn't know what it isn't given
                assert second.member.status().members[0].behind == 0
                assert await refusal_of(first, "q") == "behind"
                await publish(second.address, "r", 1, 5)
                assert {n for _, by, n in await read(second.address, "reader", 15) if by == "p"} == set(
                    range(1, 11)
                )


async def test_a_member_whose_journal_differs_stops_and_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a", "b", "c", hold_ms=HOLD_MS) as members:
            a, b, c = members
            await publish(a.address, "p", 1, 20)
            await until(lambda: all(one.member.status().members[0].sequence >= 20 for one in members))
            chain = c.member._replicated_log.chain
            chain.value = bytes(16)  # as if it had applied something else at some time
            await publish(a.address, "p", 21, 40)
            await until(lambda: c.state == "replica_diverged")
            await until(lambda: [one.alike for one in a.member.status().members] == [None, True, False])
            assert await replication_status(a) == (1, "DIFFERS")
            assert "a" in c.member.status().why and "b" in c.member.status().why
            assert await refusal_of(c, "q") == "behind"
            await publish(a.address, "p", 41, 60)
            await publish(b.address, "s", 1, 5)
            assert a.is_taking_part() and b.is_taking_part()


async def test_a_member_that_is_cut_off_refuses_and_catches_up_and_an_answer_that_was_lost_doubles_nothing(
    tmp_path: Path,
) -> None:
    async with (
        running_nats_servers(tmp_path, 1) as engines,
        running_partition_proxy(engines.addresses[0].port) as cable,
    ):
        async with running_members(tmp_path, engines.urls, "a", hold_ms=HOLD_MS) as (a,):
            async with running_members(
                tmp_path, (f"nats://127.0.0.1:{cable.port}",), "b", hold_ms=HOLD_MS
            ) as (b,):
                await until(lambda: a.is_taking_part() and b.is_taking_part())
                async with AsyncClient([b.address, a.address], "p", reconnect=QUICK) as client:
                    for number in range(1, 51):
                        await client.publish("t", {"by": "p", "n": number})
                        if number == 20:
                            cable.answers.clear()  # what it appends arrives, and it hears nothing of that
                            await client.flush()
                            cable.cut()
                    await client.flush()
                assert not b.is_taking_part()
                assert await refusal_of(b, "q") == "behind"
                ahead = (await read(a.address, "reader", 50))[-2][0]
                async with AsyncClient(b.address, "far", reconnect=QUICK) as far:
                    # It hasn't come so far: to begin at its own end would repeat what others have given.
                    subscribing = asyncio.create_task(far.subscribe("t", bookmark=ahead))
                    assert await refusal_of(b, "r") == "behind"
                    cable.is_accepting = True
                    cable.answers.set()
                    async with asyncio.timeout(60):
                        assert (await anext(aiter(await subscribing))).data["n"] == 50
                await until(b.is_taking_part)
                found = await read(b.address, "reader", 50)
                assert [n for _, by, n in found if by == "p"] == list(range(1, 51))
                last = a.member.status().last
                await until(lambda: b.member.status().members[0].applied >= last)
                await until(lambda: hash_log(a.journal) == hash_log(b.journal))


class FullDisk(FileSystem):
    """A disk that may be full."""

    full = False

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().pwritev(fd, buffers, offset)


async def test_a_member_whose_disk_is_full_says_so_and_has_everything_when_there_is_room(
    tmp_path: Path,
) -> None:
    disk = FullDisk()
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a", hold_ms=HOLD_MS) as (a,):
            b = await start_member(tmp_path, "b", engines.urls, files=disk, hold_ms=HOLD_MS)
            try:
                await publish(b.address, "p", 1, 10)
                disk.full = True
                assert await refusal_of(b, "q") == "disk_full"
                await publish(a.address, "p", 11, 20)
                await until(lambda: "no space" in b.member.status().why)
                assert len(await read(b.address, "reader", 10)) == 10
                disk.full = False
                found = await read(b.address, "reader", 21)
                # What was refused while it was on its way may get into the log: once, as every numbered
                # record does.
                assert [n for _, by, n in found if by == "p"] == list(range(1, 21))
                await until(lambda: hash_log(a.journal) == hash_log(b.journal))
                assert b.acknowledgements.violations == [] and b.errors == []
            finally:
                await b.stop()


async def test_a_member_with_the_journal_of_a_broker_by_itself_says_so(tmp_path: Path) -> None:
    async with running_nats_servers(tmp_path, 1) as engines:
        async with standalone_broker(tmp_path / "a") as address:
            await publish(address, "p", 1, 5)
        async with running_members(tmp_path, engines.urls, "a", hold_ms=HOLD_MS) as (member,):
            await until(lambda: member.state == "not_the_groups")
            assert len(await read(member.address, "reader", 5)) == 5
            assert isinstance(member.member._replicated_log.trouble, OperatorError)


async def test_the_lag_of_a_disconnected_member_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_module, "MEMBER_TIMEOUT_S", 0.5)
    async with (
        running_nats_servers(tmp_path, 1) as engines,
        running_members(tmp_path, engines.urls, "a") as (member,),
    ):
        async with running_members(tmp_path, engines.urls, "b"):
            await until(lambda: [one.there for one in member.member.status().members] == [True, True])
        await publish(member.address, "p", 1, 20)
        await until(lambda: not member.member.status().members[1].there)
        own, away = member.member.status().members
        assert away.behind == own.applied - away.applied > 0
