"""AMPS's slow-client behaviour as an operator sees it, as scenarios on a manual clock."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from broker_core.config.rule_terms import DecisionReason, PolicyAction
from broker_core.delivery.lifecycle import ClientState
from broker_core.documents.system_records import DecisionCandidate
from tests.support.broker_simulation import BrokerSimulation, policy

MIB = 1 << 20
POOL = {"message_memory_limit": 10 * MIB, "message_disk_limit": 10 * MIB}


def test_a_client_that_stops_reading_goes_to_disk_drains_in_order_and_is_live_again() -> None:
    scene = BrokerSimulation(policy(POOL))
    scene.connect("slow", "quick")
    for _ in range(12):
        scene.publish(MIB)
        scene.read("quick")
    slow = scene.clients["slow"]
    (decision,) = scene.decisions
    assert (decision.client, decision.action) == ("slow", PolicyAction.OFFLINE)
    assert decision.reason is DecisionReason.MEMORY_CAPACITY
    assert decision.observed == 6 * MIB and decision.kept == 6 and decision.lost == 0
    assert slow.state is ClientState.OFFLINED and slow.usage.memory == 0
    scene.read("slow", records=5)
    assert slow.state is ClientState.DRAINING
    scene.publish(MIB)
    scene.read("slow")
    assert slow.state is ClientState.LIVE
    scene.publish(MIB)
    scene.read("slow")
    assert slow.written_sequences == list(range(1, 15))
    assert (
        len(scene.clients["quick"].written_sequences) == 12
        and scene.clients["quick"].state is ClientState.LIVE
    )


def test_a_client_that_reads_a_little_and_stops_again_does_not_flap() -> None:
    scene = BrokerSimulation(policy(POOL))
    scene.connect("slow")
    for _ in range(200):
        scene.publish(MIB)
        scene.read("slow", records=1 if scene.clients["slow"].state is not ClientState.LIVE else 0)
    assert len(scene.decisions) == 1
    assert scene.clients["slow"].state is ClientState.DRAINING


def test_when_the_pool_is_full_the_largest_goes_even_if_another_one_filled_it() -> None:
    scene = BrokerSimulation(policy(POOL))
    scene.connect("a", "b", "c")
    scene.publish(4 * MIB, "a")
    scene.publish(3 * MIB, "b")
    scene.publish(2 * MIB, "c")
    assert scene.decisions == []
    scene.publish(2 * MIB, "c")
    (decision,) = scene.decisions
    assert (decision.client, decision.reason) == ("a", DecisionReason.POOL_MEMORY)
    assert decision.chosen_over == DecisionCandidate("c", 4 * MIB)
    assert scene.guard.pool_for("tcp").memory_used == 7 * MIB


def test_what_is_journaled_is_offlined_by_reference_and_outlives_the_disk_limit() -> None:
    scene = BrokerSimulation(policy(POOL))
    scene.connect("slow")
    for _ in range(100):
        scene.publish(MIB)
    assert scene.clients["slow"].usage.disk == 100 * 40
    assert [decision.action for decision in scene.decisions] == [PolicyAction.OFFLINE]


def test_over_its_disk_share_an_offlined_client_is_disconnected_with_its_losses() -> None:
    scene = BrokerSimulation(policy(POOL))
    scene.connect("slow", "other")
    slow = scene.clients["slow"]
    for _ in range(6):
        scene.publish(MIB, "slow", journaled=False)
    for _ in range(2):
        scene.publish(MIB, "slow")
    assert slow.state is ClientState.CLOSED and "slow" not in scene.clients
    assert [decision.reason for decision in scene.decisions] == [
        DecisionReason.MEMORY_CAPACITY,
        DecisionReason.CAPACITY,
    ]
    assert slow.notice is not None
    assert (slow.notice["lost"], slow.notice["kept"]) == (6, 0)
    assert slow.notice["observed"] > slow.notice["limit"] == 5 * MIB
    assert scene.guard.pool_for("tcp").disk_used == 0


def test_over_the_disk_pool_the_largest_spool_goes() -> None:
    scene = BrokerSimulation(policy(POOL | {"message_memory_limit": 2 * MIB}))
    scene.connect("a", "b", "c")
    for name, records in (("a", 4), ("b", 4), ("c", 3)):
        for _ in range(records):
            scene.publish(MIB, name, journaled=False)
    disconnected = [decision for decision in scene.decisions if decision.action is PolicyAction.DISCONNECT]
    assert [(decision.client, decision.reason) for decision in disconnected] == [("a", DecisionReason.DISK)]
    assert disconnected[0].chosen_over == DecisionCandidate("b", 4 * MIB)
    assert set(scene.clients) == {"b", "c"}


def test_a_message_held_longer_than_the_age_limit_disconnects_within_a_second() -> None:
    scene = BrokerSimulation(policy(POOL, age_ms=30_000))
    scene.connect("slow", "offlined", "quick")
    scene.publish(10, "slow", "quick")
    for _ in range(6):
        scene.publish(MIB, "offlined")
    scene.read("quick")
    scene.wait(30)
    assert [decision.reason for decision in scene.decisions] == [DecisionReason.MEMORY_CAPACITY]
    scene.wait(1)
    aged = scene.decisions[1:]
    assert {decision.client for decision in aged} == {"slow", "offlined"}
    assert all(decision.reason is DecisionReason.AGE and decision.observed == 31_000 for decision in aged)
    assert aged[0].resume_bookmark == "sluice-1|0|"
    assert set(scene.clients) == {"quick"}


def test_a_client_that_drains_too_slowly_is_still_too_old() -> None:
    scene = BrokerSimulation(policy(POOL, age_ms=10_000))
    scene.connect("slow")
    for _ in range(40):
        scene.publish(MIB)
    while scene.clients and scene.now < 10**20:
        scene.read("slow", records=1)
        scene.wait(1)
    assert scene.decisions[-1].reason is DecisionReason.AGE and scene.decisions[-1].kept == 29


def test_a_transport_of_its_own_pool_is_not_touched_by_the_others() -> None:
    own = {"pool": {"message_memory_limit": 50 * MIB}}
    scene = BrokerSimulation(policy(POOL, transports={"public": {}, "desk": own}))
    scene.connect("a", "b", transport="public")
    scene.connect("vip", transport="desk")
    for _ in range(20):
        scene.publish(MIB, "vip")
    for _ in range(6):
        scene.publish(MIB, "a", "b")
    assert {decision.client for decision in scene.decisions} == {"a", "b"}
    assert scene.clients["vip"].state is ClientState.LIVE
    assert scene.clients["vip"].usage.memory == 20 * MIB


def test_a_lower_limit_is_in_force_at_once_and_without_a_restart() -> None:
    scene = BrokerSimulation(policy(POOL))
    scene.connect("a", "b")
    for _ in range(4):
        scene.publish(MIB)
    scene.apply(policy({"message_memory_limit": 6 * MIB, "message_disk_limit": 10 * MIB}, 100, revision=2))
    assert [(decision.client, decision.revision) for decision in scene.decisions] == [("a", 2)]
    assert scene.clients["b"].state is ClientState.LIVE


def test_a_higher_limit_lets_a_client_stay() -> None:
    scene = BrokerSimulation(policy(POOL))
    scene.connect("a")
    scene.apply(policy(POOL, 100, revision=2))
    for _ in range(10):
        scene.publish(MIB)
    assert scene.decisions == []


STEPS = st.lists(
    st.tuples(st.sampled_from("pppprw"), st.integers(0, 3), st.integers(1, 40), st.booleans()), max_size=80
)


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_order_never_changes_nothing_is_lost_while_connected_and_budgets_hold(
    steps: list[tuple[str, int, int, bool]],
) -> None:
    scene = BrokerSimulation(
        policy({"message_memory_limit": 100, "message_disk_limit": 400}, 60, age_ms=60_000)
    )
    names = [f"c{number}" for number in range(4)]
    scene.connect(*names)
    sessions, sent = dict(scene.clients), {name: list[int]() for name in names}
    for what, number, size, journaled in steps:
        name = names[number]
        if what == "p":
            sequence = scene.publish(size, *names[: number + 1], journaled=journaled)
            for receiver in names[: number + 1]:
                sent[receiver].append(sequence if journaled else 0)
        elif what == "r" and name in scene.clients:
            scene.read(name, records=size)
        elif what == "w":
            scene.wait(size / 10)
        pool = scene.guard.pool_for("tcp")
        assert pool.memory_used <= 100 and pool.offlined_memory == 0 and pool.disk_used <= 400
    for name, session in sessions.items():
        if name in scene.clients:
            scene.read(name)
            scene.read(name)
            assert session.written_sequences == sent[name]
        else:
            assert session.notice is not None
            assert session.written_sequences == sent[name][: len(session.written_sequences)]
