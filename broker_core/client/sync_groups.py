"""Several groups for programs without asyncio: AsyncGroups on a loop in a thread of its own, with a SyncClient for each group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self, Unpack

from broker_core.client.async_client import Options
from broker_core.client.bodies import Body
from broker_core.client.each_group import each
from broker_core.client.groups import AsyncGroups, Group
from broker_core.client.loop_thread import LoopThread
from broker_core.client.sync_client import SyncClient, SyncSubscription


class SyncGroups:
    """One client of several groups, from any thread. The arguments are those of AsyncGroups; `clients` has each group's SyncClient."""

    def __init__(self, groups: Mapping[str, Group], name: str, **options: Any) -> None:
        self._groups = AsyncGroups(groups, name, **options)
        self._loop = LoopThread(name)
        self.clients = {
            group: SyncClient.beside(self._loop, client) for group, client in self._groups.clients.items()
        }

    @property
    def name(self) -> str:
        return self._groups.name

    def start(self) -> Self:
        """Connect to all groups and log on; see AsyncGroups.start."""
        self._loop.start(self._groups.start())
        return self

    def close(self) -> None:
        """Send what stands in line and disconnect everywhere. Call `flush()` first to be sure that it has arrived."""
        self._loop.stop(each(self.clients, lambda _, client: client.wind_up(), to_the_end=True))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    def group_of(self, topic: str) -> str:
        """The name of the group that has a topic. OperatorError no_group_for_topic."""
        return self._groups.group_of(topic)

    def publish(self, topic: str, body: Body) -> None:
        """Publish one message to the group that has the topic. It waits only while too much stands in that group's line. OperatorError
        no_group_for_topic."""
        self.clients[self.group_of(topic)].publish(topic, body)

    def publish_many(self, topic: str, bodies: Sequence[Body]) -> None:
        """Publish messages of one topic as one batch. OperatorError no_group_for_topic."""
        self.clients[self.group_of(topic)].publish_many(topic, bodies)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything published is acknowledged, in all groups. Raises the first error, or TimeoutError after `timeout` seconds."""
        self._loop.ask(each(self.clients, lambda _, client: client.flushed()), timeout)

    def subscribe(
        self,
        topic: str,
        filter: str | None = None,
        bookmark: str | None = None,
        id: str | None = None,
        **options: Unpack[Options],
    ) -> SyncSubscription:
        """Subscribe in every group that may have a topic of the pattern; see AsyncGroups.subscribe."""
        subscription = self._loop.ask(self._groups.subscribe(topic, filter, bookmark, id, **options))
        return SyncSubscription(self._loop, subscription)
