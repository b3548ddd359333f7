"""Draft, preview and publication to some clients first, with a real broker and stalled clients."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings

from broker_core.config import PolicyDocument
from broker_core.documents.system_records import DecisionEntry
from broker_core.slow_clients.accounts.brake import RolloutBrake
from broker_core.slow_clients.rules.rulebook import parse_stage
from console.models import Instance, PolicyDraft, StagedRollout
from console.queries import policies as read
from console.services import broker_reports, drafts, policies, rollouts
from console.services.actors import Actor
from tests.broker_core.slow_clients.evaluate.test_decision import POOL
from tests.support.broker_thread import BrokerThread, broker_thread
from tests.support.brokers import tcp_policy, until
from tests.support.raw import RawClient
from tests.support.stalled import StalledSubscriber

MIB = 1 << 20
NAME = "test-1"


@pytest.fixture
def rollout_instance(settings: Any, db: None) -> Instance:
    """Make an instance whose clients may hold 50 MiB each; none is near that."""
    settings.SLUICE_INSTANCE = NAME
    instance = policies.ensure_instance(NAME)
    document = tcp_policy(message_memory_limit=100 * MIB).to_dict()
    policies.publish(Actor("system", "test"), document, reason="small", instance_name=NAME)
    return instance


DESKS = ("desk-1", "desk-2", "desk-3", "desk-4")


@pytest.fixture
def real(rollout_instance: Instance, tmp_path: Path) -> Iterator[BrokerThread]:
    policy = PolicyDocument.from_dict(policies.document_in_force(NAME))
    with broker_thread(
        tmp_path, policy, Path(django_settings.SLUICE_RUN_DIRECTORY) / f"{NAME}.sock"
    ) as running:
        clients = running.run(stall(running.broker))  # keep a reference, or the sockets are closed
        yield running
        assert len(clients) == len(DESKS) + 2


async def stall(broker: Any) -> list[Any]:
    """Connect the desks and other-1 as stalled clients, and wait until each has a backlog of about 4 MiB."""
    stalled = [await StalledSubscriber.connect(broker, name, "t.>") for name in (*DESKS, "other-1")]
    feed = await RawClient.connect(broker, "feed")
    for first in range(0, 64, 8):
        await feed.publish("t.a", [b"x" * 64 * 1024] * 8, first)
    await until(
        lambda: all(
            one.outbox_bytes > MIB
            for one in broker.statistics.collect_snapshot().clients
            if one.name != "feed"
        )
    )
    return [*stalled, feed]


def states(running: BrokerThread) -> dict[str, str]:
    async def look() -> dict[str, str]:
        return {one.name: one.delivery for one in running.broker.statistics.collect_snapshot().clients}

    found: dict[str, str] = running.run(look())
    return found


def decisions(running: BrokerThread) -> list[DecisionEntry]:
    async def look() -> list[DecisionEntry]:
        return list(running.broker.engine.decisions.recent)

    found: list[DecisionEntry] = running.run(look())
    return found


def tight(actor: Actor) -> PolicyDraft:
    """Create a draft under which every stalled client exceeds its capacity."""
    draft = drafts.create_draft(actor, "tight")
    return drafts.edit_draft(actor, draft.pk, {"client_policy": {"client_max_capacity": 1}})


def quiet(running: BrokerThread) -> list[DecisionEntry]:
    """Wait until no decision was added for more than a second; return all decisions."""

    async def wait() -> None:
        made = -1
        while made != len(running.broker.engine.decisions.recent):
            made = len(running.broker.engine.decisions.recent)
            await asyncio.sleep(1.5)

    running.run(wait())
    return decisions(running)


def enforced(made: list[DecisionEntry]) -> set[tuple[str, str, int]]:
    return {(one.client, one.action, one.revision) for one in made if one.mode == "enforce"}


def test_a_staged_revision_acts_on_its_clients_alone(
    real: BrokerThread, rollout_instance: Instance, actor: Actor
) -> None:
    draft = tight(actor)
    effect = drafts.preview(draft).effect
    assert effect is not None
    assert {one.client for one in effect.touched} == {*DESKS, "other-1", "feed"}
    (change,) = effect.touched[0].changes
    assert (change.setting, change.before.value, change.after.value, change.after.origin) == (
        "amps.client_max_capacity",
        50,
        1,
        "instance",
    )
    assert {(one.client, one.action, one.mode) for one in effect.acted_on} == {
        (name, "offline", "enforce") for name in (*DESKS, "other-1")
    }
    assert (effect.enforced_in_all, effect.held_in_all) == (5, 0)
    first = rollouts.RolloutPlan(client="desk-*", most_decisions=4)
    staged = drafts.preview(draft, first).effect
    assert staged is not None
    assert {one.client for one in staged.touched} == set(DESKS)
    assert (staged.enforced_in_all, staged.held_in_all) == (4, 0)
    assert decisions(real) == []

    published = drafts.publish(actor, draft.pk, reason="try", rollout=first)
    assert (published.revision.number, published.applied) == (3, True)
    assert read.policy_status(rollout_instance)["staged"] == "Revision 3 for desk-* first, 2 for the others."
    made = quiet(real)
    assert enforced(made) == {(name, "offline", 3) for name in DESKS}
    assert (states(real)["desk-1"], states(real)["other-1"]) == ("offlined", "live")
    broker_reports.record_decisions(made, NAME)
    assert rollouts.stop_if_exceeded(rollout_instance) is None, "four decisions are allowed"


@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_a_decision_beyond_the_allowance_is_not_carried_out_and_the_revision_returns(
    real: BrokerThread, rollout_instance: Instance, actor: Actor, allowed: int
) -> None:
    draft, first = tight(actor), rollouts.RolloutPlan(client="desk-*", most_decisions=allowed)
    said = drafts.preview(draft, first).effect
    assert said is not None
    assert (said.acted_on_in_all, said.enforced_in_all, said.held_in_all) == (4, allowed, 4 - allowed)

    drafts.publish(actor, draft.pk, reason="try", rollout=first)
    made = quiet(real)
    assert enforced(made) == {(one.client, one.action, 3) for one in said.acted_on if one.mode == "enforce"}
    (held,) = [one for one in made if one.held_at is not None]
    assert (held.mode, held.held_at, held.revision) == ("shadow", allowed, 3)
    assert f"was not offlined, because staged revision 3 may make {allowed} decision" in held.sentence
    assert sum(state == "offlined" for state in states(real).values()) == allowed
    # Apply again, as the control plane does every minute: the broker must not restore the withdrawn revision.
    again = policies.apply_at_broker(policies.newest_revision(rollout_instance))
    assert (again.applied, again.problem) == (True, "")
    assert again.withdrawn == "The broker used up the decisions that the rollout allows."
    assert quiet(real) == made

    broker_reports.record_decisions(made, NAME)
    back = rollouts.stop_if_exceeded(rollout_instance)
    assert back is not None and (back.revision.number, back.applied) == (4, True)
    assert back.revision.document["client_policy"]["client_max_capacity"] == 50
    assert (StagedRollout.objects.get().state, read.policy_status(rollout_instance)["staged"]) == (
        "returned",
        "",
    )
    assert sum(state == "offlined" for state in states(real).values()) == allowed


def test_a_broker_that_starts_again_has_what_is_left_of_the_allowance(
    real: BrokerThread, rollout_instance: Instance, actor: Actor
) -> None:
    drafts.publish(
        actor, tight(actor).pk, reason="try", rollout=rollouts.RolloutPlan(client="desk-*", most_decisions=3)
    )
    broker_reports.record_decisions(quiet(real), NAME)
    stage = parse_stage(policies.policy_orders(NAME)["staged"])
    assert stage is not None and (stage.allowed, stage.made) == (3, 3)
    assert not RolloutBrake(stage).admit(replace(POOL, revision=3))


def test_a_promoted_revision_acts_on_everybody(
    real: BrokerThread, rollout_instance: Instance, actor: Actor
) -> None:
    drafts.publish(
        actor, tight(actor).pk, reason="try", rollout=rollouts.RolloutPlan(client="desk-*", most_decisions=9)
    )
    assert rollouts.promote(actor, rollout_instance).applied
    assert {name for name, _, _ in enforced(quiet(real))} == {*DESKS, "other-1"}
