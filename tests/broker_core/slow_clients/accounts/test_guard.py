"""The guard: exact accounts, no repeated decision, and agreement with evaluate() over all clients."""

from __future__ import annotations

from copy import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_core.config.rule_terms import DecisionReason, EnforcementMode, PolicyAction, Signal
from broker_core.documents.system_records import DecisionCandidate
from broker_core.slow_clients.accounts.client_usage import ClientUsage
from broker_core.slow_clients.accounts.guard import SlowClientGuard
from broker_core.slow_clients.accounts.pools import Pool
from broker_core.slow_clients.evaluate.decision import Decision
from broker_core.slow_clients.evaluate.signals import BacklogCounts, ClientSample
from broker_core.slow_clients.evaluate.wording import decision_entry
from tests.support.broker_simulation import SECOND, START, FixedBacklog, make_guard, policy
from tests.support.signals import evaluate

SMALL = {"message_memory_limit": 1_000, "message_disk_limit": 4_000}


def offlined(made: SlowClientGuard, name: str, memory: int = 501) -> ClientUsage:
    account = made.register(name, "tcp", FixedBacklog(START))
    decision = made.on_queued(account, memory, START)
    assert decision is not None and decision.action is PolicyAction.OFFLINE
    return account


def test_a_name_has_one_account() -> None:
    made = make_guard(policy())
    first = made.register("a", "tcp", FixedBacklog())
    with pytest.raises(ValueError, match="a is registered"):
        made.register("a", "tcp", FixedBacklog())
    made.unregister(first)
    second = made.register("a", "tcp", FixedBacklog())
    made.unregister(first)
    assert made.find_usage("a") is second


def test_unregistering_gives_back_everything_and_late_calls_change_nothing() -> None:
    made = make_guard(policy(SMALL))
    account = made.register("a", "tcp", FixedBacklog())
    made.on_queued(account, 300, START)
    made.unregister(account)
    made.on_queued(account, 5_000, START)
    made.on_released(account, 300)
    pool = made.pool_for("tcp")
    assert (pool.memory_used, pool.offlined_memory, pool.disk_used, len(pool.by_memory)) == (0, 0, 0, 0)


def test_more_than_is_held_cannot_be_released() -> None:
    made = make_guard(policy(SMALL))
    account = made.register("a", "tcp", FixedBacklog())
    made.on_queued(account, 10, START)
    with pytest.raises(ValueError, match="release 11 of 10"):
        made.on_released(account, 11)
    with pytest.raises(ValueError, match="release 1 of 0"):
        made.on_unspooled(account, 1)
    assert (account.memory, account.pool.memory_used) == (10, 10)


def test_one_decision_and_no_second_while_it_is_carried_out() -> None:
    made = make_guard(policy(SMALL))
    account = offlined(made, "a")
    assert made.on_queued(account, 50, START) is None
    other = made.register("b", "tcp", FixedBacklog())
    assert made.on_queued(other, 500, START) is None, "memory on its way to disk isn't held against others"
    assert made.tick(START) == []
    made.on_released(account, 551)
    pool = account.pool
    assert (pool.memory_used, pool.offlined_memory, pool.memory_ceiling) == (500, 0, 1_000)


def test_the_pools_largest_is_chosen_whoever_was_queued_to() -> None:
    made = make_guard(policy(SMALL))
    big, small = (made.register(name, "tcp", FixedBacklog(START)) for name in ("big", "small"))
    middle = made.register("middle", "tcp", FixedBacklog(START))
    assert made.on_queued(big, 450, START) is None and made.on_queued(middle, 400, START) is None
    decision = made.on_queued(small, 200, START)
    assert decision is not None
    assert (decision.client, decision.reason) == ("big", DecisionReason.POOL_MEMORY)
    assert decision.chosen_over == DecisionCandidate("middle", 400)
    assert (decision.observed, decision.used) == (1_050, 450)


def test_among_equal_users_the_one_with_the_older_backlog_is_disconnected() -> None:
    made = make_guard(policy(SMALL, 100))
    for name, age in (("young", 1), ("old", 9), ("middle", 5)):
        assert (
            made.on_queued(made.register(name, "tcp", FixedBacklog(START - age * SECOND)), 300, START) is None
        )
    other = made.register("new", "tcp", FixedBacklog(START))
    decision = made.on_queued(other, 101, START)
    assert decision is not None and (decision.client, decision.chosen_over) == (
        "old",
        DecisionCandidate("middle", 300),
    )


def test_disconnected_is_decided_once_and_frees_its_share_at_once() -> None:
    made = make_guard(policy(SMALL))
    account = offlined(made, "a")
    made.on_released(account, 501)
    decision = made.on_spooled(account, 2_001, START)
    assert decision is not None and decision.reason is DecisionReason.CAPACITY
    assert made.pool_for("tcp").disk_used == 0
    assert made.on_spooled(account, 9_000, START) is None and made.tick(START + 99 * SECOND) == []
    made.unregister(account)
    assert made.pool_for("tcp").disk_used == 0


def test_live_only_with_an_empty_spool() -> None:
    made = make_guard(policy(SMALL))
    account = offlined(made, "a")
    made.on_released(account, 501)
    assert made.on_spooled(account, 40, START) is None
    with pytest.raises(ValueError, match="40 bytes in its spool"):
        made.on_spool_empty(account)
    made.on_unspooled(account, 40)
    made.on_spool_empty(account)
    assert not account.is_offlined
    again = made.on_queued(account, 501, START)
    assert again is not None and again.action is PolicyAction.OFFLINE


def test_age_is_judged_at_the_tick() -> None:
    made = make_guard(policy(SMALL, age_ms=5_000))
    account = made.register("a", "tcp", FixedBacklog(START))
    made.on_queued(account, 1, START)
    assert made.tick(START + 5 * SECOND) == []
    (decision,) = made.tick(START + 6 * SECOND)
    assert (decision.reason, decision.observed, decision.limit) == (DecisionReason.AGE, 6_000, 5_000)
    assert made.tick(START + 7 * SECOND) == []


def test_an_idle_client_is_not_checked_by_ticks_nor_counted_in_its_pool() -> None:
    made = make_guard(policy(SMALL, age_ms=2_000))
    backlog = FixedBacklog(oldest_at=START)
    use = made.register("slow", "tcp", backlog)
    made.on_queued(use, 10, START)
    made.suspend_ticks(use)
    assert (use.memory, use.pool.memory_used) == (0, 0)
    assert not [one for part in range(400) for one in made.tick_part(START + part * SECOND // 40)]
    made.resume_ticks(use, 12, 0)
    assert (use.memory, use.pool.memory_used) == (12, 12)
    (decided,) = [one for part in range(400, 440) for one in made.tick_part(START + part * SECOND // 40)]
    assert (decided.client, decided.action) == ("slow", PolicyAction.DISCONNECT)


def test_idle_clients_are_updated_before_a_pool_chooses() -> None:
    """The pool counts the total of idle clients.

    The guard requests their figures before it chooses the largest one of a pool over its limit.
    """
    asked: list[tuple[str, Signal, int]] = []

    def summon(pool: Pool, signal: Signal, wanted: int) -> None:
        asked.append((pool.name, signal, wanted))
        if not uses["large"].memory:
            pool.adjust_suspended_usage(-800, 0)
            made.resume_ticks(uses["large"], 800, 0)

    document = policy({"message_memory_limit": 1_000})
    made = SlowClientGuard(document, 8 * 2**30, None, "/nowhere", summon=summon)
    uses = {name: made.register(name, "tcp", FixedBacklog(START)) for name in ("small", "large")}
    pool = uses["small"].pool
    made.suspend_ticks(uses["large"])
    pool.adjust_suspended_usage(800, 0)
    assert made.on_queued(uses["small"], 150, START) is None and not asked
    decision = made.on_queued(uses["small"], 100, START)
    assert decision is not None and (decision.client, decision.observed) == ("large", 1_050)
    assert decision.chosen_over is not None and decision.chosen_over == DecisionCandidate("small", 250)
    assert asked == [(pool.name, Signal.POOL_MEMORY, 2)]


def test_a_decision_carries_the_last_samples_oldest_first() -> None:
    made = make_guard(policy({"message_memory_limit": 1_000_000}))
    account = made.register("a", "tcp", FixedBacklog(START))
    for second in range(100):
        made.on_queued(account, 4_000, START)
        made.tick(START + second * SECOND)
    decision = made.on_queued(account, 400_000, START + 100 * SECOND)
    assert decision is not None and len(decision.samples) == 60
    moments = [(sample.at - START) // SECOND for sample in decision.samples]
    assert moments == list(range(41, 101))
    assert decision.samples[-1].outbox_bytes == 800_000 and decision.samples[0].outbox_bytes == 42 * 4_000


def test_a_decisions_samples_stay_as_they_were() -> None:
    made = make_guard(policy({"message_memory_limit": 1_000_000}))
    account = made.register("a", "tcp", FixedBacklog(START))
    for second in range(3):
        made.on_queued(account, 100_000, START)
        made.tick(START + second * SECOND)
    decision = made.on_queued(account, 300_000, START + 3 * SECOND)
    assert decision is not None
    before = tuple(decision.samples)
    for second in range(4, 99):
        made.tick(START + second * SECOND)
    assert decision.samples == before and before == decision.samples
    assert before[1:] == decision.samples[1:] and decision.samples[-1] == ClientSample(
        START + 3 * SECOND, 600_000, 0, 3_000
    )
    assert decision_entry(decision).samples[0] == [START // 1_000_000, 100_000, 0, 0, 0]


def test_clients_are_ranked_before_the_pool_is_full() -> None:
    made = make_guard(policy(SMALL))
    a, b = (made.register(name, "tcp", FixedBacklog(START)) for name in "ab")
    made.on_queued(a, 400, START)
    made.on_queued(b, 475, START)
    made.tick_part(START)
    assert (a.memory_alarm, b.memory_alarm) == (500, 500), "seven eighths: their limits only"
    made.on_queued(a, 1, START)
    made.tick_part(START)
    made.tick_part(START)
    assert (a.memory_alarm, b.memory_alarm) == (401, 475)
    made.on_released(b, 100)
    made.tick_part(START)
    made.on_queued(a, 1, START)
    assert a.memory_alarm == 500


def test_a_client_that_keeps_up_has_no_history_and_one_that_recovered_loses_it() -> None:
    made = make_guard(policy({"message_memory_limit": 1_000_000}))
    quick, slow = (made.register(name, "tcp", FixedBacklog(START)) for name in ("quick", "slow"))
    made.on_queued(quick, 100, START)
    made.on_queued(slow, 100_000, START)
    made.tick(START)
    assert quick.history is None and slow.history is not None
    made.on_released(slow, 100_000)
    for second in range(60):
        made.tick(START + second * SECOND)
    assert slow.history is None


def test_a_new_policy_takes_over_what_is_held() -> None:
    made = make_guard(policy(SMALL))
    accounts = [made.register(name, "tcp", FixedBacklog(START)) for name in "abc"]
    for account, size in zip(accounts, (300, 200, 100), strict=True):
        assert made.on_queued(account, size, START) is None
    made.apply_policy(policy({"message_memory_limit": 400}, 100, revision=2))
    assert made.pool_for("tcp").memory_used == 600
    (decision,) = made.tick(START)
    assert (decision.client, decision.revision, decision.limit) == ("a", 2, 400)


def test_a_new_policy_may_split_the_pool() -> None:
    two = {"a": {}, "b": {}}
    made = make_guard(policy(SMALL, transports=two))
    one, other = (
        made.register("one", "a", FixedBacklog(START)),
        made.register("other", "b", FixedBacklog(START)),
    )
    made.on_queued(one, 300, START)
    made.on_queued(other, 200, START)
    assert made.pools()["instance"][1] == ["a", "b"]
    split = policy(SMALL, transports={"a": {"pool": {"message_memory_limit": 5_000}}, "b": {}}, revision=2)
    made.apply_policy(split)
    used = {name: (pool.memory_used, transports) for name, (pool, transports) in made.pools().items()}
    assert used == {"instance": (200, ["b"]), "transport:a": (300, ["a"])}
    assert [100 * use.memory / use.pool.limits.memory for use in (one, other)] == [6.0, 20.0]


def test_clients_of_a_transport_that_is_gone_fall_to_the_instance() -> None:
    made = make_guard(policy(SMALL, transports={"a": {"pool": {"message_memory_limit": 9}}, "b": {}}))
    account = made.register("one", "a", FixedBacklog(START))
    made.apply_policy(policy(SMALL, transports={"b": {}}))
    assert account.pool.name == "instance" and made.on_queued(account, 500, START) is None


def test_a_preview_says_what_would_happen_and_changes_nothing() -> None:
    made = make_guard(policy(SMALL))
    accounts = [
        made.register(name, "tcp", FixedBacklog(START, BacklogCounts(5, 0, 2, "s|3|"))) for name in "ab"
    ]
    for account, size in zip(accounts, (300, 200), strict=True):
        made.on_queued(account, size, START)
    stricter = policy({"message_memory_limit": 450, "message_disk_limit": 4_000}, 100, revision=9)
    (decision,) = made.preview(stricter, START)
    assert (decision.client, decision.mode, decision.revision) == ("a", EnforcementMode.ENFORCE, 9)
    assert made.preview(policy(SMALL), START) == []
    assert not accounts[0].is_offlined and made.revision == 1 and made.tick(START) == []


STEP = st.tuples(st.sampled_from("qqqqrut"), st.integers(0, 5), st.integers(1, 200_000))


@settings(max_examples=150, deadline=None)
@given(st.lists(STEP, max_size=60))
def test_the_guard_agrees_with_evaluate_over_everybody(steps: list[tuple[str, int, int]]) -> None:
    """The guard passes one or two clients to evaluate(); with all clients the result would be equal."""
    made = make_guard(policy({"message_memory_limit": 500_000, "message_disk_limit": 500_000}, 60))
    accounts = [made.register(f"c{number}", "tcp", FixedBacklog(START)) for number in range(6)]
    for what, number, size in steps:
        account = accounts[number]
        if account.is_closing:
            continue
        if what == "q":
            expected = _expected(made, accounts, account, size)
            decision = (made.on_spooled if account.is_offlined else made.on_queued)(account, size, START)
            assert (decision and _essence(decision)) == expected
            _carry_out(made, decision)
        elif what == "r":
            made.on_released(account, min(size, account.memory))
        elif what == "u":
            made.on_unspooled(account, min(size, account.disk))
            if account.is_offlined and not account.disk:
                made.on_spool_empty(account)
        else:
            assert made.tick(START) == []
        _check_sums(made, accounts)


def _essence(decision: Decision) -> tuple[object, ...]:
    after = decision.chosen_over and decision.chosen_over.used
    return (decision.rule, decision.action, decision.observed, decision.used, after)


def _expected(
    made: SlowClientGuard, uses: list[ClientUsage], account: ClientUsage, size: int
) -> tuple[object, ...] | None:
    """Return the decision of a full evaluation after this account has grown."""
    field, total = ("disk", "disk_used") if account.is_offlined else ("memory", "memory_used")
    clients = [copy(use) for use in uses if not use.is_closing]
    for client in clients:
        if client.name == account.name:
            setattr(client, field, getattr(client, field) + size)
    grown = copy(account.pool)
    setattr(grown, total, getattr(grown, total) + size)
    decisions = evaluate(made.book, clients, [grown], START).decisions
    return _essence(decisions[0]) if decisions else None


def _carry_out(made: SlowClientGuard, decision: Decision | None) -> None:
    account = made.find_usage(decision.client) if decision else None
    if account is None:
        return
    if account.is_closing:
        made.unregister(account)
        return
    made.on_released(account, account.memory)
    _carry_out(made, made.on_spooled(account, 40, START))


def _check_sums(made: SlowClientGuard, accounts: list[ClientUsage]) -> None:
    pool, counted = made.pool_for("tcp"), [account for account in accounts if not account.is_closing]
    assert pool.memory_used == sum(account.memory for account in counted) >= 0
    assert pool.offlined_memory == sum(account.memory for account in counted if account.is_offlined)
    assert pool.disk_used == sum(account.disk for account in counted) >= 0
    assert pool.memory_used - pool.offlined_memory <= pool.limits.memory
    assert pool.disk_used <= pool.limits.disk


def test_what_a_rule_in_shadow_would_have_left_out_adds_up_until_its_client_is_gone() -> None:
    own = {
        "name": "own",
        "signal": "outbound_bytes",
        "limit": 100,
        "mode": "shadow",
        "ladder": [{"action": "offline"}],
    }
    made = make_guard(policy(rules=[own]))
    use = made.register("a", "tcp", FixedBacklog(START))
    made.on_queued(use, 2_000, START)
    (decision, *_) = made.tick(START + 2 * SECOND)
    assert (
        decision.mode is EnforcementMode.SHADOW and (decision.rule, decision.subscription) in use.rule_states
    )
    made.record_shadow_discard(decision, 5)
    made.record_shadow_discard(decision, 7)
    assert made.shadow_discarded(decision) == 12
    made.unregister(use)
    made.record_shadow_discard(decision, 3)
    assert made.shadow_discarded(decision) == 0


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_what_a_peer_has_taken_meanwhile_is_looked_up_before_a_client_is_judged_for_what_is_queued(
    where: str,
) -> None:
    class CountingBacklog(FixedBacklog):
        samples = 0

        def update_progress(self) -> None:
            self.samples += 1

    made, backlog = make_guard(policy(SMALL)), CountingBacklog(START)
    use = made.register("a", "tcp", backlog)
    add = made.on_queued if where == "memory" else made.on_spooled
    if where == "disk":
        use.is_offlined = True
    add(use, 1, START)
    assert backlog.samples == 0
    add(use, 10_000, START)
    assert backlog.samples == 1
