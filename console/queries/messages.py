"""Messages of topics in the journal: from a bookmark on, the newest, and new ones as they arrive.

All functions send browse requests to the broker (`broker_core/control/browsing.py`), which reads forwards
and limits the amount read. The newest messages are found by reading growing ranges backwards from the end.
A follower that receives too much gets the number of skipped records.
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

MAX_RECORDS_PER_ANSWER: Final = 1_000
"""Records whose messages fit into one answer.

An answer about a larger range may contain only the oldest ones.
"""
MAX_REQUESTS: Final = 12
"""Maximum requests to find the newest messages. "Earlier" continues from there."""
TOPICS_FROM: Final = 300
"""Number of newest messages from which the list of topics is made."""
MAX_FOLLOWED: Final = 100
"""Maximum messages that a follower gets in one answer. Only the number of further ones is reported."""


class NewestMessages(NamedTuple):
    """Newest messages, newest first.

    `earlier`: bookmark to continue before, "" if there are no earlier ones.
    """

    messages: list[BrowsedMessage]
    earlier: str
    searched: int


class FollowedMessages(NamedTuple):
    """New messages, newest first. `after`: bookmark to continue from. `passed`: number of skipped records."""

    messages: list[BrowsedMessage]
    after: str
    passed: int


class TopicCount(NamedTuple):
    """Topic among the newest messages."""

    name: str
    messages: int
    last_at: int


def browse_messages(
    topic: str,
    *,
    filter: str = "",
    bookmark: str = "",
    start: datetime | None = None,
    end: datetime | None = None,
    limit: int = 100,
    instance_name: str | None = None,
) -> BrowsedPage:
    """Return messages of a topic from a bookmark or moment on.

    Raises BrokerUnavailable, or the broker's OperatorError `bad_pattern`, `bad_filter`, `bad_bookmark` or
    `bookmark_gone`.
    """
    request = BrowseMessages(
        topic=topic, filter=filter, bookmark=bookmark, limit=limit, from_ns=_ns(start), to_ns=_ns(end)
    )
    return link_to(instance_named(instance_name).name).call(request)


def newest_messages(topic: str, *, filter: str = "", before: str = "", limit: int = 50) -> NewestMessages:
    """Return the newest messages, or those before the record of the bookmark `before`.

    Raises as `browse_messages`.
    """
    status = live.instance_status()
    instance = status.instance
    before_sequence = bookmark_sequence(before, instance) if before else None
    last = (
        status.durable_sequence
        if before_sequence is None
        else min(before_sequence - 1, status.durable_sequence)
    )
    found: list[BrowsedMessage] = []
    size, searched, requests_remaining = limit, 0, MAX_REQUESTS
    while last > 0 and len(found) < limit and requests_remaining > 0:
        first = max(1, last - size + 1)
        part, reached, requests_made = _read_range(
            topic, filter, instance, first, last, 1 if size > MAX_RECORDS_PER_ANSWER else requests_remaining
        )
        requests_remaining -= requests_made
        if not reached and size > MAX_RECORDS_PER_ANSWER:
            # one answer can't hold this range, and the newest messages are needed
            size = MAX_RECORDS_PER_ANSWER
            continue
        found, searched = [*part, *found], searched + last - first + 1
        last, size = first - 1, size * 4
    shown = found[-limit:]
    more = last > 0 or len(found) > limit
    at = _sequence(shown[0].bookmark, instance) if len(found) > limit else last + 1
    return NewestMessages(shown[::-1], str(Bookmark(instance, at)) if more else "", searched)


def _read_range(
    topic: str, filter: str, instance: str, first: int, last: int, max_requests: int
) -> tuple[list[BrowsedMessage], bool, int]:
    """Return the matching messages of the records `first` to `last`, whether all were read, and the number
    of requests.

    At most `max_requests` requests are made.
    """
    found: list[BrowsedMessage] = []
    for requests_made in range(1, max_requests + 1):
        begin = str(Bookmark(instance, first - 1)) if first > 1 else EPOCH_TEXT
        page = browse_messages(topic, filter=filter, bookmark=begin, limit=MAX_RECORDS_PER_ANSWER)
        found += [one for one in page.messages if _sequence(one.bookmark, instance) <= last]
        reached = _sequence(page.next, instance)
        if page.complete or reached >= last:
            return found, True, requests_made
        first = max(first, reached) + 1
    return found, False, max_requests


def follow_messages(topic: str, *, filter: str = "", after: str = "") -> FollowedMessages:
    """Return the messages after a bookmark; without one, the bookmark to follow from.

    Messages beyond `MAX_FOLLOWED` are skipped and counted. A slow reader so never falls behind, and costs
    the broker one answer at a time.
    """
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
    """Return the topics among the newest messages of the patterns, most frequent first."""
    count: Counter[str] = Counter()
    last: dict[str, int] = {}
    for pattern in patterns:
        for message in newest_messages(pattern, limit=TOPICS_FROM).messages:
            count[message.topic] += 1
            last.setdefault(message.topic, message.at)
    return [TopicCount(name, number, last[name]) for name, number in count.most_common()]


def subscribers(topic: str, patterns: Sequence[str] | None = None) -> list[str]:
    """Return the connected clients that subscribe to a topic, regardless of their filters.

    Only names that match one of `patterns` are included; None means all.
    """
    found = []
    for client in live.instance_snapshot().clients:
        is_visible = patterns is None or any(name_matches(pattern, client.name) for pattern in patterns)
        if is_visible and any(topic_within(one.topic, topic) for one in client.subscriptions):
            found.append(client.name)
    return found


def _sequence(bookmark: str, instance: str) -> int:
    return bookmark_sequence(bookmark, instance) or 0


def _ns(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1_000_000) * 1_000
