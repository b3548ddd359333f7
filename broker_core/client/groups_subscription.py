"""Subscription over several groups: one stream of the messages that all groups deliver.

Within a group, messages arrive in log order. Between groups there is no order: they are read in turn. `done`
and `ack` apply to the group that delivered the message or batch. Each group resumes independently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from broker_core.batch import Batch
from broker_core.bookmark import AfterBookmarks, BookmarkRange, parse_bookmark
from broker_core.client.bookmark_store import MOST_RECENT, format_positions
from broker_core.client.messages import Message, ReceivedBatch
from broker_core.client.reader import SubscriptionReader
from broker_core.client.subscription import Subscription
from broker_core.errors import OperatorError, SluiceError
from broker_core.protocols.replies import GapNotice

GroupMember = TypeVar("GroupMember")


async def run_for_each_group(
    objects: Mapping[str, GroupMember],
    work: Callable[[str, GroupMember], Coroutine[Any, Any, object]],
    *,
    continue_after_error: bool = False,
) -> None:
    """Run a coroutine for each group concurrently and wait for all of them.

    Args:
        objects: At least one group's object, by group name.
        work: Called with the name and the object of each group.
        continue_after_error: Whether the other groups continue after an error. Default: an error cancels
            them.

    Raises:
        BaseException: First error in the order of the groups. A SluiceError has `group` in its details.
    """
    tasks = {asyncio.ensure_future(work(group, member)): group for group, member in objects.items()}
    try:
        await asyncio.wait(
            tasks, return_when=asyncio.ALL_COMPLETED if continue_after_error else asyncio.FIRST_EXCEPTION
        )
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task, group in tasks.items():
        error = None if task.cancelled() else task.exception()
        if isinstance(error, SluiceError):
            error.details["group"] = group
        if error is not None:
            raise error


class AllReplaysCompleted:
    """Event that is set when the replay of every group has caught up. Same interface as `asyncio.Event`."""

    def __init__(self, subscriptions: Sequence[Subscription]) -> None:
        self._subscriptions = subscriptions

    def is_set(self) -> bool:
        """Return whether the replays of all groups have caught up."""
        return all(subscription.completed.is_set() for subscription in self._subscriptions)

    async def wait(self) -> bool:
        """Wait until the replays of all groups have caught up."""
        for subscription in self._subscriptions:
            await subscription.completed.wait()
        return True


class GroupsSubscription(SubscriptionReader):
    """Subscription that `AsyncGroups.subscribe()` returns. Same interface as `Subscription`.

    `by_group` maps group names to the subscriptions of the groups.
    """

    def __init__(self, by_group: Mapping[str, Subscription]) -> None:
        super().__init__()
        self.by_group = dict(by_group)
        self.subscriptions: Sequence[Subscription] = tuple(by_group.values())
        self.id = self.subscriptions[0].id
        self.timestamp = self.subscriptions[0].timestamp
        self.completed = AllReplaysCompleted(self.subscriptions)
        self._next_index = 0
        self._by_instance: dict[str, Subscription] = {}
        """Subscription that delivered records of an instance, by instance name."""
        self._newest: Subscription | None = None
        """Subscription whose batch the application received last."""

    @property
    def gaps(self) -> list[GapNotice]:
        """Intervals that the logs of the groups no longer had."""
        return [gap for subscription in self.subscriptions for gap in subscription.gaps]

    # Reading: implementation of SubscriptionReader.

    def poll(self, until_completed: bool = False) -> ReceivedBatch | None:
        for _ in self.subscriptions:
            subscription = self.subscriptions[self._next_index]
            self._next_index = (self._next_index + 1) % len(self.subscriptions)
            arrived = subscription.poll(until_completed)
            if arrived is not None:
                self._by_instance[arrived.instance] = subscription
                return arrived
        return None

    def is_finished(self, until_completed: bool = False) -> bool:
        # Ask every subscription, so that the error of a failed one is raised although others can continue.
        finished = [subscription.is_finished(until_completed) for subscription in self.subscriptions]
        return all(finished)

    def add_waiter(self, waiter: asyncio.Future[None]) -> None:
        for subscription in self.subscriptions:
            subscription.add_waiter(waiter)

    def remove_waiter(self, waiter: asyncio.Future[None]) -> None:
        for subscription in self.subscriptions:
            subscription.remove_waiter(waiter)

    def on_next_requested(self) -> None:
        if self._newest is not None:
            self._newest.on_next_requested()

    def on_delivered(self, arrived: ReceivedBatch) -> None:
        self._newest = self._by_instance[arrived.instance]
        self._newest.on_delivered(arrived)

    def replay_batches_remaining(self) -> float:
        return sum(max(subscription.replay_batches_remaining(), 0) for subscription in self.subscriptions)

    # Called by the application.

    def _find_subscription(self, item: Message | Batch) -> Subscription | None:
        """Return the subscription that delivered a message or batch."""
        if isinstance(item, Message):
            return self._by_instance.get(item.instance)
        return next(
            (subscription for subscription in self.subscriptions if subscription.has_received(item)), None
        )

    def done(self, item: Message | Batch) -> None:
        """Mark a message or a whole batch as processed; see `Subscription.done`."""
        if (subscription := self._find_subscription(item)) is not None:
            subscription.done(item)

    def bookmark_after(self, item: Message | Batch) -> str | None:
        """Return the bookmark that resumes after an item and everything read before it, in every group.

        A group from which nothing was read yet resumes where it began: at the start, or now. A group that
        began at a time is missing from the bookmark until something was read from it, and then begins at its
        start. See `Subscription.bookmark_after`.
        """
        subscription = self._find_subscription(item)
        bookmark = subscription.bookmark_after(item) if subscription is not None else None
        if bookmark is None:
            return None
        others = [
            format_positions(sibling.processed_positions)
            for sibling in self.subscriptions
            if sibling is not subscription
        ]
        return ",".join([bookmark, *filter(None, others)])

    def ack(self, item: Message | None = None) -> None:
        """Acknowledge a message, or the last read batch if `item` is None; see `Subscription.ack`.

        With `ack="client"` that includes everything before it in the same group.
        """
        self.prepare_ack(item)()

    def prepare_ack(self, item: Message | None) -> Callable[[], None]:
        """Return a function that acknowledges `item`. Call it in the event loop.

        Raises:
            OperatorError: `no_acks`.
        """
        subscription = self._newest if item is None else self._find_subscription(item)
        return (subscription or self.subscriptions[0]).prepare_ack(item)

    async def pause(self) -> None:
        """Pause delivery of all groups until `resume()`. Messages in flight still arrive."""
        await run_for_each_group(
            self.by_group, lambda _, subscription: subscription.pause(), continue_after_error=True
        )

    async def resume(self) -> None:
        """Resume delivery of all groups."""
        await run_for_each_group(
            self.by_group, lambda _, subscription: subscription.resume(), continue_after_error=True
        )

    async def set_rate(self, rate: str | None, max_gap: str | None = None) -> None:
        """Change the rate limit of each group; None removes it. See `Subscription.set_rate`.

        Raises:
            ClientError: `bad_rate`.
        """
        await run_for_each_group(
            self.by_group,
            lambda _, subscription: subscription.set_rate(rate, max_gap),
            continue_after_error=True,
        )

    async def close(self, *, delete: bool = False) -> None:
        """Unsubscribe in all groups. Iterations end after the messages that were already received.

        `delete` also deletes durable subscriptions at the brokers.
        """
        for subscription in self.subscriptions:
            await subscription.close(delete=delete)


def group_bookmark(bookmark: str | None, instance: str, others: Collection[str]) -> str | None:
    """Return the part of a bookmark that concerns one group.

    Of a list of bookmarks, those of the instance and of sites that links forwarded records from are selected.
    The result is the start if the list has no bookmark of the instance.

    Args:
        bookmark: Bookmark of the subscription over several groups.
        instance: Instance of the group.
        others: Instances of the other groups.

    Raises:
        OperatorError: `bad_groups` for a range of bookmarks, which cannot be divided.
        ClientError: `bad_bookmark`.
    """
    if bookmark is None or bookmark == MOST_RECENT:
        return bookmark
    match parse_bookmark(bookmark):
        case AfterBookmarks(bookmarks):
            selected = [one for one in bookmarks if one.origin not in others]
            return ",".join(map(str, selected)) if any(one.origin == instance for one in selected) else "0"
        case BookmarkRange(begin, _, end, _) if others and (
            isinstance(begin, AfterBookmarks) or isinstance(end, AfterBookmarks)
        ):
            raise OperatorError(
                "bad_groups",
                f"{bookmark[:80]!r} is a range of one instance's records, but the subscription covers "
                "several.",
                "Use a range of times, or subscribe through one group's client.",
            )
        case _:
            return bookmark
