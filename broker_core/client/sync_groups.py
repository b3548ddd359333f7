"""Client of several groups for programs without asyncio: AsyncGroups on an event loop in its own thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self, Unpack

from broker_core.client.async_client import SubscribeOptions
from broker_core.client.groups import AsyncGroups, GroupConfig
from broker_core.client.groups_subscription import run_for_each_group
from broker_core.client.messages import Body
from broker_core.client.sync_client import BLOCKED_LOOP_TIMEOUT_S, LoopThread, SyncClient, SyncSubscription
from broker_core.client.unsent import closing_notes, is_interruption


class SyncGroups:
    """Client of several groups, under one name. Use it from any thread, as a context manager.

    `clients` maps each group's name to its SyncClient.
    """

    def __init__(
        self, groups: Mapping[str, GroupConfig], name: str, *, buffered: bool = False, **options: Any
    ) -> None:
        """Create a client of several groups.

        Args:
            groups: Configuration of each group, by the group's name.
            name: Unique client name.
            buffered: See `SyncClient`.
            options: Options of `AsyncClient` for all groups; see `AsyncGroups`.
        """
        self._groups = AsyncGroups(groups, name, **options)
        self._loop = LoopThread(name)
        self.clients = {
            group: SyncClient.share_loop(self._loop, client, buffered=buffered)
            for group, client in self._groups.clients.items()
        }

    @property
    def name(self) -> str:
        """Unique client name."""
        return self._groups.name

    def start(self) -> Self:
        """Connect to all groups and log on; see `AsyncGroups.start`."""
        self._loop.start(self._groups.start())
        return self

    def close(self, timeout: float | None = None) -> None:
        """Close all groups within `timeout` seconds; see `SyncClient.close`.

        Raises:
            SluiceError: Error of the first failed group, with `group` in its details.
        """
        longest = max(client.close_timeout for client in self._groups.clients.values())
        self._loop.stop(
            run_for_each_group(
                self.clients, lambda _, client: client.close_on_loop(timeout), continue_after_error=True
            ),
            (longest if timeout is None else timeout) + BLOCKED_LOOP_TIMEOUT_S,
        )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        with closing_notes(error):
            self.close(0 if is_interruption(error) else None)

    def find_group(self, topic: str) -> str:
        """Return the name of the group that has a topic.

        Raises:
            OperatorError: `no_group_for_topic`.
        """
        return self._groups.find_group(topic)

    def publish(self, topic: str, body: Body, timeout: float | None = None) -> None:
        """Publish one message to the group that has the topic; see `SyncClient.publish`.

        Raises:
            OperatorError: `no_group_for_topic`.
        """
        self.clients[self.find_group(topic)].publish(topic, body, timeout)

    def publish_many(self, topic: str, bodies: Sequence[Body], timeout: float | None = None) -> None:
        """Publish messages of one topic as one batch; see `SyncClient.publish_many`.

        Raises:
            OperatorError: `no_group_for_topic`.
        """
        self.clients[self.find_group(topic)].publish_many(topic, bodies, timeout)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all groups have acknowledged all published messages.

        Raises:
            SluiceError: First error, with `group` in its details.
            TimeoutError: After `timeout` seconds.
        """
        self._loop.call(run_for_each_group(self.clients, lambda _, client: client.wait_flushed()), timeout)

    def subscribe(
        self,
        topic: str,
        filter: str | None = None,
        bookmark: str | None = None,
        id: str | None = None,
        **options: Unpack[SubscribeOptions],
    ) -> SyncSubscription:
        """Subscribe in every group that may have a topic of the pattern; see `AsyncGroups.subscribe`."""
        subscription = self._loop.call(self._groups.subscribe(topic, filter, bookmark, id, **options))
        return SyncSubscription(self._loop, subscription)
