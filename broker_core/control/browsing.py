"""Looking at the messages of topics for an operator: some records of the journal, from a bookmark or a moment on.

Reads files and never the loop's own state, so that it can run in a thread; bounded in what it reads, gives and takes.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson

from broker_core.batch import Batch
from broker_core.bookmark import AfterBookmarks, AtTime, Bookmark, Epoch, parse_bookmark
from broker_core.documents.journals import BrowsedMessage, BrowsedPage
from broker_core.documents.requests import BrowseMessages
from broker_core.errors import ClientError
from broker_core.filters import DecoderOf, compile_filter
from broker_core.headers import decode as headers_of
from broker_core.journal.journal import Journal
from broker_core.names import publisher_origin
from broker_core.protocols.stomp.destinations import format_destination
from broker_core.subscriptions.subscription import Subscription, select_rows
from broker_core.subscriptions.topics import TopicPattern

CHUNK_BYTES = 1024 * 1024
MAX_SEARCHED_BYTES = 64 * 1024 * 1024
"""Journal that one request reads at most; its answer says where to go on."""
MAX_MESSAGES = 1_000
MAX_BODY_BYTES = 8 * 1024 * 1024
"""Bodies of one answer together, about."""


class BrowseQuery(NamedTuple):
    """A request, checked."""

    subscription: Subscription[None]
    """What the same question would be as a subscription."""
    start: int
    end_at: int
    limit: int


def parse_browse_request(
    journal: Journal, asked: BrowseMessages, decoder_of: DecoderOf | None
) -> BrowseQuery:
    """Read what is asked for; `decoder_of` is how its filter reads bodies. Raises ClientError bad_pattern, bad_filter,
    bad_bookmark."""
    start = _start(journal, asked.bookmark) if asked.bookmark else journal.first_sequence
    if asked.from_ns:
        start = max(start, journal.sequence_at(asked.from_ns))
    chosen = compile_filter(asked.filter) if asked.filter else None
    subscription = Subscription(None, "browse", 0, TopicPattern.parse(asked.topic), chosen, decoder_of)
    return BrowseQuery(subscription, start, asked.to_ns or 2**63 - 1, min(asked.limit, MAX_MESSAGES))


def browse_messages(journal: Journal, instance: str, asked: BrowseQuery, upto: int) -> BrowsedPage:
    """Messages up to the durable frontier `upto`. Raises JournalError bookmark_gone, journal_failed."""
    messages: list[BrowsedMessage] = []
    sequence, read_bytes, body_bytes, searched = max(asked.start, journal.first_sequence), 0, 0, 0

    def page(complete: bool) -> BrowsedPage:
        following = str(Bookmark(instance, sequence - 1)) if sequence > 1 else "0"
        return BrowsedPage(messages=messages, next=following, searched=searched, complete=complete)

    while read_bytes < MAX_SEARCHED_BYTES:
        batches = journal.read(sequence, CHUNK_BYTES, upto)
        if not batches:
            return page(complete=True)
        for batch in batches:
            if batch.accepted_at >= asked.end_at:
                return page(complete=True)
            read_bytes, searched = read_bytes + batch.nbytes, searched + batch.count
            for at, message in _messages(batch, instance, asked, sequence):
                messages.append(message)
                body_bytes, sequence = body_bytes + message.bytes, at + 1
                if len(messages) == asked.limit or body_bytes > MAX_BODY_BYTES:
                    return page(complete=False)
            sequence = batch.last_sequence + 1
    return page(complete=False)


def _messages(
    batch: Batch, instance: str, asked: BrowseQuery, start: int
) -> Iterator[tuple[int, BrowsedMessage]]:
    """(sequence, message) of the records that fit, from `start` on."""
    rows = select_rows(asked.subscription, batch, start)
    origin, there = publisher_origin(batch.publisher_name), batch.publisher_sequences()
    lines = batch.headers() if batch.header.headers_length else None
    for row in range(batch.count) if rows is None else rows.tolist():
        sequence = batch.first_sequence + row
        headers = headers_of(lines[row]) if lines is not None else {}
        where = Bookmark(origin, int(there[row])) if origin else Bookmark(instance, sequence)
        yield sequence, _readable(str(where), batch, row, headers)


def _readable(bookmark: str, batch: Batch, row: int, headers: dict[str, str]) -> BrowsedMessage:
    """The body as JSON, else as text, else in base64."""
    body = batch.body(row)
    read: dict[str, Any]
    try:
        read = {"data": orjson.loads(body)}
    except orjson.JSONDecodeError:
        try:
            read = {"text": body.decode()}
        except UnicodeDecodeError:
            read = {"base64": base64.b64encode(body).decode()}
    topic, at = batch.topics[int(batch.topic_indexes[row]) - 1], batch.accepted_at // 1_000_000
    destination = headers.pop("destination", "") or format_destination(topic)
    return BrowsedMessage(
        bookmark=bookmark,
        topic=topic,
        destination=destination,
        at=at,
        bytes=len(body),
        headers=headers,
        **read,
    )


def _start(journal: Journal, text: str) -> int:
    begin = parse_bookmark(text)
    if isinstance(begin, Epoch):
        return journal.first_sequence
    if isinstance(begin, AtTime):
        return journal.sequence_at(begin.at)
    if isinstance(begin, AfterBookmarks):
        for one in begin.bookmarks:
            if one.origin == journal.instance:
                return one.sequence + 1
    raise ClientError(
        "bad_bookmark",
        f"{text[:80]!r} isn't where browsing can begin.",
        f"Give a bookmark of {journal.instance}, 0, or a moment.",
    )
