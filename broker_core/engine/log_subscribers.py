"""Subscribers of the log, and the topics that a policy removes from them.

Subscribers of the log are bookmark, durable and shared subscriptions, queues and managed replays. A policy
defines the topics that are journaled. When a revision removes topics, subscribers get no more records of them
from the log. A preview lists these subscribers. When the revision comes into force, each one is notified and
its state shows the loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from broker_core.connections.connection_view import ConnectionView
from broker_core.documents.instance import LogSubscriberEntry, SubscriberKind
from broker_core.names import OWN
from broker_core.protocols import replies
from broker_core.protocols.stomp.destinations import QUEUES
from broker_core.replay.client_subscription import ClientSubscription
from broker_core.replay.durable_subscriptions import DurableSubscriptions
from broker_core.replay.managed_replays import ManagedReplays
from broker_core.subscriptions.journaled_topics import Extent, JournaledTopics
from broker_core.subscriptions.topics import TopicPattern


class LogSubscriber(NamedTuple):
    """Subscriber of the log. `target` is its subscription while its client is connected."""

    client: str
    name: str
    kind: SubscriberKind
    pattern: TopicPattern
    target: ClientSubscription | None = None


def log_subscribers(
    clients: Mapping[str, ConnectionView], durables: DurableSubscriptions, replays: ManagedReplays
) -> Iterator[LogSubscriber]:
    """Yield every subscriber of the log, including those of disconnected clients.

    Subscribers of the broker's own topics are left out, because these topics are always journaled.
    """
    for name, member in list(clients.items()):
        for target in list(member.subscriptions.values()):
            if (target.is_bookmark_subscription or target.is_shared) and not target.topic.startswith(OWN):
                pattern = target.subscription.pattern
                yield LogSubscriber(name, target.id, _kind_of(target), pattern, target)
    for durable in durables.list_records():
        if not durables.is_connected(durable):
            shared = durable.sharing is not None
            kind = _shared_kind(durable.topic) if shared else "durable"
            client = durable.name if shared else durable.client
            yield LogSubscriber(client, durable.name, kind, TopicPattern.parse(durable.topic))
    for replay in replays.waiting():
        yield LogSubscriber(replay.client, replay.name, "replay", TopicPattern.parse(replay.topic))


def losses(
    subscribers: Iterator[LogSubscriber], before: JournaledTopics, after: JournaledTopics
) -> list[LogSubscriberEntry]:
    """Return the subscribers that would get less than now, those that get nothing first."""
    known: dict[str, Extent] = {}
    made = []
    for one in subscribers:
        extent = known.get(one.pattern.text)
        if extent is None:
            extent = known[one.pattern.text] = after.narrowed_from(before, one.pattern)
        if extent:
            made.append(
                LogSubscriberEntry(
                    client=one.client,
                    subscription=one.name,
                    topic=one.pattern.text,
                    subscription_kind=one.kind,
                    connected=one.target is not None,
                    extent=extent,
                )
            )
    return sorted(made, key=lambda entry: entry.extent != "all")


def tell_losses(
    clients: Mapping[str, ConnectionView], before: JournaledTopics, after: JournaledTopics
) -> None:
    """Mark each connected subscription with the records that it no longer gets, and notify its client."""
    for member in list(clients.values()):
        for target in list(member.subscriptions.values()):
            if not (target.is_bookmark_subscription or target.is_shared) or target.topic.startswith(OWN):
                continue
            baseline = target.journaled_as or before
            extent = after.narrowed_from(baseline, target.subscription.pattern)
            told, target.unrecorded = target.unrecorded, extent
            target.journaled_as = baseline if extent else None
            if extent and extent != told:
                member.reply(_notice(target, extent))


def _notice(target: ClientSubscription, extent: Extent) -> replies.DecisionNotice:
    """Return the notice of a subscription that loses topics."""
    lost, rest = (
        (target.topic, "nothing more")
        if extent == "all"
        else (f"all of {target.topic}", "only a part of what it asked for")
    )
    return replies.DecisionNotice(
        code="no_longer_journaled",
        message=f"The policy no longer journals {lost}: the subscription {target.id} gets {rest}.",
        details={"id": target.id, "topic": target.topic, "extent": extent},
    )


def _kind_of(target: ClientSubscription) -> SubscriberKind:
    """Return the kind of a connected subscription."""
    if target.is_shared:
        return _shared_kind(target.topic)
    if target.managed is not None:
        return "replay"
    return "durable" if target.durable else "bookmark"


def _shared_kind(topic: str) -> SubscriberKind:
    """Return "queue" or "shared" for a shared subscription's topic."""
    return "queue" if topic.startswith(QUEUES) else "shared"
