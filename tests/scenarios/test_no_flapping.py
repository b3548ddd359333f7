"""Offlining and draining never flap, and a client that caught up is live immediately.

The test advances the clock.
"""

from __future__ import annotations

import random

from broker_core.config.rule_terms import PolicyAction
from broker_core.delivery.lifecycle import ClientState
from tests.support.broker_simulation import BrokerSimulation, policy

MESSAGE = 1_000
LIMIT = 100 * MESSAGE
"""Memory limit of one client: half the pool."""


def make_simulation() -> BrokerSimulation:
    made = BrokerSimulation(policy({"message_memory_limit": 2 * LIMIT, "message_disk_limit": 1 << 30}))
    made.connect("c")
    return made


def offlined(made: BrokerSimulation) -> int:
    return sum(decision.action is PolicyAction.OFFLINE for decision in made.decisions)


def test_a_client_that_reads_as_fast_as_it_gets_and_is_at_the_limit_stays_where_it_is() -> None:
    """Its backlog hovers around the limit for ten minutes.

    A state that followed it would change with each crossing.
    """
    made, chance, crossed, above = make_simulation(), random.Random(7), 0, False
    client = made.clients["c"]
    for _ in range(600):
        for _ in range(100):
            made.publish(MESSAGE)
            behind = len(client.outbox) + len(client.spool)
            made.read("c", 0 if behind < 90 else 2 if behind > 110 else chance.randint(0, 2))
            if above != (behind > 100):
                above, crossed = not above, crossed + 1
        made.wait(1)
    assert crossed > 100, "the backlog hovers around the limit"
    assert made.clients["c"].state is not ClientState.LIVE
    assert offlined(made) == 1, "offlined once, and afterwards its spool is never empty"


def test_each_time_offline_takes_a_whole_limit_of_new_backlog() -> None:
    """A client that catches up fully and falls behind again: it is offlined at most once for each limit's
    worth.
    """
    made, chance, published = make_simulation(), random.Random(11), 0
    for _ in range(300):
        for _ in range(chance.randint(0, 250)):
            made.publish(MESSAGE)
            published += MESSAGE
        made.read("c", chance.choice((0, 20, 100, 400)))
        made.wait(1)
    assert 2 < offlined(made) <= published // LIMIT
    made.read("c")
    assert (
        made.clients["c"].written_sequences == sorted(made.clients["c"].written_sequences)
        and len(made.clients["c"].written_sequences) == published // MESSAGE
    )


def test_a_client_that_has_caught_up_is_live_before_the_next_tick() -> None:
    made = make_simulation()
    for _ in range(150):
        made.publish(MESSAGE)
    assert made.clients["c"].state is ClientState.OFFLINED
    made.read("c", 149)
    assert made.clients["c"].state is ClientState.DRAINING, "a client with records in its spool is not live"
    made.read("c", 1)
    assert made.clients["c"].state is ClientState.LIVE and not made.clients["c"].usage.is_offlined
    made.publish(MESSAGE)
    assert not made.clients["c"].spool, "new records are delivered from memory again"
