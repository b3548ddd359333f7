"""The stored policy file: a valid one is read, a damaged one is reported by name and set aside."""

from __future__ import annotations

import errno
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from broker_core.client import AsyncClient
from broker_core.config import PolicyDocument
from broker_core.control.policy_file import PolicyFile, StoredPolicy, encode_policy, to_staged
from broker_core.errors import OperatorError
from broker_core.slow_clients.rules.rulebook import StagedRevision
from tests.support.brokers import address_of, running_broker, tcp_policy
from tests.support.failpoints import Failpoint, Failpoints


def stored_policy(policy: PolicyDocument | None = None, stage: StagedRevision | None = None) -> StoredPolicy:
    document = policy or tcp_policy()
    return StoredPolicy(
        instance=document.instance.name,
        stored_at=7,
        policy=document.to_dict(),
        staged=to_staged(stage),
        log=str(uuid4()),
        frontier=42,
        journal="/j",
        archive="/a",
    )


def file_in(home: Path) -> PolicyFile:
    return PolicyFile.under(home, tcp_policy().instance.name)


def test_what_is_saved_is_loaded_for_its_owner_alone(tmp_path: Path) -> None:
    policy, file = tcp_policy(), file_in(tmp_path)
    assert file.load() is None
    stage = StagedRevision(replace(policy, revision=9), client="slow.*")
    stored = stored_policy(policy, stage)
    file.save(stored)
    assert file.load() == stored and stored.revision == 9
    assert (stored.document, stored.stage) == (policy, stage)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700


def test_no_flipped_bit_and_no_cut_is_believed_and_the_file_is_kept_aside(tmp_path: Path) -> None:
    file, raw = file_in(tmp_path), encode_policy(stored_policy())
    damaged = [raw[:at] for at in range(0, len(raw), 101)]
    for at in range(0, len(raw), 37):
        damaged.append(raw[:at] + bytes((raw[at] ^ 4,)) + raw[at + 1 :])
    file.path.parent.mkdir()
    for number, bad in enumerate(damaged[:90], 1):
        file.path.write_bytes(bad)
        with pytest.raises(OperatorError) as refused:
            file.load()
        assert refused.value.code == "policy_file_damaged" and str(file.path) in refused.value.sentence
        assert not file.path.exists()
        aside = file.path.with_name(f"{file.path.name}.damaged.{number}")
        assert aside.read_bytes() == bad


def test_another_instances_policy_is_refused(tmp_path: Path) -> None:
    file_in(tmp_path).save(stored_policy())
    path = file_in(tmp_path).path
    with pytest.raises(OperatorError, match="policy of"):
        PolicyFile(path, "another").load()


def test_a_log_that_an_operator_accepts_is_noted(tmp_path: Path) -> None:
    file, log = file_in(tmp_path), uuid4()
    file.save_log(log, 1)
    assert file.load() is None, "there is nothing to start with"
    file.save(stored_policy())
    file.save_log(log, 100)
    stored = file.load()
    assert stored is not None and stored.known is not None
    assert (stored.known.log, stored.known.sequence) == (log, 100)


async def test_a_broker_stores_what_is_in_force_and_nothing_that_it_refuses(tmp_path: Path) -> None:
    policy, file = tcp_policy(), file_in(tmp_path)
    async with running_broker(tmp_path, policy, policy_file=file) as broker:
        async with AsyncClient(address_of(broker), "feed") as feed:
            await feed.publish("t", b"1")
            await feed.flush()
        newer = replace(policy, revision=policy.revision + 1)
        await broker.apply(newer)
        assert file.load().document == newer  # type: ignore[union-attr]
        other = replace(newer, revision=99, instance=replace(newer.instance, name="other"))
        with pytest.raises(OperatorError):
            await broker.apply(other)
        assert file.load().document == newer  # type: ignore[union-attr]
    stored = file.load()
    assert stored is not None and stored.known is not None
    assert stored.known.log == broker.engine.journal.identity and stored.frontier >= 1


async def test_a_disk_that_refuses_the_policy_keeps_none_from_being_in_force(tmp_path: Path) -> None:
    policy = tcp_policy()
    full = Failpoints(Failpoint("pwritev", 1, errno.ENOSPC, name=".policy.json"))
    file = PolicyFile(file_in(tmp_path).path, policy.instance.name, full)
    async with running_broker(tmp_path, policy, policy_file=file) as broker:
        assert broker.lacks_stored_policy and file.load() is None
        await broker.apply(replace(policy, revision=policy.revision + 1))
        assert not broker.lacks_stored_policy and file.load() is not None


async def test_a_broker_that_was_killed_counts_its_whole_allowance_as_used(tmp_path: Path) -> None:
    policy, file = tcp_policy(), file_in(tmp_path)
    stage = StagedRevision(replace(policy, revision=9), client="desk-*", allowed=3)
    async with running_broker(tmp_path, policy, policy_file=file) as broker:
        await broker.apply(policy, stage)
        killed = file.load()
        assert killed is not None and killed.stage is not None and killed.stage.made == 3
        assert killed.continue_stage(stage) == stage._replace(made=3), "the database knows of none"
        assert killed.continue_stage(stage._replace(document=policy)) == stage._replace(document=policy)
        broker.engine.guard.brake.made = 2  # type: ignore[union-attr]
    stopped = file.load()
    assert stopped is not None and stopped.continue_stage(stage) == stage._replace(made=2)


async def test_a_stage_whose_allowance_cannot_be_stored_is_refused_until_there_is_room(
    tmp_path: Path,
) -> None:
    policy = tcp_policy()
    stage = StagedRevision(replace(policy, revision=9), client="desk-*", allowed=3)
    full = Failpoints(*(Failpoint("pwritev", number, errno.ENOSPC, name=".policy.json") for number in (2, 3)))
    file = PolicyFile(file_in(tmp_path).path, policy.instance.name, full)
    async with running_broker(tmp_path, policy, policy_file=file) as broker:
        with pytest.raises(OperatorError) as refused:
            await broker.apply(policy, stage)
        assert refused.value.code == "policy_not_stored"
        assert broker.engine.guard.stage is None and broker.statistics.refused_revision is not None
        while broker.engine.guard.stage is None:
            with suppress(OperatorError):
                await broker.apply(policy, stage)
        stored = file.load()
        assert stored is not None and stored.allowance_use is not None
        assert stored.allowance_use.decisions == 3


async def test_a_broker_with_a_stage_starts_without_it_when_its_allowance_cannot_be_stored(
    tmp_path: Path,
) -> None:
    policy = tcp_policy()
    stage = StagedRevision(replace(policy, revision=9), client="desk-*", allowed=3)
    full = Failpoints(
        *(Failpoint("pwritev", number, errno.ENOSPC, name=".policy.json") for number in (1, 2, 3))
    )
    file = PolicyFile(file_in(tmp_path).path, policy.instance.name, full)
    async with running_broker(tmp_path, policy, policy_file=file, stage=stage) as broker:
        assert broker.engine.guard.stage is None and broker.lacks_stored_policy


async def test_an_allowance_that_may_be_used_stays_so_while_the_next_broker_starts(tmp_path: Path) -> None:
    policy, file = tcp_policy(), file_in(tmp_path)
    stage = StagedRevision(replace(policy, revision=9), client="desk-*", allowed=3, made=3)
    seen: list[int] = []
    save = file.save

    def note(stored: StoredPolicy) -> None:
        used = stored.allowance_use
        seen.append(used.decisions if used is not None else 0)
        save(stored)

    file.save = note  # type: ignore[method-assign]
    async with running_broker(tmp_path, policy, policy_file=file, stage=stage) as broker:
        assert broker.engine.guard.stage == stage
    assert set(seen) == {3}


async def test_a_stage_that_was_withdrawn_is_not_begun_anew_while_the_database_is_away(
    tmp_path: Path,
) -> None:
    policy, file = tcp_policy(), file_in(tmp_path)
    stage = StagedRevision(replace(policy, revision=9), client="desk-*", allowed=1)
    async with running_broker(tmp_path, policy, policy_file=file) as broker:
        await broker.apply(policy, stage)
        broker.engine.guard.brake.made = 1  # type: ignore[union-attr]
        broker.engine.guard.brake.exhausted = True  # type: ignore[union-attr]
        broker.engine.guard.withdraw_stage()
        await broker.apply(policy, stage)
        assert broker.engine.guard.stage is None
        stored = file.load()
    assert stored is not None and stored.stage is None
    assert stored.continue_stage(stage) == stage._replace(made=1), "the database still orders it"
