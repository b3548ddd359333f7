"""Message flow graph: publishers → topics → clients, with messages per second.

The broker's snapshots contain totals: messages published by client and topic, and messages handed over per
subscription. A rate is the growth of a total between two snapshots some seconds apart. Many names are
grouped by their beginning, so that 500 clients become a few dozen boxes. Clients with a bad health state
are never grouped with healthy ones.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Final, NamedTuple

from msgspec import Meta

from broker_core.documents.base import Document, Moment
from broker_core.documents.clients import ClientEntry, Health
from broker_core.documents.instance import Snapshot
from broker_core.names import name_matches
from console.access.rights import topic_within
from console.broker_addresses import MAX_BROKERS

MAX_PUBLISHERS: Final = 12
"""Maximum boxes of publishers."""
MAX_TOPICS: Final = 12
"""Maximum boxes of topics."""
MAX_SLOW: Final = 12
"""Maximum boxes of single slow clients."""
MAX_GROUPS: Final = 14
"""Maximum boxes of other clients."""
SAMPLES: Final = 6
"""Maximum totals of one instance that a `FlowMeter` remembers."""
MIN_MS, MAX_MS = 900, 12_000
"""Minimum and maximum milliseconds between two compared snapshots.

A shorter span gives inaccurate rates; a longer one is no longer current.
"""
OTHERS: Final = "others"
"""Name of the box with the remaining members."""
ATTENTION_STATES: Final = (Health.STALLED, Health.FLAPPING, Health.FALLING_BEHIND, Health.NOT_RECORDED)
"""Health states that require attention, worst first."""
_SEPARATORS: Final = "-._"
"""Characters that separate words of a client name."""


class FlowNode(Document, frozen=True, kw_only=True):
    """Publisher, topic or client of the graph, or a group of them."""

    name: Annotated[
        str, Meta(description="Name; a group of nodes has the common prefix and `*`, or `others`.")
    ]
    members: Annotated[
        int, Meta(description="Number of clients, publishers or topics that the node represents.")
    ]
    rate: Annotated[float, Meta(description="Messages per second: published, or delivered.")]
    rate_in: Annotated[float, Meta(description="Messages per second that publishers send to the topic.")] = (
        0.0
    )
    health: Annotated[
        str, Meta(description="Health of a client that needs attention; empty for other clients.")
    ] = ""
    lag_ms: Annotated[int, Meta(description="Lag of a client that needs attention.")] = 0


class FlowLink(Document, frozen=True, kw_only=True):
    """Edge of the graph.

    `source` and `target` are indices of the node lists; `rate` is messages per second.
    """

    source: int
    target: int
    rate: float


class Flow(Document, frozen=True, kw_only=True):
    """Message flow graph at one moment."""

    at: Moment
    span_ms: Annotated[
        int | None,
        Meta(description="Period of the rates; null: not known yet, repeat the request after a second."),
    ]
    publishers: list[FlowNode]
    topics: list[FlowNode]
    clients: list[FlowNode]
    published: Annotated[list[FlowLink], Meta(description="Flows from publishers to topics.")]
    handed: Annotated[list[FlowLink], Meta(description="Flows from topics to clients.")]


Key = tuple[str, int, str]
"""Client name, moment of its logon, and a topic or subscription id."""


class FlowTotals(NamedTuple):
    """Totals at one moment: published by client and topic, handed over by client and subscription."""

    at: int
    published: Mapping[Key, int]
    handed: Mapping[Key, int]


class FlowRates(NamedTuple):
    """Messages per second by key. `span_ms` is None until there are two snapshots to compare."""

    span_ms: int | None
    published: Mapping[Key, float]
    handed: Mapping[Key, float]


def flow_totals(snapshot: Snapshot) -> FlowTotals:
    """Return the totals in a snapshot."""
    published: dict[Key, int] = {}
    handed: dict[Key, int] = {}
    for one in snapshot.clients:
        for topic, number in one.published_topics.items():
            published[one.name, one.connected_at, topic] = number
        for subscription in one.subscriptions:
            handed[one.name, one.connected_at, subscription.id] = subscription.delivered_messages
    return FlowTotals(snapshot.at, published, handed)


class FlowMeter:
    """Recent totals of this process, from which rates are computed.

    It records totals only when a flow is requested. Rates use the oldest total of the instance in the span.
    """

    def __init__(self) -> None:
        self._samples: OrderedDict[str, deque[FlowTotals]] = OrderedDict()
        """Recent totals by instance, the most recently requested instance last."""

    def rates(self, snapshot: Snapshot) -> FlowRates:
        """Return the rates up to this snapshot, and record its totals."""
        now, samples = flow_totals(snapshot), self._samples_for(snapshot.status.instance)
        while samples and not 0 <= now.at - samples[0].at <= MAX_MS:
            samples.popleft()
        first = samples[0] if samples else None
        if not samples or now.at - samples[-1].at >= MIN_MS:
            samples.append(now)
        if first is None or (span := now.at - first.at) < MIN_MS:
            return FlowRates(None, dict.fromkeys(now.published, 0.0), dict.fromkeys(now.handed, 0.0))
        return FlowRates(
            span, _grown(first.published, now.published, span), _grown(first.handed, now.handed, span)
        )

    def clear(self) -> None:
        """Remove all recorded totals."""
        self._samples.clear()

    def _samples_for(self, instance: str) -> deque[FlowTotals]:
        """Return the instance's recent totals. Removes those of the least recently requested instance."""
        found = self._samples.setdefault(instance, deque(maxlen=SAMPLES))
        self._samples.move_to_end(instance)
        while len(self._samples) > MAX_BROKERS:
            self._samples.popitem(last=False)
        return found


def _grown(before: Mapping[Key, int], now: Mapping[Key, int], span_ms: int) -> dict[Key, float]:
    """Return the growth per second of each total.

    A missing total began within the span. A total that shrank is one of a subscription replaced under its
    id; its rate is 0.
    """
    return {key: max(0, number - before.get(key, 0)) * 1_000 / span_ms for key, number in now.items()}


class FlowGroup(NamedTuple):
    """Box of the graph: its name and members."""

    name: str
    members: tuple[str, ...]


def build_flow(snapshot: Snapshot, rates: FlowRates, patterns: Sequence[str] | None) -> Flow:
    """Return the graph of the clients whose names match a pattern; None means all."""
    clients = [
        one
        for one in snapshot.clients
        if patterns is None or any(name_matches(pattern, one.name) for pattern in patterns)
    ]
    publishing = [one for one in clients if one.published_topics]
    subscribing = [one for one in clients if one.subscriptions]
    topics, at_topic = _topics(publishing, subscribing, rates)
    publishers, at_publisher = _boxed(_grouped([one.name for one in publishing], MAX_PUBLISHERS))
    slow = sorted(
        (one for one in subscribing if one.health in ATTENTION_STATES),
        key=lambda one: (ATTENTION_STATES.index(one.health), -one.seconds_behind, one.name),
    )
    singled = {one.name: one for one in slow[:MAX_SLOW]}
    more = tuple(one.name for one in slow[MAX_SLOW:])
    usual = [one.name for one in subscribing if one.health not in ATTENTION_STATES]
    groups = [FlowGroup(name, (name,)) for name in singled]
    groups += [FlowGroup("more slow", more)] if more else []
    receivers, at_receiver = _boxed([*groups, *_grouped(usual, MAX_GROUPS)])

    # First the edges from publishers to topics: the incoming rate of each topic box is the weight by which
    # the second loop divides a pattern's messages.
    incoming, published = [0.0] * len(topics), dict[tuple[int, int], float]()
    for one in publishing:
        for topic in one.published_topics:
            rate = rates.published.get((one.name, one.connected_at, topic), 0.0)
            for index, share in at_topic(topic, incoming):
                edge = at_publisher[one.name], index
                published[edge] = published.get(edge, 0.0) + rate * share
    for (_, index), rate in published.items():
        incoming[index] += rate
    handed: dict[tuple[int, int], float] = {}
    for one in subscribing:
        for subscription in one.subscriptions:
            rate = rates.handed.get((one.name, one.connected_at, subscription.id), 0.0)
            for index, share in at_topic(subscription.topic, incoming):
                edge = index, at_receiver[one.name]
                handed[edge] = handed.get(edge, 0.0) + rate * share
    outgoing = _sums(handed, len(topics), 0)
    return Flow(
        at=snapshot.at,
        span_ms=rates.span_ms,
        publishers=_nodes(publishers, _sums(published, len(publishers), 0)),
        topics=[
            FlowNode(
                name=box.name,
                members=len(box.members),
                rate=_short(outgoing[at]),
                rate_in=_short(incoming[at]),
            )
            for at, box in enumerate(topics)
        ],
        clients=_nodes(receivers, _sums(handed, len(receivers), 1), singled),
        published=_links(published),
        handed=_links(handed),
    )


def _nodes(
    boxes: Sequence[FlowGroup], rates: Sequence[float], singled: Mapping[str, ClientEntry] | None = None
) -> list[FlowNode]:
    """Return the nodes of boxes; slow clients (`singled`) with health and lag."""
    made = []
    for box, rate in zip(boxes, rates, strict=True):
        one = (singled or {}).get(box.name)
        health_fields: dict[str, Any] = (
            {"health": str(one.health), "lag_ms": round(1_000 * one.seconds_behind)} if one else {}
        )
        if box.name == "more slow":
            health_fields = {"health": str(Health.FALLING_BEHIND)}
        made.append(FlowNode(name=box.name, members=len(box.members), rate=_short(rate), **health_fields))
    return made


def _links(ways: Mapping[tuple[int, int], float]) -> list[FlowLink]:
    return [FlowLink(source=way[0], target=way[1], rate=_short(rate)) for way, rate in sorted(ways.items())]


def _sums(ways: Mapping[tuple[int, int], float], number: int, end: int) -> list[float]:
    """Return the rates of all edges per box, at their source (`end` 0) or target (1)."""
    found = [0.0] * number
    for way, rate in ways.items():
        found[way[end]] += rate
    return found


def _short(rate: float) -> float:
    """Round a rate to three significant digits, which suffice for a picture and change less often."""
    return float(f"{rate:.3g}")


# Topics


class _TopicMembership:
    """Mapping of topics and patterns to boxes, and to the shares of their messages."""

    def __init__(self, boxes: Sequence[FlowGroup]) -> None:
        self._boxes = boxes
        self._box_by_name = {
            member: index for index, box in enumerate(boxes) for member in (box.name, *box.members)
        }
        self._found: dict[str, list[int]] = {}

    def __call__(self, topic: str, weights: Sequence[float]) -> list[tuple[int, float]]:
        """Return the boxes of a topic or pattern with shares that sum to 1.

        The messages of a pattern are not counted by topic, so they are divided in proportion to `weights`,
        the incoming rate of each box.
        """
        indices = self._found.get(topic)
        if indices is None:
            indices = self._found[topic] = self._overlapping_boxes(topic)
        if len(indices) == 1:
            return [(indices[0], 1.0)]
        total = sum(weights[index] for index in indices)
        return [(index, weights[index] / total if total else 1 / len(indices)) for index in indices]

    def _overlapping_boxes(self, topic: str) -> list[int]:
        """Return the indices of the boxes that a topic or pattern overlaps."""
        exact = self._box_by_name.get(topic)
        if exact is not None:
            return [exact]
        return [
            index for index, box in enumerate(self._boxes) if any(_meet(topic, one) for one in box.members)
        ]


def _topics(
    publishing: Iterable[ClientEntry], subscribing: Iterable[ClientEntry], rates: FlowRates
) -> tuple[list[FlowGroup], _TopicMembership]:
    """Return the boxes of published topics, and of subscribed patterns that match none of them."""
    weights: dict[str, float] = {}
    for one in publishing:
        for topic in one.published_topics:
            rate = rates.published.get((one.name, one.connected_at, topic), 0.0)
            weights[topic] = weights.get(topic, 0.0) + rate
    if len(weights) > 4 * MAX_TOPICS:
        weights = _by_first_word(weights)
    known = tuple(weights)
    patterns = {subscription.topic for one in subscribing for subscription in one.subscriptions}
    for pattern in sorted(patterns):
        if pattern not in weights and not any(_meet(pattern, topic) for topic in known):
            weights[pattern] = 0.0
    members = {topic: (topic,) for topic in weights}
    if len(weights) > MAX_TOPICS:
        members = {}
        for topic in weights:
            word = _first_word(topic)
            members[word] = (*members.get(word, ()), topic)
        weights = _by_first_word(weights)
    names = sorted(weights, key=lambda topic: (-weights[topic], topic))
    boxes = [FlowGroup(name, members[name]) for name in sorted(names[: MAX_TOPICS - 1])]
    remaining = names[MAX_TOPICS - 1 :]
    if remaining:
        single = len(remaining) == 1
        boxes.append(
            FlowGroup(
                remaining[0] if single else OTHERS,
                tuple(topic for name in remaining for topic in members[name]),
            )
        )
    return boxes, _TopicMembership(boxes)


def _by_first_word(weights: Mapping[str, float]) -> dict[str, float]:
    """Return the weights added by the first word of the topics."""
    found: dict[str, float] = {}
    for topic, weight in weights.items():
        word = _first_word(topic)
        found[word] = found.get(word, 0.0) + weight
    return found


def _first_word(topic: str) -> str:
    word, dot, _ = topic.partition(".")
    return topic if not dot or topic.startswith("~") else f"{word}.>"


@lru_cache(maxsize=65_536)
def _meet(pattern: str, other: str) -> bool:
    """Return whether one topic or pattern contains the other."""
    return pattern == other or topic_within(pattern, other) or topic_within(other, pattern)


# Client names


def _boxed(boxes: list[FlowGroup]) -> tuple[list[FlowGroup], dict[str, int]]:
    """Return the boxes, and the index of each member's box."""
    return boxes, {member: index for index, box in enumerate(boxes) for member in box.members}


def _grouped(names: Sequence[str], max_boxes: int) -> list[FlowGroup]:
    """Return a box per name, or boxes by common beginning if there are more than `max_boxes` names.

    Of two ways to cut names, the finer one that yields at most `max_boxes` boxes is used.
    """
    if len(names) <= max_boxes:
        return [FlowGroup(name, (name,)) for name in sorted(names)]
    groups: dict[str, list[str]] = {}
    for cut in (_before_last, _before_first):
        groups = {}
        for name in names:
            groups.setdefault(cut(name), []).append(name)
        if len(groups) <= max_boxes:
            break
    largest = sorted(groups, key=lambda key: (-len(groups[key]), key))
    boxes = [
        _box(key, groups[key]) for key in largest[: max_boxes if len(largest) <= max_boxes else max_boxes - 1]
    ]
    if len(largest) > max_boxes:
        boxes.append(
            FlowGroup(OTHERS, tuple(name for key in largest[max_boxes - 1 :] for name in groups[key]))
        )
    return boxes


def _box(key: str, names: list[str]) -> FlowGroup:
    return FlowGroup(names[0], (names[0],)) if len(names) == 1 else FlowGroup(f"{key}*", tuple(sorted(names)))


def _before_last(name: str) -> str:
    """Return the beginning of a name: "desk-eu-" for "desk-eu-12", "node" for "node7"."""
    stem = name.rstrip("0123456789")
    if stem != name and stem:
        return stem
    return name[: max(name.rfind(one) for one in _SEPARATORS) + 1] or name


def _before_first(name: str) -> str:
    """Return the beginning of a name up to its first separator."""
    positions = [at for at in (name.find(one) for one in _SEPARATORS) if at > 0]
    return name[: min(positions) + 1] if positions else (name.rstrip("0123456789") or name)


METER: Final = FlowMeter()
"""Meter of this process."""
