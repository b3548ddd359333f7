"""The messages of topics, as the journal has them: from a place on, the newest, and what comes while one looks.

All of it asks the broker to browse (broker_core/control/browsing.py), which goes forwards and is bounded in what it reads. The
newest are found by growing pieces from the end backwards; whoever follows is told what passed while too much came.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from broker_core.bookmark import EPOCH_TEXT, Bookmark, bookmark_sequence
from broker_core.documents.journals import BrowsedMessage, BrowsedPage
from broker_core.documents.requests import BrowseMessages
from broker_core.names import name_matches
from console.access.rights import topic_within
from console.broker_link import link_to
from console.queries import live
from console.queries.policies import instance_named

PIECE: Final = 1_000
"""Records that one answer can have the messages of; of a larger piece it may have the oldest only."""
MAX_PIECES: Final = 12
"""Answers that are asked for to find the newest; "earlier" goes on from there."""
TOPICS_FROM: Final = 300
"""Messages that the list of topics is made of."""
MAX_FOLLOWED: Final = 100
"""Messages that whoever follows is given at once; of what came beyond it, only how much is told."""


class NewestMessages(NamedTuple):
    """The newest messages, the newest first. `earlier` is the bookmark to go on before; "" when there is nothing before."""

    messages: list[BrowsedMessage]
    earlier: str
    searched: int


class FollowedMessages(NamedTuple):
    """What has come, the newest first; `after` is where to go on, `passed` the records of the log that weren't looked at."""

    messages: list[BrowsedMessage]
    after: str
    passed: int


class TopicCount(NamedTuple):
    """A topic among the newest messages."""

    name: str
    messages: int
    last_at: int


def browse_messages(
    topic: str, *, filter: str = "", bookmark: str = "", start: datetime | None = None, end: datetime | None = None,
    limit: int = 100, instance_name: str | None = None,
) -> BrowsedPage:  # fmt: skip
    """Some messages, see broker_core/control/browsing.py. Raises BrokerUnavailable or the broker's bad_pattern, bad_filter,
    bad_bookmark, bookmark_gone."""
    asked = BrowseMessages(
        topic=topic, filter=filter, bookmark=bookmark, limit=limit, from_ns=_ns(start), to_ns=_ns(end)
    )
    return link_to(instance_named(instance_name).name).call(asked)


def newest_messages(topic: str, *, filter: str = "", before: str = "", limit: int = 50) -> NewestMessages:
    """The newest messages, or those before a bookmark's record. Raises what `browse` raises."""
    status = live.instance_status()
    instance = status.instance
    told = bookmark_sequence(before, instance) if before else None
    last = status.durable_sequence if told is None else min(told - 1, status.durable_sequence)
    found: list[BrowsedMessage] = []
    piece, searched, left = limit, 0, MAX_PIECES
    while last > 0 and len(found) < limit and left > 0:
        first = max(1, last - piece + 1)
        part, reached, asked = _piece(topic, filter, instance, first, last, 1 if piece > PIECE else left)
        left -= asked
        if not reached and piece > PIECE:
            piece = PIECE  # it holds more than one answer does, and the newest of them are wanted
            continue
        found, searched = [*part, *found], searched + last - first + 1
        last, piece = first - 1, piece * 4
    shown = found[-limit:]
    more = last > 0 or len(found) > limit
    at = _sequence(shown[0].bookmark, instance) if len(found) > limit else last + 1
    return NewestMessages(shown[::-1], str(Bookmark(instance, at)) if more else "", searched)


def _piece(
    topic: str, filter: str, instance: str, first: int, last: int, most: int
) -> tuple[list[BrowsedMessage], bool, int]:
    """Messages of the records `first` to `last`, whether all of them were looked at, and how often was asked."""
    found: list[BrowsedMessage] = []
    for asked in range(1, most + 1):
        begin = str(Bookmark(instance, first - 1)) if first > 1 else EPOCH_TEXT
        page = browse_messages(topic, filter=filter, bookmark=begin, limit=PIECE)
        found += [one for one in page.messages if _sequence(one.bookmark, instance) <= last]
        reached = _sequence(page.next, instance)
        if page.complete or reached >= last:
            return found, True, asked
        first = max(first, reached) + 1
    return found, False, most


def follow_messages(topic: str, *, filter: str = "", after: str = "") -> FollowedMessages:
    """What has come after a bookmark; without one, where following begins. What is more than a page takes is left out and
    told, so that whoever looks slowly is neither behind nor costs the broker more than one answer at a time."""
    status = live.instance_status()
    now = str(Bookmark(status.instance, status.durable_sequence)) if status.durable_sequence else EPOCH_TEXT
    if not after:
        return FollowedMessages([], now, 0)
    page = browse_messages(topic, filter=filter, bookmark=after, limit=MAX_FOLLOWED)
    if page.complete:
        return FollowedMessages(page.messages[::-1], page.next, 0)
    passed = max(0, status.durable_sequence - _sequence(page.next, status.instance))
    return FollowedMessages(page.messages[::-1], now if passed else page.next, passed)


def frequent_topics(patterns: Sequence[str]) -> list[TopicCount]:
    """The topics among the newest messages of these patterns, the most frequent first."""
    count: Counter[str] = Counter()
    last: dict[str, int] = {}
    for pattern in patterns:
        for message in newest_messages(pattern, limit=TOPICS_FROM).messages:
            count[message.topic] += 1
            last.setdefault(message.topic, message.at)
    return [TopicCount(name, number, last[name]) for name, number in count.most_common()]


def subscribers(topic: str, patterns: Sequence[str] | None = None) -> list[str]:
    """The connected clients that subscribe to a topic, whatever their filters say; `patterns` are the names that may be seen."""
    found = []
    for client in live.instance_snapshot().clients:
        seen = patterns is None or any(name_matches(pattern, client.name) for pattern in patterns)
        if seen and any(topic_within(one.topic, topic) for one in client.subscriptions):
            found.append(client.name)
    return found


def _sequence(bookmark: str, instance: str) -> int:
    return bookmark_sequence(bookmark, instance) or 0


def _ns(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1_000_000) * 1_000
