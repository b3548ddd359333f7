"""One received message, made only for applications that look at single messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, repeat
from typing import Any, NamedTuple, cast

import orjson

from broker_core.batch import Batch
from broker_core.names import publisher_origin


class Arrived(NamedTuple):
    """A batch that came for a subscription, the instance it came from, and with acknowledgements the number of its first message."""

    batch: Batch
    instance: str
    number: int


class Message(NamedTuple):
    """A record as a subscriber sees it. `body` is what was published, byte for byte."""

    topic: str
    body: bytes
    headers: bytes
    sequence: int
    publisher_sequence: int
    instance: str
    timestamp: int | None = None
    """When the broker accepted it, ns UTC; for subscriptions with the option `timestamp`."""
    number: int = 0
    """Its number among the subscription's messages, for acknowledgements; 0 for subscriptions without."""
    mark: str = ""
    """"conflated": the broker left out older messages of the same key, because this client was slow. "conflation_over": the
    first behind these; from it on everything comes again. Else ""."""

    origin: str = ""
    """The instance that accepted it, where a link brought it from there: `publisher_sequence` is its sequence there. Else ""."""

    @property
    def bookmark(self) -> str | None:
        """Where this message stands in the log of the instance that accepted it; None when its topic isn't journaled."""
        if self.origin and self.sequence:
            return f"{self.origin}|{self.publisher_sequence}|"
        return f"{self.instance}|{self.sequence}|" if self.sequence else None

    @property
    def data(self) -> Any:
        """The body as JSON."""
        return orjson.loads(self.body)

    @property
    def text(self) -> str:
        """The body as UTF-8."""
        return self.body.decode()


# No Python call, as _make has.
_make = cast("Callable[[tuple[Any, ...]], Message]", partial(tuple.__new__, Message))


def messages_of(batch: Batch, instance: str, first: int = 0, *, timestamp: bool = False) -> Iterator[Message]:
    """The messages of a batch, at the speed of one tuple each; numbered from `first` where that isn't 0."""
    topic = batch.single_topic
    names = repeat(topic) if topic is not None else batch.names()
    headers = batch.headers() if batch.header.headers_length else repeat(b"")
    return map(
        _make,
        zip(
            names,
            batch.bodies(),
            headers,
            *batch.numbers(),
            repeat(instance),
            repeat(batch.accepted_at if timestamp else None),
            count(first) if first else repeat(0),
            repeat(batch.mark),
            repeat(publisher_origin(batch.publisher_name)),
            strict=False,
        ),
    )
