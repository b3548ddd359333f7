"""A staged revision judges the clients of its stage, and no others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker_core.config import ClientPolicy, default_policy
from broker_core.errors import OperatorError
from broker_core.slow_clients.accounts.guard import SlowClientGuard
from broker_core.slow_clients.rules.rulebook import StagedRevision, parse_stage
from tests.support.broker_simulation import SECOND, START, FixedBacklog

BASE = default_policy("x")
STRICT = replace(
    BASE, revision=2, client_policy=ClientPolicy(client_message_age_limit_ms=1_000, client_max_capacity=50)
)


def guard(stage: StagedRevision | None) -> SlowClientGuard:
    made = SlowClientGuard(BASE, 2**30, None, "/spool")
    for name in ("desk-1", "other"):
        made.on_queued(made.register(name, "tcp", FixedBacklog(START)), 100, START)
    made.apply_policy(BASE, stage)
    return made


def age_limit(made: SlowClientGuard, name: str) -> Any:
    return {one.setting: one.value for one in made.effective(name)}["amps.client_message_age_limit_ms"]


def test_only_the_first_are_judged_by_the_staged_revision() -> None:
    staged = guard(StagedRevision(STRICT, client="desk-*"))
    (decision,) = staged.tick(START + 10 * SECOND)
    assert (decision.client, decision.revision) == ("desk-1", 2)
    assert (staged.revision_for("desk-1"), staged.revision_for("other")) == (2, 1)
    assert age_limit(staged, "other") is None


def test_without_a_stage_nobody_is() -> None:
    assert guard(None).tick(START + 10 * SECOND) == []


def test_a_client_that_comes_later_is_judged_by_the_stage_too() -> None:
    staged = guard(StagedRevision(STRICT, client="late"))
    staged.register("late", "tcp", FixedBacklog(START))
    assert age_limit(staged, "late") == 1_000


@pytest.mark.parametrize("share", [1, 25, 99])
def test_a_share_is_about_that_many_and_always_the_same(share: int) -> None:
    stage = StagedRevision(STRICT, share=share)
    covered = {f"client-{number}" for number in range(10_000) if stage.covers(f"client-{number}")}
    assert abs(len(covered) / 100 - share) < 2
    assert covered <= {
        name for name in covered if StagedRevision(STRICT, share=min(100, share + 1)).covers(name)
    }


def test_a_stage_for_nobody_or_for_both_is_refused() -> None:
    assert parse_stage(None) is None
    for wrong in ({}, {"client": "a", "share": 5}, {"share": True}, {"client": 5}):
        with pytest.raises(OperatorError):
            parse_stage({"policy": STRICT.to_dict(), **wrong})
    assert parse_stage({"policy": STRICT.to_dict(), "share": 5}) == StagedRevision(STRICT, "", 5)
