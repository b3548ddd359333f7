"""Discarding the oldest messages, and conflating: no empty decision; shadow mode reports the cost of
enforcing.
"""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.delivery.subscription_queues import ShadowConflation
from broker_core.slow_clients.accounts.client_usage import WatchedSubscription
from broker_core.slow_clients.accounts.guard import SlowClientGuard
from broker_core.slow_clients.evaluate.decision import Decision
from broker_core.slow_clients.evaluate.signals import BacklogCounts
from tests.support.broker_simulation import SECOND, START, FixedBacklog, make_guard, policy
from tests.support.signals import SubscriptionSignals


def guarded_client(
    signal: str, limit: int, mode: str = "enforce", action: str = "discard_oldest", **figures: int
) -> tuple[SlowClientGuard, WatchedSubscription]:
    own = {
        "name": "own",
        "signal": signal,
        "limit": limit,
        "mode": mode,
        "scope": {"topic": ">"},
        "ladder": [{"action": action}],
    }
    made = make_guard(policy(rules=[own]))
    use = made.register("c", "tcp", FixedBacklog(START, BacklogCounts(5, 0, 0, "")))
    return made, made.subscribe(use, SubscriptionSignals("s", "t", **figures))


def decision_costs(decisions: list[Decision]) -> list[tuple[int, int]]:
    return [(one.lost, one.kept) for one in decisions]


@pytest.mark.parametrize("mode", ["enforce", "shadow"])
@pytest.mark.parametrize(
    ("signal", "figures", "expected"),
    [
        ("backlog_messages", {"backlog_messages": 50, "outbox_messages": 45}, (30, 15)),
        ("outbound_messages", {"backlog_messages": 50, "outbox_messages": 45}, (25, 20)),
        ("backlog_bytes", {"backlog_bytes": 100, "backlog_messages": 10, "outbox_messages": 9}, (8, 1)),
        ("outbound_bytes", {"outbox_bytes": 90, "outbox_messages": 9}, (7, 2)),
        ("outbound_bytes", {"outbox_bytes": 21, "outbox_messages": 1}, (1, 0)),
    ],
)
def test_a_byte_limit_discards_by_the_mean_size(
    mode: str, signal: str, figures: dict[str, Any], expected: tuple[int, int]
) -> None:
    made, _ = guarded_client(signal, 20, mode, **figures)
    assert decision_costs(made.tick(START)) == [expected]


@pytest.mark.parametrize("mode", ["enforce", "shadow"])
def test_what_is_in_flight_or_on_disk_cannot_be_discarded_and_there_is_no_decision_that_discards_nothing(
    mode: str,
) -> None:
    made, watched = guarded_client("backlog_messages", 20, mode, backlog_messages=50, unacked_messages=50)
    assert made.tick(START) == [] and made.tick(START + SECOND) == []
    assert isinstance(watched.view, SubscriptionSignals)
    watched.view.backlog_messages, watched.view.outbox_messages = 53, 3
    assert decision_costs(made.tick(START + 2 * SECOND)) == [(3, 0)], "as soon as there is something"


def test_an_early_rung_discards_nothing_while_the_limit_is_not_passed() -> None:
    own = {
        "name": "own",
        "signal": "backlog_messages",
        "limit": 20,
        "mode": "enforce",
        "scope": {"topic": ">"},
        "ladder": [{"action": "discard_oldest", "at_percent": 50}],
    }
    made = make_guard(policy(rules=[own]))
    made.subscribe(
        made.register("c", "tcp", FixedBacklog(START)),
        SubscriptionSignals("s", "t", backlog_messages=15, outbox_messages=15),
    )
    assert made.tick(START) == []


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30)), max_size=30), st.booleans())
def test_in_shadow_it_counts_what_enforcing_would_have_discarded_however_long_it_goes_on(
    steps: list[tuple[int, int]], in_bytes: bool
) -> None:
    """Messages of 10 bytes arrive and are sent; only enforcing discards any."""
    signal, limit = ("backlog_bytes", 250) if in_bytes else ("outbound_messages", 25)
    discarded = dict.fromkeys(("enforce", "shadow"), 0)
    for mode in discarded:
        made, watched = guarded_client(signal, limit, mode)
        view = watched.view
        assert isinstance(view, SubscriptionSignals)
        waiting = 0
        for second, step in enumerate(steps):
            for half, change in enumerate((step[0], -step[1])):
                waiting = max(0, waiting + change)
                view.outbox_messages = view.backlog_messages = waiting
                view.outbox_bytes = view.backlog_bytes = 10 * waiting
                lost = sum(one.lost for one in made.tick(START + (2 * second + half) * SECOND))
                discarded[mode] += lost
                waiting -= lost if mode == "enforce" else 0
    assert discarded["shadow"] == discarded["enforce"]


@given(st.lists(st.tuples(st.lists(st.integers(0, 12), max_size=20), st.integers(0, 12)), max_size=30))
def test_in_shadow_it_counts_what_conflating_would_have_left_out_too(
    steps: list[tuple[list[int], int]],
) -> None:
    """Messages with keys arrive and are sent; only enforcing discards earlier ones of a key."""
    left_out = dict.fromkeys(("enforce", "shadow"), 0)
    for mode in left_out:
        made, watched = guarded_client("outbound_messages", 15, mode, "conflate")
        view, would_be = watched.view, ShadowConflation()
        assert isinstance(view, SubscriptionSignals)
        waiting, came = list[int](), 0
        for second, (keys, taken) in enumerate(steps):
            for half, (new, gone) in enumerate(((keys, 0), ([], taken))):
                waiting, came = [*waiting, *new][gone:], came + len(new)
                view.outbox_messages = view.backlog_messages = len(waiting)
                for decision in made.tick(START + (2 * second + half) * SECOND):
                    if mode == "enforce":
                        kept = list(reversed(dict.fromkeys(reversed(waiting))))
                        left_out[mode] += len(waiting) - len(kept)
                        waiting = kept
                    else:
                        cut, newer = (
                            made.shadow_discarded(decision),
                            min(came - would_be.queued_in_total, len(waiting)),
                        )
                        last = array("q", waiting[len(waiting) - newer :])
                        would_be = would_be.conflate(last, came, len(waiting), cut)
                        left_out[mode] += would_be.removed - cut
                        made.record_shadow_discard(decision, would_be.removed - cut)
    assert left_out["shadow"] == left_out["enforce"]
