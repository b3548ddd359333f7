"""Which of several groups has a topic. Pure.

The most specific pattern decides, in whatever order the groups are named: `prices.eu.>` takes precedence over `prices.>`, and that
over `>`. So that there always is one, the patterns of two groups either have no topic in common, or one contains the other;
anything else is refused when the routes are made.

A client of several groups, each with its own topics, log and acknowledgements: publishing scales with their number.

    groups = {
        "prices": Group("prices.>", ["tcp://a:9007", "tcp://b:9007", "tcp://c:9007"]),
        "rest": Group(">", ["tcp://d:9007"]),
    }
    async with AsyncGroups(groups, "desk") as client:
        await client.publish("prices.eurusd", {"bid": 1.0842})   # at a, b or c
        await client.publish("orders.eu", {"id": 1})             # at d
        await client.flush()

A group is whatever carries one instance: members on one log, or a broker by itself. The most specific pattern decides which group
has a topic (`routes`). Each group has a client, with its own connection, sequences and stores; when one is lost the others go on.
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
MAX_REMEMBERED = 65_536
"""Topics whose groups are remembered; when there are more, all are looked up again."""


class TopicRoute(NamedTuple):
    """The topics of a pattern belong to a group, except for those of narrower patterns."""

    pattern: TopicPattern
    group: str


class TopicRouter:
    """`topics` are each group's patterns. OperatorError bad_groups when they aren't clear, ClientError bad_pattern."""

    def __init__(self, topics: Mapping[str, Sequence[str]]) -> None:
        routes = [
            TopicRoute(TopicPattern.parse(text), group)
            for group, texts in topics.items()
            for text in dict.fromkeys(texts)
        ]
        if not all(topics.values()) or not topics or len(routes) > MAX_PATTERNS:
            raise _bad(
                f"Each group needs topics, and all groups together can have at most {MAX_PATTERNS} patterns."
            )
        for route in routes:
            if route.pattern.text.startswith("~"):
                raise _bad(
                    f"{route.pattern.text[:80]!r} is a regular expression, which can't be compared with other patterns."
                )
        for one, other in combinations(routes, 2):
            if one.group != other.group:
                _check_routes(one, other)
        around = {
            route: sum(is_subpattern(route.pattern, other.pattern) for other in routes if other is not route)
            for route in routes
        }
        # What lies within another pattern lies within all that are around that one as well: it has more, and comes before.
        self._routes = sorted(routes, key=lambda route: -around[route])
        self._known: dict[str, str] = {}

    def group_of(self, topic: str) -> str:
        """The group that has a topic. OperatorError no_group_for_topic."""
        known = self._known.get(topic)
        return known if known is not None else self._find(topic)

    def _find(self, topic: str) -> str:
        found = next((route.group for route in self._routes if route.pattern.matches(topic)), None)
        if found is None:
            raise _nobody(topic)
        if len(self._known) >= MAX_REMEMBERED:
            self._known.clear()
        self._known[topic] = found
        return found

    def groups_of(self, text: str) -> list[str]:
        """The groups that may have a topic of this pattern, each once. ClientError bad_pattern, OperatorError no_group_for_topic."""
        asked = TopicPattern.parse(text)
        if asked.exact is not None:
            return [self.group_of(asked.exact)]
        found = []
        for route in self._routes:
            if not are_disjoint(asked, route.pattern):
                found.append(route.group)
            if is_subpattern(asked, route.pattern):
                break  # wider ones name these topics as well, and have none of them
        if not found:
            raise _nobody(text)
        return list(dict.fromkeys(found))


def _check_routes(one: TopicRoute, other: TopicRoute) -> None:
    if one.pattern == other.pattern:
        raise _bad(f"{one.pattern.text!r} is a pattern of both {one.group!r} and {other.group!r}.")
    apart = are_disjoint(one.pattern, other.pattern)
    if not (apart or is_subpattern(one.pattern, other.pattern) or is_subpattern(other.pattern, one.pattern)):
        raise _bad(
            f"{one.pattern.text!r} of {one.group!r} and {other.pattern.text!r} of {other.group!r} overlap, "
            "and neither contains the other."
        )


def _bad(sentence: str) -> OperatorError:
    return OperatorError("bad_groups", sentence, "Give each group its own patterns; one may contain another.")


def _nobody(topic: str) -> OperatorError:
    return OperatorError(
        "no_group_for_topic",
        f"No group has the topic {topic[:80]!r}.",
        'Give a group its pattern, or ">" for all remaining topics. Topics that begin with $ belong to each broker itself.',
    )


_OF_ONE = ("publish_store", "bookmark_store")


class GroupConfig:
    """One of several groups: its topic patterns, its addresses, and options of AsyncClient for it alone, such as its stores."""

    def __init__(self, topics: str | Sequence[str], addresses: str | Sequence[str], **options: Any) -> None:
        self.topics = (topics,) if isinstance(topics, str) else tuple(topics)
        self.addresses = (addresses,) if isinstance(addresses, str) else tuple(addresses)
        self.options = options


class AsyncGroups:
    """One client of several groups, under one name. Use it in one event loop, as `async with`.

    `clients` has each group's AsyncClient, by the group's name, for what concerns one of them: its notices, its own topics
    (`$SLUICE.>`), or a `flush()` that doesn't wait for the others.
    """

    def __init__(self, groups: Mapping[str, GroupConfig], name: str, **options: Any) -> None:
        """`options` are those of AsyncClient, for every group; each store belongs to one Group and is given there.

        OperatorError bad_groups when it isn't clear which group has a topic, or two groups share an address or a store.
        """
        self.name = name
        self._routes = TopicRouter({group: one.topics for group, one in groups.items()})
        _check(groups, options)
        self.clients = {
            group: AsyncClient(one.addresses, name, **{**options, **one.options})
            for group, one in groups.items()
        }

    async def start(self) -> Self:
        """Connect to all groups and log on. Raises the first error, with `group` in its details; then none is connected."""
        try:
            await run_for_each_group(self.clients, lambda _, client: client.start())
            self._check_instances()
        except BaseException:
            await self.close()
            raise
        return self

    def _check_instances(self) -> None:
        known: dict[str, str] = {}
        for group, client in self.clients.items():
            if (other := known.setdefault(client.instance, group)) != group:
                raise OperatorError(
                    "bad_groups",
                    f"The groups {other!r} and {group!r} are the same instance, {client.instance!r}.",
                    "Give their topics to one group, or give each broker an instance name of its own.",
                )

    async def close(self, timeout: float | None = None) -> None:
        """Close all groups within `timeout` seconds; see AsyncClient.close. The first group's error has
        `group` in its details."""
        await run_for_each_group(self.clients, lambda _, client: client.close(timeout), to_the_end=True)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, _: object, error: BaseException | None, trace: object) -> None:
        with closing_notes(error):
            await self.close(0 if is_interruption(error) else None)

    def group_of(self, topic: str) -> str:
        """The name of the group that has a topic. OperatorError no_group_for_topic."""
        return self._routes.group_of(topic)

    def publish(self, topic: str, body: Body) -> Awaitable[None]:
        """Publish one message to the group that has the topic; see AsyncClient.publish. Await what it returns: it waits only while
        too much of that group is unacknowledged. OperatorError no_group_for_topic."""
        return self.clients[self._routes.group_of(topic)].publish(topic, body)

    async def publish_many(self, topic: str, bodies: Sequence[Body]) -> None:
        """Publish messages of one topic as one batch. OperatorError no_group_for_topic."""
        await self.clients[self._routes.group_of(topic)].publish_many(topic, bodies)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything published is acknowledged, in all groups. Raises the first error, with
        `group` in its details, or TimeoutError after `timeout` seconds."""
        await run_for_each_group(self.clients, lambda _, client: client.flush(timeout))

    async def subscribe(
        self,
        topic: str,
        filter: str | None = None,
        bookmark: str | None = None,
        id: str | None = None,
        **options: Unpack[SubscribeOptions],
    ) -> GroupsSubscription:
        """Subscribe to a topic pattern in every group that may have a topic of it; see AsyncClient.subscribe.

        The bookmark is "0", "0|1|", a time, a range of times, "MOST_RECENT" if each group has a bookmark store, or the result of
        `bookmark_after`. Raises the first group's error, with `group` in its details, or no_group_for_topic; then it is subscribed nowhere.
        """
        groups = self._routes.groups_of(topic)
        instances = {client.instance for client in self.clients.values()}
        made: dict[str, Subscription] = {}

        async def begin(group: str, client: AsyncClient) -> None:
            own = group_bookmark(bookmark, client.instance, instances - {client.instance})
            made[group] = await client.subscribe(topic, filter, own, id, **options)

        try:
            await run_for_each_group({group: self.clients[group] for group in groups}, begin)
        except BaseException:
            for subscription in made.values():
                await subscription.close()
            raise
        return GroupsSubscription({group: made[group] for group in groups})


def _check(groups: Mapping[str, GroupConfig], options: Mapping[str, Any]) -> None:
    if shared := [store for store in _OF_ONE if options.get(store) is not None]:
        raise _one_store(shared[0])
    stores: dict[int, str] = {}
    known: dict[str, str] = {}
    for group, one in groups.items():
        for name in _OF_ONE:
            store = one.options.get(name)
            if store is not None and stores.setdefault(id(store), group) != group:
                raise _one_store(name)
        for address in one.addresses:
            if (other := known.setdefault(address, group)) != group:
                raise OperatorError(
                    "bad_groups",
                    f"{address} is an address of both groups {other!r} and {group!r}.",
                    "Give all topics of an instance to one group.",
                )


def _one_store(name: str) -> OperatorError:
    return OperatorError(
        "bad_groups",
        f"A {name} belongs to one group: it has one instance's numbers.",
        f"Give each Group its own {name}.",
    )
