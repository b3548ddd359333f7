"""Browsing of journaled messages for an operator, from a bookmark or a time on.

The module reads files and never the state of the event loop, so that it can run in a thread. Bytes read,
messages returned and their bodies are bounded.
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
from broker_core.subscriptions.subscription import TopicSubscription, select_rows
from broker_core.subscriptions.topics import TopicPattern

CHUNK_BYTES = 1024 * 1024
"""Bytes of the journal read in one step."""
MAX_SEARCHED_BYTES = 64 * 1024 * 1024
"""Maximum bytes of the journal that one request reads. Its reply says where to continue."""
MAX_MESSAGES = 1_000
"""Maximum messages in one reply."""
MAX_BODY_BYTES = 8 * 1024 * 1024
"""Approximate maximum of all bodies in one reply."""


class BrowseQuery(NamedTuple):
    """Validated browse request. `end_at` is a time, ns UTC."""

    subscription: TopicSubscription[None]
    """Topic pattern and filter of the request, as a subscription."""
    start: int
    """Sequence of the first record."""
    end_at: int
    limit: int


def parse_browse_request(
    journal: Journal, request: BrowseMessages, decoder_of: DecoderOf | None
) -> BrowseQuery:
    """Validate a request. `decoder_of` returns the decoder with which the filter reads bodies of a topic.

    Raises:
        ClientError: bad_pattern, bad_filter or bad_bookmark.
    """
    start = _start(journal, request.bookmark) if request.bookmark else journal.first_sequence
    if request.from_ns:
        start = max(start, journal.sequence_at(request.from_ns))
    chosen = compile_filter(request.filter) if request.filter else None
    subscription = TopicSubscription(None, "browse", 0, TopicPattern.parse(request.topic), chosen, decoder_of)
    return BrowseQuery(subscription, start, request.to_ns or 2**63 - 1, min(request.limit, MAX_MESSAGES))


def browse_messages(journal: Journal, instance: str, request: BrowseQuery, last: int) -> BrowsedPage:
    """Return matching messages up to the durable frontier `last`.

    Raises:
        JournalError: bookmark_gone or journal_failed.
    """
    messages: list[BrowsedMessage] = []
    sequence, read_bytes, body_bytes, searched = max(request.start, journal.first_sequence), 0, 0, 0

    def page(complete: bool) -> BrowsedPage:
        following = str(Bookmark(instance, sequence - 1)) if sequence > 1 else "0"
        return BrowsedPage(messages=messages, next=following, searched=searched, complete=complete)

    while read_bytes < MAX_SEARCHED_BYTES:
        batches = journal.read(sequence, CHUNK_BYTES, last)
        if not batches:
            return page(complete=True)
        for batch in batches:
            if batch.accepted_at >= request.end_at:
                return page(complete=True)
            read_bytes, searched = read_bytes + batch.nbytes, searched + batch.count
            for at, message in _messages(batch, instance, request, sequence):
                messages.append(message)
                body_bytes, sequence = body_bytes + message.bytes, at + 1
                if len(messages) == request.limit or body_bytes > MAX_BODY_BYTES:
                    return page(complete=False)
            sequence = batch.last_sequence + 1
    return page(complete=False)


def _messages(
    batch: Batch, instance: str, request: BrowseQuery, start: int
) -> Iterator[tuple[int, BrowsedMessage]]:
    """Yield (sequence, message) of the matching records, from sequence `start` on."""
    rows = select_rows(request.subscription, batch, start)
    origin, publisher_sequences = publisher_origin(batch.publisher_name), batch.publisher_sequences()
    lines = batch.headers() if batch.header.headers_length else None
    for row in range(batch.count) if rows is None else rows.tolist():
        sequence = batch.first_sequence + row
        headers = headers_of(lines[row]) if lines is not None else {}
        where = Bookmark(origin, int(publisher_sequences[row])) if origin else Bookmark(instance, sequence)
        yield sequence, _to_message(str(where), batch, row, headers)


def _to_message(bookmark: str, batch: Batch, row: int, headers: dict[str, str]) -> BrowsedMessage:
    """Return a message with its body as JSON, as text if it is not JSON, or else in base64."""
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
        time_is_estimated=not batch.is_time_certain,
        bytes=len(body),
        headers=headers,
        **read,
    )


def _start(journal: Journal, text: str) -> int:
    """Return the sequence at which browsing starts. Raises ClientError bad_bookmark."""
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
