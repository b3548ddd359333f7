"""Checks of a policy's destinations, and a test whether a batch has to wait for a sync destination."""

from __future__ import annotations

from collections.abc import Iterable

from broker_core.batch import Batch
from broker_core.config import PolicyDocument
from broker_core.config.destinations import DestinationSettings
from broker_core.errors import SluiceError
from broker_core.filters import DecoderOf, compile_filter
from broker_core.names import MAX_ORIGIN, publisher_origin
from broker_core.subscriptions.registry import SubscriptionRegistry
from broker_core.subscriptions.subscription import TopicSubscription
from broker_core.subscriptions.topics import TopicPattern


class SyncDestinationFilter:
    """Test whether a sync destination of a policy takes a batch; acknowledging such a batch waits for it.

    `destination_problems` must have found the policy valid.
    """

    def __init__(self, destinations: Iterable[DestinationSettings], decoder_of: DecoderOf | None) -> None:
        """Compile the sync destinations' patterns and filters.

        `decoder_of`: how filters read a topic's bodies.
        """
        self._taking = SubscriptionRegistry[str](decoder_of)
        for one in destinations:
            if one.is_sync:
                chosen = compile_filter(one.filter) if one.filter else None
                self._taking.add(
                    TopicSubscription(one.name, one.name, 0, TopicPattern.parse(one.topic), chosen)
                )

    def has_sync_destination(self, batch: Batch) -> bool:
        """Return whether a sync destination takes a record of the batch.

        Records that a link brought from another site are not carried on, so the answer for them is False.
        """
        return bool(
            len(self._taking) and not publisher_origin(batch.publisher_name) and self._taking.match(batch)
        )


def destination_problems(policy: PolicyDocument) -> list[str]:
    """Return a sentence for each problem of the destinations: patterns, filters, and the instance's own name.

    The broker checks this before a revision is in force.
    """
    problems = []
    for one in policy.destinations:
        where = f"destination {one.name}"
        try:
            TopicPattern.parse(one.topic)
            if one.filter:
                compile_filter(one.filter)
        except SluiceError as error:
            problems.append(f"{where}: {error.sentence.rstrip('.')}")
        if one.topic.startswith("$"):
            problems.append(f"{where}: topics that begin with $ are this broker's own, and aren't carried")
    if policy.destinations and len(policy.instance.name) > MAX_ORIGIN:
        problems.append(f"instance: links need a name of at most {MAX_ORIGIN} characters")
    return problems
