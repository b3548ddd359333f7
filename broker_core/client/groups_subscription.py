"""The same work for each of several groups, at once.

A subscription of several groups: one stream of what each of them delivers.

Within a group the order is the log's. Between groups there is none: they are read in turn. What is said of a message or a batch
(`done`, `ack`) goes to the group that it came from. Each group resumes independently.
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
    """Do the work for every group's part, of which there is at least one. The first error in the order of the groups is raised, with
    `group` in its details. An error cancels the work for the others, unless it is to be done `to_the_end`."""
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
    """Whether the replay of every group has caught up."""

    def __init__(self, parts: Sequence[Subscription]) -> None:
        self._parts = parts

    def is_set(self) -> bool:
        """Whether all have."""
        return all(part.completed.is_set() for part in self._parts)

    async def wait(self) -> bool:
        """Wait until all have."""
        for part in self._parts:
            await part.completed.wait()
        return True


class GroupsSubscription(SubscriptionReader):
    """What `AsyncGroups.subscribe()` returns: as `Subscription`, of the groups that `by_group` names."""

    def __init__(self, by_group: Mapping[str, Subscription]) -> None:
        super().__init__()
        self.by_group = dict(by_group)
        self.parts: Sequence[Subscription] = tuple(by_group.values())
        self.id = self.parts[0].id
        self.timestamp = self.parts[0].timestamp
        self.completed = AllReplaysCompleted(self.parts)
        self._turn = 0
        self._of: dict[str, Subscription] = {}
        """Who brought records of an instance."""
        self._newest: Subscription | None = None
        """Whose batch the application has."""

    @property
    def gaps(self) -> list[GapNotice]:
        """Intervals that the logs no longer held."""
        return [gap for part in self.parts for gap in part.gaps]

    # Reading.

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
        # Each is asked: one that can't go on is told of although others can.
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

    # What an application says.

    def _part_of(self, item: Message | Batch) -> Subscription | None:
        if isinstance(item, Message):
            return self._of.get(item.instance)
        return next((part for part in self.parts if part.has_received(item)), None)

    def done(self, item: Message | Batch) -> None:
        """The application is done with a message or a whole batch; see Subscription.done."""
        if (part := self._part_of(item)) is not None:
            part.done(item)

    def bookmark_after(self, item: Message | Batch) -> str | None:
        """The bookmark that resumes after an item and everything read before it, in every group; see Subscription.bookmark_after.

        A group from which nothing was read yet resumes where it began: at the start, or now. One that began at a time isn't named
        before something was read from it, and so begins at its start.
        """
        part = self._part_of(item)
        own = part.bookmark_after(item) if part is not None else None
        if own is None:
            return None
        others = [format_positions(other.processed_positions) for other in self.parts if other is not part]
        return ",".join([own, *filter(None, others)])

    def ack(self, item: Message | None = None) -> None:
        """Acknowledge a message, or without one the batch that was read last; see Subscription.ack. With `ack="client"` that includes
        everything before it in the same group."""
        self.prepare_ack(item)()

    def prepare_ack(self, item: Message | None) -> Callable[[], None]:
        """What an `ack` of it does, said now and to be done on the loop. OperatorError no_acks."""
        part = self._newest if item is None else self._part_of(item)
        return (part or self.parts[0]).prepare_ack(item)

    async def pause(self) -> None:
        """Deliver nothing until `resume()`. What is on its way still comes."""
        await run_for_each_group(self.by_group, lambda _, part: part.pause(), to_the_end=True)

    async def resume(self) -> None:
        """Go on where it was paused."""
        await run_for_each_group(self.by_group, lambda _, part: part.resume(), to_the_end=True)

    async def set_rate(self, rate: str | None, max_gap: str | None = None) -> None:
        """Another rate of each group, or none, from now on. ClientError bad_rate."""
        await run_for_each_group(self.by_group, lambda _, part: part.set_rate(rate, max_gap), to_the_end=True)

    async def close(self, *, delete: bool = False) -> None:
        """Unsubscribe everywhere. Iterations end after what waits. `delete`: durable ones aren't kept either."""
        for part in self.parts:
            await part.close(delete=delete)


def group_bookmark(bookmark: str | None, instance: str, others: Collection[str]) -> str | None:
    """The part of a bookmark that is for the group of an instance, where `others` are those of the other groups.

    Of a list what speaks of the instance, and of sites that links brought records from; the start when it says nothing of the
    instance. A range of bookmarks can't be parted: OperatorError bad_groups. ClientError bad_bookmark.
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
                f"{bookmark[:80]!r} is a range of one instance's records, but the subscription covers several.",
                "Use a range of times, or subscribe through one group's client.",
            )
        case _:
            return bookmark
