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

Part = TypeVar("Part")


async def run_for_each_group(
    parts: Mapping[str, Part],
    work: Callable[[str, Part], Coroutine[Any, Any, object]],
    *,
    to_the_end: bool = False,
) -> None:
    """Run a coroutine for each group concurrently and wait for all of them.

    Args:
        parts: At least one group's object, by group name.
        work: Called with the name and the object of each group.
        to_the_end: Whether the other groups continue after an error. Default: an error cancels them.

    Raises:
        BaseException: First error in the order of the groups. A SluiceError has `group` in its details.
    """
    doing = {asyncio.ensure_future(work(group, part)): group for group, part in parts.items()}
    try:
        await asyncio.wait(
            doing, return_when=asyncio.ALL_COMPLETED if to_the_end else asyncio.FIRST_EXCEPTION
        )
    finally:
        for task in doing:
            task.cancel()
        await asyncio.wait(doing)
    for task, group in doing.items():
        error = None if task.cancelled() else task.exception()
        if isinstance(error, SluiceError):
            error.details["group"] = group
        if error is not None:
            raise error


class AllReplaysCompleted:
    """Event that is set when the replay of every group has caught up. Same interface as `asyncio.Event`."""

    def __init__(self, parts: Sequence[Subscription]) -> None:
        self._parts = parts

    def is_set(self) -> bool:
        """Return whether the replays of all groups have caught up."""
        return all(part.completed.is_set() for part in self._parts)

    async def wait(self) -> bool:
        """Wait until the replays of all groups have caught up."""
        for part in self._parts:
            await part.completed.wait()
        return True


class GroupsSubscription(SubscriptionReader):
    """Subscription that `AsyncGroups.subscribe()` returns. Same interface as `Subscription`.

    `by_group` maps group names to the subscriptions of the groups.
    """

    def __init__(self, by_group: Mapping[str, Subscription]) -> None:
        super().__init__()
        self.by_group = dict(by_group)
        self.parts: Sequence[Subscription] = tuple(by_group.values())
        self.id = self.parts[0].id
        self.timestamp = self.parts[0].timestamp
        self.completed = AllReplaysCompleted(self.parts)
        self._turn = 0
        self._of: dict[str, Subscription] = {}
        """Subscription that delivered records of an instance, by instance name."""
        self._newest: Subscription | None = None
        """Subscription whose batch the application received last."""

    @property
    def gaps(self) -> list[GapNotice]:
        """Intervals that the logs of the groups no longer had."""
        return [gap for part in self.parts for gap in part.gaps]

    # Reading: implementation of SubscriptionReader.

    def poll(self, until_completed: bool = False) -> ReceivedBatch | None:
        for _ in self.parts:
            part = self.parts[self._turn]
            self._turn = (self._turn + 1) % len(self.parts)
            arrived = part.poll(until_completed)
            if arrived is not None:
                self._of[arrived.instance] = part
                return arrived
        return None

    def is_finished(self, until_completed: bool = False) -> bool:
        # Ask every subscription, so that the error of a failed one is raised although others can continue.
        ended = [part.is_finished(until_completed) for part in self.parts]
        return all(ended)

    def add_waiter(self, waiter: asyncio.Future[None]) -> None:
        for part in self.parts:
            part.add_waiter(waiter)

    def remove_waiter(self, waiter: asyncio.Future[None]) -> None:
        for part in self.parts:
            part.remove_waiter(waiter)

    def on_next_requested(self) -> None:
        if self._newest is not None:
            self._newest.on_next_requested()

    def on_delivered(self, arrived: ReceivedBatch) -> None:
        self._newest = self._of[arrived.instance]
        self._newest.on_delivered(arrived)

    def replay_batches_remaining(self) -> float:
        return sum(max(part.replay_batches_remaining(), 0) for part in self.parts)

    # Called by the application.

    def _part_of(self, item: Message | Batch) -> Subscription | None:
        """Return the subscription that delivered a message or batch."""
        if isinstance(item, Message):
            return self._of.get(item.instance)
        return next((part for part in self.parts if part.has_received(item)), None)

    def done(self, item: Message | Batch) -> None:
        """Mark a message or a whole batch as processed; see `Subscription.done`."""
        if (part := self._part_of(item)) is not None:
            part.done(item)

    def bookmark_after(self, item: Message | Batch) -> str | None:
        """Return the bookmark that resumes after an item and everything read before it, in every group.

        A group from which nothing was read yet resumes where it began: at the start, or now. A group that
        began at a time is missing from the bookmark until something was read from it, and then begins at its
        start. See `Subscription.bookmark_after`.
        """
        part = self._part_of(item)
        own = part.bookmark_after(item) if part is not None else None
        if own is None:
            return None
        others = [format_positions(other.processed_positions) for other in self.parts if other is not part]
        return ",".join([own, *filter(None, others)])

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
        part = self._newest if item is None else self._part_of(item)
        return (part or self.parts[0]).prepare_ack(item)

    async def pause(self) -> None:
        """Pause delivery of all groups until `resume()`. Messages in flight still arrive."""
        await run_for_each_group(self.by_group, lambda _, part: part.pause(), to_the_end=True)

    async def resume(self) -> None:
        """Resume delivery of all groups."""
        await run_for_each_group(self.by_group, lambda _, part: part.resume(), to_the_end=True)

    async def set_rate(self, rate: str | None, max_gap: str | None = None) -> None:
        """Change the rate limit of each group; None removes it. See `Subscription.set_rate`.

        Raises:
            ClientError: `bad_rate`.
        """
        await run_for_each_group(self.by_group, lambda _, part: part.set_rate(rate, max_gap), to_the_end=True)

    async def close(self, *, delete: bool = False) -> None:
        """Unsubscribe in all groups. Iterations end after the messages that were already received.

        `delete` also deletes durable subscriptions at the brokers.
        """
        for part in self.parts:
            await part.close(delete=delete)


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
            mine = [one for one in bookmarks if one.origin not in others]
            return ",".join(map(str, mine)) if any(one.origin == instance for one in mine) else "0"
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
