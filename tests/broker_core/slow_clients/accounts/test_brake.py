"""The brake of a staged rollout: decisions beyond the allowance are withheld, and rule state is unchanged."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_core.config.rule_terms import EnforcementMode
from broker_core.slow_clients.accounts.guard import SlowClientGuard
from broker_core.slow_clients.rules.rulebook import StagedRevision, parse_stage
from tests.broker_core.slow_clients.accounts.test_coming_into_force import BIG, NOTIFY
from tests.support.broker_simulation import SECOND, START, FixedBacklog, make_guard, policy

OLD = {
    "name": "old",
    "mode": "enforce",
    "signal": "oldest_age",
    "limit": 1_000,
    "ladder": [{"action": "disconnect"}],
}


def waiting_guard(names: str, **rules: Any) -> SlowClientGuard:
    """Return a guard of clients that have had waiting messages for a minute."""
    made = make_guard(policy(BIG, **rules))
    for name in names:
        made.on_queued(made.register(name, "tcp", FixedBacklog(START - 60 * SECOND)), 10, START)
    return made


def staged(allowed: int | None, revision: int = 2, **rules: Any) -> StagedRevision:
    return StagedRevision(
        policy(BIG, revision=revision, **(rules or {"rules": [OLD]})), client="*", allowed=allowed
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 3))
def test_no_more_than_the_allowance_is_carried_out_and_the_preview_says_so(
    clients: int, allowed: int, ticks: int
) -> None:
    made, stage, ended = waiting_guard("abcdef"[:clients]), staged(allowed), []
    made.on_exhausted = lambda: ended.append(made.brake)
    said = made.preview(policy(BIG), START, stage)
    made.apply_policy(policy(BIG), stage)
    did = [one for tick in range(ticks + 1) for one in made.tick(START + tick * SECOND)]
    enforced = [one.client for one in did if one.mode is EnforcementMode.ENFORCE]
    assert enforced == [one.client for one in said if one.mode is EnforcementMode.ENFORCE]
    assert len(enforced) == min(clients, allowed)
    assert len([one for one in said if one.held_at is not None]) == max(0, clients - allowed)
    assert len(ended) == len([one for one in did if one.held_at is not None]) == (clients > allowed)


def test_a_client_whose_decision_was_held_is_judged_by_the_revision_before() -> None:
    made = waiting_guard("ab", rules=[OLD])
    made.apply_policy(policy(BIG, rules=[OLD]), staged(1, rules=[{**OLD, "limit": 500}]))
    first, held = made.tick(START)
    assert (first.client, first.mode, held.client, held.held_at) == ("a", EnforcementMode.ENFORCE, "b", 1)
    assert made.find_usage("b").is_closing is False  # type: ignore[union-attr]
    assert made.tick(START + SECOND) == [], "one record of it is enough"
    made.withdraw_stage()
    assert (made.withdrawn, made.stage) == (2, None)
    assert [(one.client, one.mode, one.revision) for one in made.tick(START + 2 * SECOND)] == [
        ("b", EnforcementMode.ENFORCE, 1)
    ]


def test_a_rule_that_both_revisions_have_still_acts_once_the_stage_is_withdrawn() -> None:
    rule = {**OLD, "ladder": NOTIFY}
    made = waiting_guard("a")
    made.apply_policy(policy(BIG, rules=[rule]), staged(0, rules=[rule]))
    (held,) = made.tick(START)
    assert held.held_at == 0
    made.withdraw_stage()
    (then,) = made.tick(START + SECOND)
    assert (then.mode, then.revision) == (EnforcementMode.ENFORCE, 1)


def test_a_withdrawn_revision_stays_withdrawn_until_another_one_is_staged() -> None:
    made = waiting_guard("ab")
    made.apply_policy(policy(BIG), staged(0))
    made.tick(START)
    made.withdraw_stage()
    made.apply_policy(policy(BIG), staged(0))
    assert made.stage is None and made.tick(START + SECOND) == []
    made.apply_policy(policy(BIG, revision=3))
    assert made.withdrawn == 0
    made.apply_policy(policy(BIG, revision=3), staged(5, revision=4))
    assert len(made.tick(START + 2 * SECOND)) == 2


def test_the_same_stage_again_gives_no_new_allowance() -> None:
    made = waiting_guard("ab")
    made.apply_policy(policy(BIG), staged(2))
    assert len(made.tick(START)) == 2
    made.apply_policy(policy(BIG), staged(2))
    made.on_queued(made.register("c", "tcp", FixedBacklog(START - 60 * SECOND)), 10, START)
    assert [one.held_at for one in made.tick(START + SECOND)] == [2]


@pytest.mark.parametrize(("member", "allowed", "made"), [("a", 2, 1), ("b", 1, 0), ("other", 0, 0)])
def test_each_member_reads_its_own_part(member: str, allowed: int, made: int) -> None:
    source = {
        "policy": policy(BIG).to_dict(),
        "client": "*",
        "allowances": {"a": 2, "b": 1},
        "made": {"a": 1},
    }
    stage = parse_stage(source, member)
    assert stage is not None and (stage.allowed, stage.made) == (allowed, made)
