"""Choices of the guard between close figures, their explanation, and decisions on disconnected clients."""

from __future__ import annotations

import pytest

from broker_core.config.rule_terms import DecisionReason, EnforcementMode, PolicyAction
from broker_core.documents.system_records import DecisionCandidate
from broker_core.slow_clients.accounts.client_usage import ClientUsage
from broker_core.slow_clients.accounts.guard import SlowClientGuard
from broker_core.slow_clients.evaluate.signals import BacklogCounts
from tests.support.broker_simulation import SECOND, START, FixedBacklog, make_guard, policy
from tests.support.signals import SubscriptionSignals

SMALL = {"message_memory_limit": 1_000, "message_disk_limit": 4_000}
PART = SECOND // 40


def warns(signal: str, limit: int, **more: object) -> dict[str, object]:
    """A rule of one's own, in force."""
    rule = {"name": "own", "mode": "enforce", "signal": signal, "limit": limit}
    return {**rule, "ladder": [{"action": "warn"}], **more}


def registered(made: SlowClientGuard, *names: str) -> list[ClientUsage]:
    return [made.register(name, "tcp", FixedBacklog(START, BacklogCounts(3, 0, 0, "s|3|"))) for name in names]


def offlined(made: SlowClientGuard, use: ClientUsage, memory: int) -> None:
    """By a decision that is under way: its memory is on its way to the disk."""
    decision = made.on_queued(use, memory, START)
    assert decision is not None and (decision.client, decision.action) == (use.name, PolicyAction.OFFLINE)


def spooled(made: SlowClientGuard, use: ClientUsage, disk: int) -> None:
    """Offlined, with all of it on disk."""
    offlined(made, use, 1_001)
    made.on_released(use, 1_001)
    assert made.on_spooled(use, disk, START) is None


def test_memory_on_its_way_to_disk_is_not_in_what_is_observed() -> None:
    made = make_guard(policy(SMALL, 100))
    leaving, largest, other = registered(made, "leaving", "largest", "other")
    offlined(made, leaving, 1_001)
    assert made.on_queued(largest, 700, START) is None
    assert made.on_queued(other, 300, START) is None, "to the brim"
    decision = made.on_queued(other, 1, START)
    assert decision is not None
    assert (decision.client, decision.observed, decision.used) == ("largest", 1_001, 700)
    assert (decision.limit, decision.chosen_over) == (1_000, DecisionCandidate("other", 301))


@pytest.mark.parametrize("grown", [201, 300])
def test_who_grew_beyond_the_largest_spool_since_it_was_ranked_is_chosen(grown: int) -> None:
    made = make_guard(policy(SMALL, 100))
    first, second = registered(made, "first", "second")
    spooled(made, first, 1_800)
    spooled(made, second, 2_000)
    for part in range(30):
        assert made.tick_part(START + part * PART) == []
    assert (first.disk_alarm, second.disk_alarm) == (1_800, 2_000), "ranked, since little is left"
    decision = made.on_spooled(first, grown, START)
    assert decision is not None
    assert (decision.reason, decision.client) == (DecisionReason.DISK, "first")
    assert (decision.used, decision.observed) == (1_800 + grown, 3_800 + grown)
    assert decision.chosen_over == DecisionCandidate("second", 2_000)


def test_a_disk_that_is_just_full_is_within() -> None:
    made = make_guard(policy(SMALL, 100))
    first, second = registered(made, "first", "second")
    spooled(made, first, 1_900)
    spooled(made, second, 2_100)
    for part in range(50):
        assert made.tick_part(START + part * PART) == []
    assert made.pool_for("tcp").disk_used == 4_000
    decision = made.on_spooled(first, 1, START)
    assert decision is not None and decision.client == "second"


def test_part_of_a_tick_finds_what_a_new_policy_made_too_much_and_says_each_choice() -> None:
    made = make_guard(policy({"message_memory_limit": 10_000, "message_disk_limit": 10_000}, 100))
    for use, memory in zip(registered(made, *"abcd"), (400, 300, 200, 100), strict=True):
        assert made.on_queued(use, memory, START) is None
    made.apply_policy(policy({"message_memory_limit": 450, "message_disk_limit": 10_000}, 100, revision=2))
    found = [d for part in range(60) for d in made.tick_part(START + part * PART)]
    assert [(d.client, d.observed, d.revision) for d in found] == [("a", 1_000, 2), ("b", 600, 2)]
    assert [made.find_usage(name).is_offlined for name in "abcd"] == [True, True, False, False]  # type: ignore[union-attr]


def test_the_disk_is_judged_before_the_memory_and_whoever_is_disconnected_leaves_both() -> None:
    made = make_guard(policy({"message_memory_limit": 10_000, "message_disk_limit": 10_000}, 100))
    a, b, c = registered(made, "a", "b", "c")
    for use, disk in ((a, 2_900), (b, 1_000)):
        offlined(made, use, 10_001)
        made.on_released(use, 9_901)
        assert made.on_spooled(use, disk, START) is None
    assert made.on_queued(c, 250, START) is None
    made.apply_policy(policy({"message_memory_limit": 300, "message_disk_limit": 3_000}, 100, revision=2))
    found = [d for part in range(60) for d in made.tick_part(START + part * PART)]
    assert [(d.client, d.reason) for d in found] == [("a", DecisionReason.DISK)]
    pool = made.pool_for("tcp")
    assert (pool.memory_used, pool.offlined_memory, pool.disk_used) == (350, 100, 1_000) and not c.is_offlined


def test_a_rule_of_ones_own_about_a_pool_speaks_in_part_of_a_tick_too() -> None:
    made = make_guard(policy({"message_memory_limit": 10_000}, 100, rules=[OWN_POOL]))
    a, b = registered(made, "a", "b")
    made.on_queued(a, 400, START)
    made.on_queued(b, 101, START)
    found = [d for part in range(1, 90) for d in made.tick_part(START + part * PART)]
    assert found and {(d.rule, d.client, d.action) for d in found} == {("own", "a", PolicyAction.WARN)}
    quiet = make_guard(policy({"message_memory_limit": 10_000}, 100, rules=[OWN_POOL]))
    made.on_queued(registered(quiet, "a")[0], 500, START)
    assert [d for part in range(1, 90) for d in quiet.tick_part(START + part * PART)] == []


def guard_with_two_rules(document_mode: str) -> tuple[SlowClientGuard, ClientUsage]:
    """Return a guard with two rules that trigger together: one acts immediately, the other at the next
    tick.
    """
    rules = [
        {
            "name": "one",
            "mode": "enforce",
            "signal": "outbound_bytes",
            "limit": 100,
            "ladder": [{"action": "warn"}],
        },
        {
            "name": "two",
            "mode": document_mode,
            "signal": "outbound_bytes",
            "limit": 100,
            "ladder": [{"action": "offline"}],
        },
    ]
    made = make_guard(policy({"message_memory_limit": 10_000}, 100, rules=rules))
    (use,) = registered(made, "a")
    decision = made.on_queued(use, 101, START)
    assert decision is not None and decision.mode is EnforcementMode.ENFORCE
    return made, use


@pytest.mark.parametrize(("mode", "said"), [("enforce", []), ("shadow", ["a"])])
def test_what_was_decided_about_a_client_that_left_is_void_unless_it_was_only_to_be_recorded(
    mode: str, said: list[str]
) -> None:
    made, use = guard_with_two_rules(mode)
    assert len(made._pending_decisions) == 1
    made.unregister(use)
    registered(made, "a")
    later = made.tick(START)
    assert [d.client for d in later] == said
    assert all(d.mode is EnforcementMode.SHADOW for d in later)
    assert made.tick(START) == []


def test_what_was_decided_about_others_stays() -> None:
    made, use = guard_with_two_rules("enforce")
    (other,) = registered(made, "b")
    made.unregister(other)
    made.unregister(ClientUsage("a", "tcp", "", FixedBacklog(), use.pool, 99, lambda name: 0))
    assert [d.client for d in made.tick(START)] == ["a"], "neither another name's end nor another a's"


def test_a_subscription_that_has_ended_is_judged_no_more() -> None:
    made = make_guard(policy({}, rules=[warns("unacked_messages", 1)]))
    (use,) = registered(made, "a")
    view = SubscriptionSignals("s", "t", unacked_messages=9)
    watched = made.subscribe(use, view)
    made.unsubscribe(use, "s")
    assert made.judge_subscription(use, watched, START) == []
    again = made.subscribe(use, view)
    assert made.judge_subscription(use, watched, START) == [], "another one of that name is"
    assert again is not watched
    use.is_closing = True
    assert made.judge_subscription(use, again, START) == []


def test_a_preview_looks_at_what_peers_have_taken_before_it_judges() -> None:
    class CountingBacklog(FixedBacklog):
        samples = 0

        def update_progress(self) -> None:
            self.samples += 1

    made = make_guard(policy(SMALL))
    backlog, idle = CountingBacklog(START), CountingBacklog(START)
    made.on_queued(made.register("a", "tcp", backlog), 300, START)
    made.register("idle", "tcp", idle)
    made.preview(policy(SMALL), START)
    assert (backlog.samples, idle.samples) == (1, 0), "and not at those who use nothing"


def test_a_preview_counts_offlined_clients_and_leaves_out_who_would_be_closed_before() -> None:
    made = make_guard(policy(SMALL, 100))
    spool, small, memory, other = registered(made, "spool", "small", "memory", "other")
    spooled(made, spool, 2_000)
    spooled(made, small, 1_500)
    made.on_queued(memory, 600, START)
    made.on_queued(other, 300, START)
    strict = policy({"message_memory_limit": 700, "message_disk_limit": 3_000}, 100, revision=7)
    said = [(d.client, d.reason, d.mode) for d in made.preview(strict, START)]
    assert said == [
        ("spool", DecisionReason.DISK, EnforcementMode.ENFORCE),
        ("memory", DecisionReason.POOL_MEMORY, EnforcementMode.ENFORCE),
    ]
    assert made.preview(strict, START, closing={"spool", "memory"}) == []
    assert [d.client for d in made.preview(strict, START, closing={"memory"})] == ["spool"]
    made.apply_policy(strict)
    assert [(d.client, d.reason) for d in made.tick(START)] == [
        (client, reason) for client, reason, _ in said
    ]


def test_a_preview_judges_subscriptions_by_the_rules_they_would_get() -> None:
    made = make_guard(policy({}))
    (use,) = registered(made, "a")
    made.on_queued(use, 10, START)
    made.subscribe(use, SubscriptionSignals("s", "orders.eu", backlog_messages=50, unacked_messages=50))
    made.subscribe(use, SubscriptionSignals("u", "other", backlog_messages=99, unacked_messages=99))
    strict = policy({}, qpid=[{"topic": "orders.*", "message_count": 40}], revision=2)
    (decision,) = made.preview(strict, START)
    assert (decision.client, decision.subscription, decision.observed) == ("a", "s", 50)
    assert made.preview(policy({}, qpid=[{"topic": "orders.*", "message_count": 60}]), START) == []
    assert use.ruled_subscriptions == {}, "nothing is in force"
    made.apply_policy(strict)
    (then,) = made.tick(START)
    assert (then.client, then.subscription, then.action) == ("a", "s", decision.action)


# What is kept exact.


def test_what_leaves_a_spool_leaves_its_pool() -> None:
    made = make_guard(policy(SMALL, 100))
    a, b = registered(made, "a", "b")
    spooled(made, a, 1_000)
    spooled(made, b, 500)
    pool = made.pool_for("tcp")
    made.on_unspooled(a, 400)
    assert (a.disk, pool.disk_used) == (600, 1_100)
    made.on_unspooled(a, 600)
    made.on_spool_empty(a)
    assert (a.disk, pool.disk_used, a.is_offlined, a.offlined_at) == (0, 500, False, 0)


def test_from_when_a_client_is_offlined_is_said() -> None:
    made = make_guard(policy(SMALL, 100))
    (use,) = registered(made, "a")
    assert made.on_queued(use, 1_001, START + 7) is not None
    assert use.offlined_at == START + 7


OWN_POOL = warns("pool_memory", 500, choose="largest_in_pool", shape="largest_when_pool_over")


def test_a_rule_about_a_pool_knows_its_own_clients_alone() -> None:
    transports = {"a": {"pool": {"message_memory_limit": 20_000}}, "b": {}}
    made = make_guard(policy({"message_memory_limit": 10_000}, 100, transports=transports, rules=[OWN_POOL]))
    there = made.register("there", "a", FixedBacklog(START))
    here, other = (made.register(name, "b", FixedBacklog(START)) for name in ("here", "other"))
    made.on_queued(there, 9_000, START)
    made.on_queued(here, 300, START)
    made.on_queued(other, 250, START)
    made.register("idle", "b", FixedBacklog(START))
    found = [d for part in range(1, 90) for d in made.tick_part(START + part * PART)]
    by_pool = {
        (d.client, d.observed, d.chosen_over and d.chosen_over.client) for d in found if d.rule == "own"
    }
    assert ("here", 550, "other") in by_pool
    assert {client for client, *_ in by_pool} <= {"here", "there"}


def test_a_rule_about_a_pool_forgets_that_it_was_passed() -> None:
    made = make_guard(policy({"message_memory_limit": 10_000}, 100, rules=[OWN_POOL]))
    (use,) = registered(made, "a")
    pool = made.pool_for("tcp")

    def look(since: int) -> list[str]:
        return [d.client for part in range(45) for d in made.tick_part(START + since * SECOND + part * PART)]

    made.on_queued(use, 600, START)
    assert look(1) == ["a"] and pool.rule_states["own"].done == 1
    made.on_released(use, 200)
    assert look(3) == [] and pool.rule_states["own"].done == 0
    made.on_queued(use, 200, START)
    assert look(5) == ["a"], "and speaks again when it is passed again"


def test_a_word_of_warning_is_said_once_while_it_holds() -> None:
    made = make_guard(policy({"message_memory_limit": 10_000}, 100, rules=[warns("outbound_bytes", 100)]))
    (use,) = registered(made, "a")
    assert made.on_queued(use, 101, START) is not None and list(use.rule_states) == [("own", "")]
    assert made.on_queued(use, 50, START) is None and made.tick(START + SECOND) == []
    made.on_released(use, 151)
    made.tick(START + 2 * SECOND)
    assert not use.rule_states and made.on_queued(use, 101, START + 2 * SECOND) is not None


def test_an_offlined_client_isnt_ranked_by_memory_whatever_else_is_said_of_it() -> None:
    made = make_guard(policy(SMALL, 100, rules=[warns("spool_bytes", 100)]))
    (use,) = registered(made, "a")
    spooled(made, use, 50)
    decision = made.on_spooled(use, 51, START)
    assert decision is not None and (decision.rule, decision.action) == ("own", PolicyAction.WARN)
    assert (use.memory_alarm, len(use.pool.by_memory), len(use.pool.by_disk)) == (-1, 0, 1)
    assert made.on_spooled(use, 51, START) is None


HELD = warns("oldest_age", 1_000, hold_ms=400, shape="soft_for")


@pytest.mark.parametrize("whole", [True, False], ids=["after a whole round", "after its own moment"])
def test_a_hold_that_ends_before_a_clients_next_moment_is_looked_at_when_it_ends(whole: bool) -> None:
    made = make_guard(policy({"message_memory_limit": 10_000}, rules=[HELD]))
    for number in range(1, 30):
        made.register(f"idle{number}", "tcp", FixedBacklog())
    (use,) = registered(made, "c30")
    made.on_queued(use, 10, START)  # whose moment is the thirtieth of forty
    begin = START + 2 * SECOND
    if whole:
        assert made.tick(begin) == [] and made.tick_part(begin) == []
    else:
        assert made.tick_part(begin) == []
        begin += 30 * PART
        assert made.tick_part(begin) == []
    assert use.rule_states
    assert made.tick_part(begin + 390_000_000) == []
    assert [d.client for d in made.tick_part(begin + 410_000_000)] == ["c30"]


def test_a_subscription_over_its_alarm_is_acted_on_at_once() -> None:
    made = make_guard(policy({}, qpid=[{"topic": "t", "message_count": 40}]))
    (use,) = registered(made, "a")
    view = SubscriptionSignals("s", "t", backlog_messages=40)
    watched = made.subscribe(use, view)
    assert made.judge_subscription(use, watched, START) == []
    view.backlog_messages = 41
    (decision,) = made.judge_subscription(use, watched, START)
    assert (decision.client, decision.subscription, decision.observed) == ("a", "s", 41)


def test_a_spool_that_exceeds_its_limit_again_is_judged_immediately() -> None:
    made = make_guard(policy({"message_disk_limit": 100_000}, 100, rules=[warns("spool_bytes", 1_000)]))
    (use,) = registered(made, "a")
    first = made.on_spooled(use, 1_001, START)
    assert first is not None and first.rule == "own"
    assert made.on_spooled(use, 500, START) is None, "it goes on growing: that was said"
    made.on_unspooled(use, 900)
    assert made.tick(START + SECOND) == []
    again = made.on_spooled(use, 400, START + SECOND)
    assert again is not None and (again.rule, again.observed) == ("own", 1_001)
