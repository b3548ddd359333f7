"""Which records sync destinations take: their acknowledgements wait."""

from __future__ import annotations

from collections.abc import Iterable

from broker_core.batch import Batch
from broker_core.config.destinations import DestinationSettings
from broker_core.filters import DecoderOf, compile_filter
from broker_core.names import publisher_origin
from broker_core.subscriptions.registry import Registry
from broker_core.subscriptions.subscription import Subscription
from broker_core.subscriptions.topics import TopicPattern


class Carried:
    """Of a policy whose patterns and filters were checked (`destinations`)."""

    def __init__(self, destinations: Iterable[DestinationSettings], decoder_of: DecoderOf | None) -> None:
        """`decoder_of`: how filters read a topic's bodies."""
        self._taking = Registry[str](decoder_of)
        for one in destinations:
            if one.is_sync:
                chosen = compile_filter(one.filter) if one.filter else None
                self._taking.add(Subscription(one.name, one.name, 0, TopicPattern.parse(one.topic), chosen))

    def any_sync(self, batch: Batch) -> bool:
        """Whether a sync destination takes one of its records. What another site brought isn't carried on."""
        return bool(
            len(self._taking) and not publisher_origin(batch.publisher_name) and self._taking.match(batch)
        )
