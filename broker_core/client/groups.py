"""A client of several groups, each with its own topics, log and acknowledgements: publishing scales with their number.

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
from typing import Any, Self, Unpack

from broker_core.client.async_client import AsyncClient, Options
from broker_core.client.bodies import Body
from broker_core.client.each_group import each
from broker_core.client.groups_subscription import GroupsSubscription, bookmark_of
from broker_core.client.routes import Routes
from broker_core.client.subscription import Subscription
from broker_core.client.unsent import closing_notes, is_interruption
from broker_core.errors import OperatorError

_OF_ONE = ("publish_store", "bookmark_store")


class Group:
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

    def __init__(self, groups: Mapping[str, Group], name: str, **options: Any) -> None:
        """`options` are those of AsyncClient, for every group; each store belongs to one Group and is given there.

        OperatorError bad_groups when it isn't clear which group has a topic, or two groups share an address or a store.
        """
        self.name = name
        self._routes = Routes({group: one.topics for group, one in groups.items()})
        _check(groups, options)
        self.clients = {
            group: AsyncClient(one.addresses, name, **{**options, **one.options})
            for group, one in groups.items()
        }

    async def start(self) -> Self:
        """Connect to all groups and log on. Raises the first error, with `group` in its details; then none is connected."""
        try:
            await each(self.clients, lambda _, client: client.start())
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
        await each(self.clients, lambda _, client: client.close(timeout), to_the_end=True)

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
        await each(self.clients, lambda _, client: client.flush(timeout))

    async def subscribe(
        self,
        topic: str,
        filter: str | None = None,
        bookmark: str | None = None,
        id: str | None = None,
        **options: Unpack[Options],
    ) -> GroupsSubscription:
        """Subscribe to a topic pattern in every group that may have a topic of it; see AsyncClient.subscribe.

        The bookmark is "0", "0|1|", a time, a range of times, "MOST_RECENT" if each group has a bookmark store, or the result of
        `bookmark_after`. Raises the first group's error, with `group` in its details, or no_group_for_topic; then it is subscribed nowhere.
        """
        groups = self._routes.groups_of(topic)
        instances = {client.instance for client in self.clients.values()}
        made: dict[str, Subscription] = {}

        async def begin(group: str, client: AsyncClient) -> None:
            own = bookmark_of(bookmark, client.instance, instances - {client.instance})
            made[group] = await client.subscribe(topic, filter, own, id, **options)

        try:
            await each({group: self.clients[group] for group in groups}, begin)
        except BaseException:
            for subscription in made.values():
                await subscription.close()
            raise
        return GroupsSubscription({group: made[group] for group in groups})


def _check(groups: Mapping[str, Group], options: Mapping[str, Any]) -> None:
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
