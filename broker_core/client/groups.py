"""Client of several groups of brokers, and the routing of topics to groups.

Each group has its own topics, log and acknowledgements, so publishing scales with the number of groups.

    groups = {
        "prices": GroupConfig("prices.>", ["tcp://a:9007", "tcp://b:9007", "tcp://c:9007"]),
        "rest": GroupConfig(">", ["tcp://d:9007"]),
    }
    async with AsyncGroups(groups, "desk") as client:
        await client.publish("prices.eurusd", {"bid": 1.0842})   # to a, b or c
        await client.publish("orders.eu", {"id": 1})             # to d
        await client.flush()

A group is the set of brokers that carries one instance: members on one log, or a standalone broker. The most
specific pattern decides which group has a topic, regardless of the order of the groups: `prices.eu.>` before
`prices.>`, and that before `>`. So patterns of two groups must be disjoint, or one must contain the other;
`TopicRouter` rejects others. Each group has its own client with its own connection, sequences and stores.
When one connection is lost, the other groups continue.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple, Self, Unpack

from broker_core.client.async_client import AsyncClient, SubscribeOptions
from broker_core.client.groups_subscription import GroupsSubscription, group_bookmark, run_for_each_group
from broker_core.client.messages import Body
from broker_core.client.subscription import Subscription
from broker_core.client.unsent import closing_notes, is_interruption
from broker_core.errors import OperatorError
from broker_core.subscriptions.topics import TopicPattern, are_disjoint, is_subpattern

MAX_PATTERNS = 1_000
"""Maximum number of patterns of all groups together."""
MAX_CACHED_TOPICS = 65_536
"""Maximum number of topics in the routing cache. The cache is cleared when it is full."""


class TopicRoute(NamedTuple):
    """Assignment of the topics of a pattern to a group, except for topics of narrower patterns."""

    pattern: TopicPattern
    group: str


class TopicRouter:
    """Router that finds the group of a topic or pattern."""

    def __init__(self, topics: Mapping[str, Sequence[str]]) -> None:
        """Build the routes from the patterns of each group.

        Raises:
            OperatorError: `bad_groups`, if patterns overlap, are equal, or are regular expressions.
            ClientError: `bad_pattern`.
        """
        routes = [
            TopicRoute(TopicPattern.parse(text), group)
            for group, texts in topics.items()
            for text in dict.fromkeys(texts)
        ]
        if not all(topics.values()) or not topics or len(routes) > MAX_PATTERNS:
            raise _bad_groups_error(
                f"Each group needs topics, and all groups together can have at most {MAX_PATTERNS} patterns."
            )
        for route in routes:
            if route.pattern.text.startswith("~"):
                raise _bad_groups_error(
                    f"{route.pattern.text[:80]!r} is a regular expression, which can't be compared with "
                    "other patterns."
                )
        for one, other in combinations(routes, 2):
            if one.group != other.group:
                _check_routes(one, other)
        wider_patterns = {
            route: sum(is_subpattern(route.pattern, other.pattern) for other in routes if other is not route)
            for route in routes
        }
        # A pattern that lies within more other patterns is narrower, so it is tried first.
        self._routes = sorted(routes, key=lambda route: -wider_patterns[route])
        self._group_by_topic: dict[str, str] = {}

    def find_group(self, topic: str) -> str:
        """Return the name of the group that has a topic.

        Raises:
            OperatorError: `no_group_for_topic`.
        """
        known = self._group_by_topic.get(topic)
        return known if known is not None else self._find(topic)

    def _find(self, topic: str) -> str:
        found = next((route.group for route in self._routes if route.pattern.matches(topic)), None)
        if found is None:
            raise _no_group_error(topic)
        if len(self._group_by_topic) >= MAX_CACHED_TOPICS:
            self._group_by_topic.clear()
        self._group_by_topic[topic] = found
        return found

    def find_groups(self, text: str) -> list[str]:
        """Return the groups that may have a topic of this pattern, without duplicates.

        Raises:
            ClientError: `bad_pattern`.
            OperatorError: `no_group_for_topic`.
        """
        requested = TopicPattern.parse(text)
        if requested.exact is not None:
            return [self.find_group(requested.exact)]
        found = []
        for route in self._routes:
            if not are_disjoint(requested, route.pattern):
                found.append(route.group)
            if is_subpattern(requested, route.pattern):
                break  # wider patterns contain these topics too, but the narrower route takes them
        if not found:
            raise _no_group_error(text)
        return list(dict.fromkeys(found))


def _check_routes(one: TopicRoute, other: TopicRoute) -> None:
    """Raise OperatorError `bad_groups` if patterns of two groups are equal, or overlap in part."""
    if one.pattern == other.pattern:
        raise _bad_groups_error(
            f"{one.pattern.text!r} is a pattern of both {one.group!r} and {other.group!r}."
        )
    apart = are_disjoint(one.pattern, other.pattern)
    if not (apart or is_subpattern(one.pattern, other.pattern) or is_subpattern(other.pattern, one.pattern)):
        raise _bad_groups_error(
            f"{one.pattern.text!r} of {one.group!r} and {other.pattern.text!r} of {other.group!r} overlap, "
            "and neither contains the other."
        )


def _bad_groups_error(sentence: str) -> OperatorError:
    return OperatorError("bad_groups", sentence, "Give each group its own patterns; one may contain another.")


def _no_group_error(topic: str) -> OperatorError:
    return OperatorError(
        "no_group_for_topic",
        f"No group has the topic {topic[:80]!r}.",
        'Give a group its pattern, or ">" for all remaining topics. Topics that begin with $ belong to '
        "each broker itself.",
    )


_UNSHARED_OPTIONS = ("publish_store", "bookmark_store")
"""Options of AsyncClient that groups must not share."""


class GroupConfig:
    """Configuration of one group: topics, addresses and options of its client."""

    def __init__(self, topics: str | Sequence[str], addresses: str | Sequence[str], **options: Any) -> None:
        """Create the configuration of one group.

        Args:
            topics: Topic patterns of the group.
            addresses: Addresses of its members.
            options: Options of AsyncClient for this group only, such as its stores.
        """
        self.topics = (topics,) if isinstance(topics, str) else tuple(topics)
        self.addresses = (addresses,) if isinstance(addresses, str) else tuple(addresses)
        self.options = options


class AsyncGroups:
    """Client of several groups, under one name. Use it in one event loop, as `async with`.

    `clients` maps each group's name to its AsyncClient. Use it for operations on one group: its notices, its
    system topics (`$SLUICE.>`), or a `flush()` that does not wait for the other groups.
    """

    def __init__(self, groups: Mapping[str, GroupConfig], name: str, **options: Any) -> None:
        """Create a client of several groups.

        Args:
            groups: Configuration of each group, by the group's name.
            name: Unique client name.
            options: Options of AsyncClient for all groups. Stores must be set in the `GroupConfig` of their
                group.

        Raises:
            OperatorError: `bad_groups`, if the group of a topic is ambiguous, or two groups share an address
                or a store.
        """
        self.name = name
        self._routes = TopicRouter({group: one.topics for group, one in groups.items()})
        _check_unshared(groups, options)
        self.clients = {
            group: AsyncClient(one.addresses, name, **{**options, **one.options})
            for group, one in groups.items()
        }

    async def start(self) -> Self:
        """Connect to all groups and log on. If one group fails, all are disconnected.

        Raises:
            SluiceError: First error, with `group` in its details.
        """
        try:
            await run_for_each_group(self.clients, lambda _, client: client.start())
            self._check_instances()
        except BaseException:
            await self.close()
            raise
        return self

    def _check_instances(self) -> None:
        """Raise OperatorError `bad_groups` if two groups lead to the same instance."""
        known: dict[str, str] = {}
        for group, client in self.clients.items():
            if (other := known.setdefault(client.instance, group)) != group:
                raise OperatorError(
                    "bad_groups",
                    f"The groups {other!r} and {group!r} are the same instance, {client.instance!r}.",
                    "Assign their topics to one group, or give each broker its own instance name.",
                )

    async def close(self, timeout: float | None = None) -> None:
        """Close all groups within `timeout` seconds; see `AsyncClient.close`.

        Raises:
            SluiceError: Error of the first failed group, with `group` in its details.
        """
        await run_for_each_group(
            self.clients, lambda _, client: client.close(timeout), continue_after_error=True
        )

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, _: object, error: BaseException | None, trace: object) -> None:
        with closing_notes(error):
            await self.close(0 if is_interruption(error) else None)

    def find_group(self, topic: str) -> str:
        """Return the name of the group that has a topic.

        Raises:
            OperatorError: `no_group_for_topic`.
        """
        return self._routes.find_group(topic)

    def publish(self, topic: str, body: Body) -> Awaitable[None]:
        """Publish one message to the group that has the topic; see `AsyncClient.publish`.

        Await the returned object: it waits only while too many bytes of that group are unacknowledged.

        Raises:
            OperatorError: `no_group_for_topic`.
        """
        return self.clients[self._routes.find_group(topic)].publish(topic, body)

    async def publish_many(self, topic: str, bodies: Sequence[Body]) -> None:
        """Publish messages of one topic as one batch; see `AsyncClient.publish_many`.

        Raises:
            OperatorError: `no_group_for_topic`.
        """
        await self.clients[self._routes.find_group(topic)].publish_many(topic, bodies)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until all groups have acknowledged all published messages.

        Raises:
            SluiceError: First error, with `group` in its details.
            TimeoutError: After `timeout` seconds.
        """
        await run_for_each_group(self.clients, lambda _, client: client.flush(timeout))

    async def subscribe(
        self,
        topic: str,
        filter: str | None = None,
        bookmark: str | None = None,
        id: str | None = None,
        **options: Unpack[SubscribeOptions],
    ) -> GroupsSubscription:
        """Subscribe to a topic pattern in every group that may have a topic of it.

        If one group fails, the subscription is ended in all groups.

        Args:
            topic: Topic or pattern.
            filter: Expression that a message must satisfy.
            bookmark: "0", "0|1|", a time, a range of times, "MOST_RECENT" if each group has a bookmark store,
                or the result of `bookmark_after`.
            id: Name of the subscription in the bookmark stores.
            options: Delivery options; see `AsyncClient.subscribe`.

        Raises:
            SluiceError: Error of the first failed group, with `group` in its details.
            OperatorError: `no_group_for_topic`.
        """
        groups = self._routes.find_groups(topic)
        instances = {client.instance for client in self.clients.values()}
        subscriptions: dict[str, Subscription] = {}

        async def subscribe_group(group: str, client: AsyncClient) -> None:
            group_start = group_bookmark(bookmark, client.instance, instances - {client.instance})
            subscriptions[group] = await client.subscribe(topic, filter, group_start, id, **options)

        try:
            await run_for_each_group({group: self.clients[group] for group in groups}, subscribe_group)
        except BaseException:
            for subscription in subscriptions.values():
                await subscription.close()
            raise
        return GroupsSubscription({group: subscriptions[group] for group in groups})


def _check_unshared(groups: Mapping[str, GroupConfig], options: Mapping[str, Any]) -> None:
    """Raise OperatorError `bad_groups` if two groups share a store or an address."""
    if shared := [store for store in _UNSHARED_OPTIONS if options.get(store) is not None]:
        raise _shared_store_error(shared[0])
    stores: dict[int, str] = {}
    known: dict[str, str] = {}
    for group, one in groups.items():
        for name in _UNSHARED_OPTIONS:
            store = one.options.get(name)
            if store is not None and stores.setdefault(id(store), group) != group:
                raise _shared_store_error(name)
        for address in one.addresses:
            if (other := known.setdefault(address, group)) != group:
                raise OperatorError(
                    "bad_groups",
                    f"{address} is an address of both groups {other!r} and {group!r}.",
                    "Give all topics of an instance to one group.",
                )


def _shared_store_error(name: str) -> OperatorError:
    return OperatorError(
        "bad_groups",
        f"A {name} belongs to one group: it has one instance's numbers.",
        f"Give each GroupConfig its own {name}.",
    )
