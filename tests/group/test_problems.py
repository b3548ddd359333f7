"""Problems of a group as operators see them: each is true, has a start time, and says how to fix it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from broker_core.client import AsyncClient
from broker_core.group.engine_log import LogEntry, LogServiceUnavailableError, StreamInfo
from broker_core.group.jetstream import JetStreamLog
from broker_core.group.settings import GroupSettings
from tests.group.test_one_log import publish, read
from tests.group.test_states import HOLD_MS, QUICK, refusal_of
from tests.support import groups
from tests.support.brokers import ask, until
from tests.support.groups import RunningMember, running_members, start_member
from tests.support.nats_servers import running_nats_servers


async def problems(member: RunningMember) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the problems in the member's status, by code and subject."""
    told = (await ask(member.broker, "status"))["problems"]
    for one in told:
        assert one["message"] and one["fix"]
        assert abs(time.time() * 1_000 - one["since"]) < 600_000
    return {(one["code"], one["subject"]): one for one in told}


async def wait_for_problem(member: RunningMember, code: str, subject: str) -> dict[str, Any]:
    """Wait for a problem; return it."""
    async with asyncio.timeout(60):
        while (found := (await problems(member)).get((code, subject))) is None:
            await asyncio.sleep(0.1)
    return found


class StaleOnce(JetStreamLog):
    """A log service that answers once like a deposed leader: its log ends before the applied entries."""

    answers: int = 0
    stale: bool = False

    async def attach(self, offered: UUID | None, *, elsewhere: bool = False) -> StreamInfo:
        attached = await super().attach(offered, elsewhere=elsewhere)
        if self.stale and not elsewhere:
            StaleOnce.answers += 1
            return attached._replace(last=1)
        return attached


async def test_one_answer_of_a_deposed_leader_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "JetStreamLog", StaleOnce)
    monkeypatch.setattr(StaleOnce, "answers", 0)
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a", hold_ms=HOLD_MS) as (a,):
            for first in (1, 11, 21):
                await publish(a.address, "p", first, first + 9)
            states: set[str] = set()
            monkeypatch.setattr(StaleOnce, "stale", True)
            engines.kill()
            engines.start()

            def goes_on() -> bool:
                states.add(a.state)
                return StaleOnce.answers > 0 and a.is_taking_part()

            await until(goes_on)
            assert states <= {"away", "taking part"}
            assert len(await read(a.address, "reader", 30)) == 30


class StuckLogService(JetStreamLog):
    """A log service that cannot be read while `held` is set."""

    held: asyncio.Event | None = None

    async def next_entry(self, max_bytes: int) -> list[LogEntry]:
        if self._settings.member == "b" and StuckLogService.held is not None:
            await StuckLogService.held.wait()
        return await super().next_entry(max_bytes)


async def test_a_member_that_reads_nothing_says_how_far_it_is_behind_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "JetStreamLog", StuckLogService)
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a", "b") as (a, b):
            await publish(a.address, "p", 1, 5)
            await until(lambda: b.member.status().members[0].sequence >= 5)
            held = asyncio.Event()
            monkeypatch.setattr(StuckLogService, "held", held)
            await publish(a.address, "p", 6, 8)  # b is in its reading of before for one of these
            await asyncio.sleep(0.5)
            await publish(a.address, "p", 9, 60)
            await until(lambda: (b.member.status().members[0].behind or 0) > 0)
            own = b.member.status().members[0]
            assert own.name == "b" and own.lag_records and own.lag_ms
            held.set()
            monkeypatch.setattr(StuckLogService, "held", None)
            await until(lambda: b.member.status().members[0].behind == 0)


async def test_a_member_that_is_stopped_and_servers_that_are_missing_are_named_dated_and_end(
    tmp_path: Path,
) -> None:
    async with running_nats_servers(tmp_path, 3) as engines:
        await engines.wait_ready()
        async with running_members(
            tmp_path, engines.urls, "a", "b", hold_ms=HOLD_MS, sync_members=("a", "b", "never")
        ) as (a, b):
            never = await wait_for_problem(a, "member_silent", "never")
            assert not never["severe"]
            c = await start_member(tmp_path, "c", engines.urls, hold_ms=HOLD_MS)
            await until(lambda: "c" in {one.name for one in a.member.status().members if one.there})
            began = time.time() * 1_000
            await c.stop()
            silent = await wait_for_problem(a, "member_silent", "c")
            assert not silent["severe"] and silent["since"] >= began - 1_000
            await asyncio.sleep(1)
            again = (await problems(a))["member_silent", "c"]
            assert abs(again["since"] - silent["since"]) < 500

            leader = engines.number_of((await engines.wait_ready()).leader)
            others = [one for one in range(3) if one != leader]
            engines.kill(others[0])
            missing = await wait_for_problem(a, "engine_behind", "")
            assert not missing["severe"] and "2 of 3" in missing["message"]
            engines.kill(others[1])
            lost = await wait_for_problem(b, "no_quorum", "b")
            assert lost["severe"] and "is inactive" in lost["title"]
            engines.kill(leader)
            away = await wait_for_problem(b, "engine_away", "b")
            assert away["severe"]
            assert ("member_silent", "c") not in await problems(b)  # b receives nothing from any member
            engines.start()
            await until(lambda: a.is_taking_part() and b.is_taking_part())
            async with asyncio.timeout(60):
                while {code for code, _ in await problems(a)} - {"member_silent"}:
                    await asyncio.sleep(0.1)


async def test_a_member_that_was_removed_for_good_is_forgotten_and_one_that_takes_part_is_not(
    tmp_path: Path,
) -> None:
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(
            tmp_path, engines.urls, "a", "b", hold_ms=HOLD_MS, sync_members=("a", "never")
        ) as (a, b):
            c = await start_member(tmp_path, "c", engines.urls, hold_ms=HOLD_MS)
            await until(
                lambda: all("c" in {o.name for o in m.member.status().members if o.there} for m in (a, b))
            )
            for name, code in (
                ("c", "member_in_use"),
                ("never", "member_in_use"),
                ("typo", "unknown_member"),
            ):
                with pytest.raises(AssertionError, match=code):
                    await ask(a.broker, "forget_member", name=name)
            await c.stop()
            for member in (a, b):
                await wait_for_problem(member, "member_silent", "c")
                await ask(member.broker, "forget_member", name="c", by="ada")
            await asyncio.sleep(2)
            for member in (a, b):
                assert ("member_silent", "c") not in await problems(member)
                assert "c" not in {one.name for one in member.member.status().members}
                assert len(member.member.addresses("tcp")) == 1, "clients aren't sent to it"
            c = await start_member(tmp_path, "c", engines.urls, hold_ms=HOLD_MS)
            await until(lambda: "c" in {one.name for one in a.member.status().members if one.there})
            await c.stop()


async def test_a_lost_quorum_is_reported_without_a_gap_from_its_beginning_on(tmp_path: Path) -> None:
    """Frozen servers keep their connections: each attempt ends in another way."""
    async with running_nats_servers(tmp_path, 3) as engines:
        await engines.wait_ready()
        async with running_members(tmp_path, engines.urls, "a", "b", hold_ms=HOLD_MS) as (a, b):
            await publish(a.address, "p", 1, 5)
            await until(a.is_taking_part)
            engines.freeze(1)
            engines.freeze(2)
            began = time.time() * 1_000
            seen: list[dict[tuple[str, str], dict[str, Any]]] = []
            try:
                async with asyncio.timeout(90):
                    while not any(one["severe"] for one in (await problems(a)).values()):
                        await asyncio.sleep(0.1)
                for _ in range(100):
                    seen.append(await problems(a))
                    await asyncio.sleep(0.2)
            finally:
                engines.thaw(1)
                engines.thaw(2)
            codes = [{code for code, subject in one if subject == "a"} for one in seen]
            assert all(one and one <= {"engine_away", "no_quorum"} for one in codes), codes
            dates = {entry["since"] for one in seen for (_, subject), entry in one.items() if subject == "a"}
            assert len(dates) == 1 and dates.pop() >= began - 1_000, dates
            await until(lambda: a.is_taking_part() and b.is_taking_part())


async def test_refused_publishes_tell_no_live_subscriber_of_records_it_never_got(tmp_path: Path) -> None:
    async with running_nats_servers(tmp_path, 1) as engines:
        async with running_members(tmp_path, engines.urls, "a", hold_ms=HOLD_MS) as (a,):
            await publish(a.address, "p", 1, 5)
            async with AsyncClient(a.address, "live", reconnect=QUICK) as client:
                await client.subscribe("t", bookmark="0|1|", durability="live")
                engines.kill()
                assert await refusal_of(a, "q") in ("no_quorum", "behind")
                await asyncio.sleep(0.5)
                assert [one for one in client.notices if one.code == "not_stored"] == []


class DeposedLogService(JetStreamLog):
    """A log service whose reply comes from a leader without contact to the others."""

    async def _reconnect(self, avoided_server: str = "") -> None:
        self.avoided = avoided_server
        self._server = "nats://one"

    async def _read_stream_info(self) -> StreamInfo:
        return StreamInfo(UUID(int=1), 1, 1, 7, "engine-1", servers=3, current=1, reachable=1)


async def test_a_second_answer_counts_only_of_a_leader_that_has_heard_a_majority() -> None:
    engine = DeposedLogService(GroupSettings("group", "a", ("nats://one", "nats://two")))
    assert (await engine.attach(None)).last == 7
    with pytest.raises(LogServiceUnavailableError, match="has heard 1 of 3"):
        await engine.attach(None, elsewhere=True)
    assert engine.avoided == "nats://one"
