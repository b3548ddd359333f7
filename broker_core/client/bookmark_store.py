"""Where a subscriber keeps how far it is done, so that `MOST_RECENT` resumes there.

`FileBookmarkStore` is in `bookmark_file`; an application that writes its results to a database keeps the bookmark
there instead, in the same transaction (`Subscription.bookmark_after`).
"""

from __future__ import annotations

from typing import Protocol

from broker_core.bookmark import EPOCH_TEXT, Bookmark
from broker_core.client.done_ranges import DoneRanges
from broker_core.errors import OperatorError

MOST_RECENT = "MOST_RECENT"
"""The bookmark that the store knows; the broker never sees this word."""
MAX_POSITIONS = 10_000
"""Subscriptions, times the instances each had records from, that one store keeps."""


class BookmarkStore(Protocol):
    """What a client needs of a store."""

    def record(self, subscription: str, instance: str, sequence: int) -> None:
        """Everything of this subscription up to that record of that instance is done."""

    def record_done(self, subscription: str, instance: str, first: int, last: int) -> None:
        """These records are done, although something before them isn't."""

    def done_after(self, subscription: str, instance: str) -> DoneRanges | None:
        """What was done behind the most recent bookmark; None: nothing."""

    def most_recent(self, subscription: str) -> str | None:
        """The bookmark to resume from; one per instance, by commas. None when nothing is known."""

    def forget(self, subscription: str) -> None:
        """Start anew next time."""

    def close(self) -> None:
        """Let go of files."""


def starting_point(bookmark: str | None, store: BookmarkStore | None, subscription: str) -> str | None:
    """The bookmark to send: MOST_RECENT is what the store says, and the start when it says nothing."""
    if bookmark != MOST_RECENT:
        return bookmark
    if store is None:
        raise OperatorError(
            "no_bookmark_store", "MOST_RECENT needs a bookmark store.", "Give the client one."
        )
    return store.most_recent(subscription) or EPOCH_TEXT


class MemoryBookmarkStore:
    """Keeps bookmarks while the process lives: MAX_POSITIONS of them, then OperatorError store_full."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, int]] = {}
        self._positions = 0
        self._done: dict[tuple[str, str], DoneRanges] = {}

    def record(self, subscription: str, instance: str, sequence: int) -> None:
        known = self._known.get(subscription, {})
        if instance not in known:
            if self._positions >= MAX_POSITIONS:
                raise OperatorError(
                    "store_full",
                    f"A bookmark store keeps {MAX_POSITIONS} positions.",
                    "forget() subscriptions that are no more, or give each client a store of its own.",
                )
            self._positions += 1
            self._known[subscription] = known
        known[instance] = sequence
        done = self._done.get((subscription, instance))
        if done is not None:
            done.drop_upto(sequence)
            if not done:
                del self._done[subscription, instance]

    def record_done(self, subscription: str, instance: str, first: int, last: int) -> None:
        self._done.setdefault((subscription, instance), DoneRanges()).add(first, last)

    def done_after(self, subscription: str, instance: str) -> DoneRanges | None:
        return self._done.get((subscription, instance))

    def most_recent(self, subscription: str) -> str | None:
        known = self._known.get(subscription)
        if not known:
            return None
        return ",".join(str(Bookmark(instance, sequence)) for instance, sequence in known.items())

    def forget(self, subscription: str) -> None:
        self._positions -= len(self._known.pop(subscription, {}))
        for key in [key for key in self._done if key[0] == subscription]:
            del self._done[key]

    def close(self) -> None:
        """Nothing to let go of."""
