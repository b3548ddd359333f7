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
from broker_core.names import RESERVED_PREFIX
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
    for name, connection in list(clients.items()):
        for target in list(connection.subscriptions.values()):
            if (target.is_bookmark_subscription or target.is_shared) and not target.topic.startswith(
                RESERVED_PREFIX
            ):
                pattern = target.subscription.pattern
                yield LogSubscriber(name, target.id, _subscriber_kind(target), pattern, target)
    for durable in durables.list_records():
        if not durables.is_connected(durable):
            shared = durable.sharing is not None
            kind = _shared_kind(durable.topic) if shared else "durable"
            client = durable.name if shared else durable.client
            yield LogSubscriber(client, durable.name, kind, TopicPattern.parse(durable.topic))
    for replay in replays.waiting():
        yield LogSubscriber(replay.client, replay.name, "replay", TopicPattern.parse(replay.topic))


def find_losses(
    subscribers: Iterator[LogSubscriber], previous: JournaledTopics, current: JournaledTopics
) -> list[LogSubscriberEntry]:
    """Return the subscribers that would get less than now, those that get nothing first."""
    known: dict[str, Extent] = {}
    entries = []
    for subscriber in subscribers:
        extent = known.get(subscriber.pattern.text)
        if extent is None:
            extent = known[subscriber.pattern.text] = current.narrowed_from(previous, subscriber.pattern)
        if extent:
            entries.append(
                LogSubscriberEntry(
                    client=subscriber.client,
                    subscription=subscriber.name,
                    topic=subscriber.pattern.text,
                    subscription_kind=subscriber.kind,
                    connected=subscriber.target is not None,
                    extent=extent,
                )
            )
    return sorted(entries, key=lambda entry: entry.extent != "all")


def notify_losses(
    clients: Mapping[str, ConnectionView], previous: JournaledTopics, current: JournaledTopics
) -> None:
    """Mark each connected subscription with the records that it no longer gets, and notify its client."""
    for connection in list(clients.values()):
        for target in list(connection.subscriptions.values()):
            if not (target.is_bookmark_subscription or target.is_shared) or target.topic.startswith(
                RESERVED_PREFIX
            ):
                continue
            baseline = target.journaled_as or previous
            extent = current.narrowed_from(baseline, target.subscription.pattern)
            previous_extent, target.unrecorded = target.unrecorded, extent
            target.journaled_as = baseline if extent else None
            if extent and extent != previous_extent:
                connection.reply(_notice(target, extent))


def _notice(target: ClientSubscription, extent: Extent) -> replies.DecisionNotice:
    """Return the notice of a subscription that loses topics."""
    lost, remaining = (
        (target.topic, "nothing more")
        if extent == "all"
        else (f"all of {target.topic}", "only a part of what it asked for")
    )
    return replies.DecisionNotice(
        code="no_longer_journaled",
        message=f"The policy no longer journals {lost}: the subscription {target.id} gets {remaining}.",
        details={"id": target.id, "topic": target.topic, "extent": extent},
    )


def _subscriber_kind(target: ClientSubscription) -> SubscriberKind:
    """Return the kind of a connected subscription."""
    if target.is_shared:
        return _shared_kind(target.topic)
    if target.managed is not None:
        return "replay"
    return "durable" if target.durable else "bookmark"


def _shared_kind(topic: str) -> SubscriberKind:
    """Return "queue" or "shared" for a shared subscription's topic."""
    return "queue" if topic.startswith(QUEUES) else "shared"
