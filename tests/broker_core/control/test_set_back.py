"""A broker that keeps a policy which the database lacks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from broker_core.config import PolicyDocument
from broker_core.control.policy_file import PolicyFile
from broker_core.control.set_back import SetBack
from broker_core.errors import OperatorError
from tests.support.brokers import ask, running_broker, tcp_policy


def order(policy: PolicyDocument, **more: object) -> dict[str, object]:
    return {"policy": policy.to_dict(), **more}


async def test_an_older_revision_is_never_put_in_force_by_an_order_alone(tmp_path: Path) -> None:
    policy = replace(tcp_policy(), revision=40)
    async with running_broker(tmp_path, policy) as broker:
        with pytest.raises(AssertionError, match="policy_set_back"):
            await ask(broker, "apply", **order(replace(policy, revision=39)))
        assert broker.engine.policy == policy and broker.statistics.collect_status().refused is None
        await ask(broker, "apply", **order(replace(policy, revision=41)))
        assert broker.revision == 41


async def test_a_kept_policy_stays_until_an_operator_has_decided_with_its_date(tmp_path: Path) -> None:
    policy = replace(tcp_policy(), revision=40)
    file = PolicyFile.under(tmp_path, policy.instance.name)
    async with running_broker(tmp_path, policy, policy_file=file) as broker:
        await broker.retain_policy(2)
        (problem,) = broker.list_problems()
        assert (problem.code, problem.severe) == (
            "policy_set_back",
            True,
        ) and "revision 40" in problem.message
        await broker.retain_policy(3)
        assert [one.since for one in broker.list_problems()] == [problem.since]
        with pytest.raises(AssertionError, match="policy_set_back"):
            await ask(broker, "apply", **order(replace(policy, revision=99)))
        answer = await ask(broker, "policy")
        assert (answer["policy"]["revision"], answer["is_set_back"]) == (40, True)
    stored = file.load()
    assert stored is not None
    assert stored.set_back == SetBack(since=problem.since, database_revision=3)
    async with running_broker(
        tmp_path / "again", policy, policy_file=file, set_back=stored.set_back
    ) as broker:
        assert [one.since for one in broker.list_problems()] == [problem.since]
        with pytest.raises(OperatorError):  # what can't be used decides nothing
            await broker.apply(replace(policy, instance=replace(policy.instance, name="other")))
        assert broker.is_set_back
        await ask(broker, "apply", **order(replace(policy, revision=41), decided=True))
        assert not broker.list_problems()
        assert file.load() == msgspec.structs.replace(
            file.load(), set_back=None, policy=replace(policy, revision=41).to_dict()
        )
