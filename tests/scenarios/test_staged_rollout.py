"""Draft → preview → publish for some first, with a real broker and real clients that don't read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings

from broker_core.config import PolicyDocument
from broker_core.documents.records import DecisionEntry
from console.models import Instance, PolicyRollout
from console.queries import policies as read
from console.services import drafts, policies, reports, rollouts
from console.services.actors import Actor
from tests.support.broker_thread import BrokerThread, broker_thread
from tests.support.brokers import tcp_policy, until
from tests.support.raw import RawClient
from tests.support.stalled import StalledSubscriber

MIB = 1 << 20
NAME = "test-1"


@pytest.fixture
def wanted(settings: Any, db: None) -> Instance:
    """An instance whose clients may hold 20 MiB each: nobody is near that."""
    settings.SLUICE_INSTANCE = NAME
    instance = policies.ensure_instance(NAME)
    document = tcp_policy(message_memory_limit=40 * MIB).to_dict()
    policies.publish(Actor("system", "test"), document, reason="small", instance_name=NAME)
    return instance


@pytest.fixture
def real(wanted: Instance, tmp_path: Path) -> Iterator[BrokerThread]:
    policy = PolicyDocument.from_dict(policies.document_in_force(NAME))
    with broker_thread(
        tmp_path, policy, Path(django_settings.SLUICE_RUN_DIRECTORY) / f"{NAME}.sock"
    ) as running:
        clients = running.do(stall(running.broker))  # kept: a socket that nobody holds is closed
        yield running
        assert len(clients) == 3


async def stall(broker: Any) -> list[Any]:
    """desk-1 and other-1 don't read, and some 4 MiB wait for each."""
    stalled = [await StalledSubscriber.connect(broker, name, "t.>") for name in ("desk-1", "other-1")]
    feed = await RawClient.connect(broker, "feed")
    for first in range(0, 64, 8):
        await feed.publish("t.a", [b"x" * 64 * 1024] * 8, first)
    await until(
        lambda: all(
            one.outbox_bytes > MIB for one in broker.statistics.snapshot().clients if one.name != "feed"
        )
    )
    return [*stalled, feed]


def states(running: BrokerThread) -> dict[str, str]:
    async def look() -> dict[str, str]:
        return {one.name: one.state for one in running.broker.statistics.snapshot().clients}

    found: dict[str, str] = running.do(look())
    return found


def decisions(running: BrokerThread) -> list[DecisionEntry]:
    async def look() -> list[DecisionEntry]:
        return list(running.broker.engine.decisions.recent)

    found: list[DecisionEntry] = running.do(look())
    return found


def test_a_staged_revision_acts_on_its_clients_alone_and_returns_by_itself(
    real: BrokerThread, wanted: Instance, actor: Actor
) -> None:
    draft = drafts.make(actor, "tight")
    drafts.edit(actor, draft.pk, {"client_policy": {"client_max_capacity": 2}})  # 0.8 MiB of memory
    effect = drafts.preview(drafts.draft_numbered(draft.pk)).effect
    assert effect is not None
    assert {one.client for one in effect.touched} == {"desk-1", "other-1", "feed"}
    (change,) = effect.touched[0].changes
    assert (change.setting, change.before.value, change.after.value, change.after.origin) == (
        "amps.client_max_capacity",
        50,
        2,
        "instance",
    )
    assert {(one.client, one.action) for one in effect.acted_on} == {
        ("desk-1", "offline"),
        ("other-1", "offline"),
    }
    first = rollouts.Plan(client="desk-*", most_decisions=0)
    staged = drafts.preview(drafts.draft_numbered(draft.pk), first).effect
    assert staged is not None
    assert [one.client for one in staged.touched] == ["desk-1"]
    assert [(one.client, one.action) for one in staged.acted_on] == [("desk-1", "offline")]
    assert decisions(real) == []

    published = drafts.publish(actor, draft.pk, reason="try", rollout=first)
    assert (published.revision.number, published.applied) == (3, True)
    assert read.in_force(wanted)["staged"] == "Revision 3 for desk-* first, 2 for the others."

    async def acted() -> None:
        await until(lambda: len(real.broker.engine.decisions.recent) > 0)
        await asyncio.sleep(1.5)  # a tick and more, in which nobody else may be acted on

    real.do(acted())
    made = decisions(real)
    assert {(one.client, one.action, one.revision) for one in made} == {("desk-1", "offline", 3)}
    assert (states(real)["desk-1"], states(real)["other-1"]) == ("offlined", "live")

    reports.record_decisions(made, NAME)
    back = rollouts.check(wanted)
    assert back is not None and (back.revision.number, back.applied) == (4, True)
    assert back.revision.document["client_policy"]["client_max_capacity"] == 50
    assert (PolicyRollout.objects.get().state, read.in_force(wanted)["staged"]) == ("returned", "")
    assert states(real)["other-1"] == "live"


def test_a_promoted_revision_acts_on_everybody(real: BrokerThread, wanted: Instance, actor: Actor) -> None:
    draft = drafts.make(actor, "tight")
    drafts.edit(actor, draft.pk, {"client_policy": {"client_max_capacity": 2}})
    drafts.publish(actor, draft.pk, reason="try", rollout=rollouts.Plan(client="desk-*", most_decisions=9))
    assert rollouts.promote(actor, wanted).applied

    async def acted() -> None:
        await until(
            lambda: {one.client for one in real.broker.engine.decisions.recent} == {"desk-1", "other-1"}
        )

    real.do(acted())
