"""Looking at the messages of topics for an operator: some records of the journal, from a bookmark or a moment on.

Reads files and never the loop's own state, so that it can run in a thread; bounded in what it reads, gives and takes.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import orjson

from broker_core.batch import Batch
from broker_core.bookmark import After, Bookmark, Epoch, Moment, parse_bookmark
from broker_core.documents.messages import BrowsedMessage, BrowsedPage
from broker_core.documents.requests import Browse
from broker_core.errors import ClientError
from broker_core.filters import BatchEvaluator, DecoderOf, Filter, compile_filter
from broker_core.journal.journal import Journal
from broker_core.subscriptions.topics import TopicPattern

CHUNK_BYTES = 1024 * 1024
MOST_SEARCHED_BYTES = 64 * 1024 * 1024
"""Journal that one request reads at most; its answer says where to go on."""
MOST_MESSAGES = 1_000
MOST_BODY_BYTES = 8 * 1024 * 1024
"""Bodies of one answer together, about."""


class Wanted(NamedTuple):
    """A request, checked."""

    pattern: TopicPattern
    filter: Filter | None
    decoder_of: DecoderOf | None
    """How the filter reads bodies."""
    start: int
    end_at: int
    limit: int


def wanted(journal: Journal, asked: Browse, decoder_of: DecoderOf | None) -> Wanted:
    """Read what is asked for. Raises ClientError bad_pattern, bad_filter, bad_bookmark."""
    start = _start(journal, asked.bookmark) if asked.bookmark else journal.first_sequence
    if asked.from_ns:
        start = max(start, journal.sequence_at(asked.from_ns))
    return Wanted(
        TopicPattern.parse(asked.topic), compile_filter(asked.filter) if asked.filter else None,
        decoder_of, start, asked.to_ns or 2**63 - 1, min(asked.limit, MOST_MESSAGES),
    )  # fmt: skip


def browse(journal: Journal, instance: str, asked: Wanted, upto: int) -> BrowsedPage:
    """Messages up to the durable frontier `upto`. Raises JournalError bookmark_gone, journal_failed."""
    messages: list[BrowsedMessage] = []
    sequence, read_bytes, body_bytes, searched = max(asked.start, journal.first_sequence), 0, 0, 0
    complete = False
    while not complete and read_bytes < MOST_SEARCHED_BYTES:
        batches = journal.read(sequence, CHUNK_BYTES, upto)
        complete = not batches
        for batch in batches:
            if batch.accepted_at >= asked.end_at:
                complete = True
                break
            read_bytes += batch.nbytes
            for at, message in _messages(batch, instance, asked, sequence):
                messages.append(message)
                body_bytes, sequence = body_bytes + message.bytes, at + 1
                if len(messages) == asked.limit or body_bytes > MOST_BODY_BYTES:
                    return _answer(messages, instance, sequence, searched + batch.count, False)
            sequence, searched = batch.last_sequence + 1, searched + batch.count
    return _answer(messages, instance, sequence, searched, complete)


def _answer(
    messages: list[BrowsedMessage], instance: str, sequence: int, searched: int, complete: bool
) -> BrowsedPage:
    following = str(Bookmark(instance, sequence - 1)) if sequence > 1 else "0"
    return BrowsedPage(messages=messages, next=following, searched=searched, complete=complete)


def _messages(batch: Batch, instance: str, asked: Wanted, start: int) -> Iterator[tuple[int, BrowsedMessage]]:
    """(sequence, message) of the records that fit, from `start` on."""
    named = [number for number, topic in enumerate(batch.topics, 1) if asked.pattern.matches(topic)]
    if not named:
        return
    sequences = batch.sequences()
    rows = np.flatnonzero(np.isin(batch.topic_indexes, named) & (sequences >= start))
    if asked.filter is not None:
        rows = BatchEvaluator(batch, asked.decoder_of).rows(asked.filter, rows)
    indexes, topics, at = batch.topic_indexes, batch.topics, batch.accepted_at // 1_000_000
    for row in rows.tolist():
        sequence = int(sequences[row])
        bookmark, topic = str(Bookmark(instance, sequence)), topics[int(indexes[row]) - 1]
        yield sequence, _readable(bookmark, topic, at, batch.body(row))


def _readable(bookmark: str, topic: str, at: int, body: bytes) -> BrowsedMessage:
    """The body as JSON, else as text, else in base64."""
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError:
        pass
    else:
        return BrowsedMessage(bookmark=bookmark, topic=topic, at=at, bytes=len(body), data=data)
    try:
        return BrowsedMessage(bookmark=bookmark, topic=topic, at=at, bytes=len(body), text=body.decode())
    except UnicodeDecodeError:
        coded = base64.b64encode(body).decode()
        return BrowsedMessage(bookmark=bookmark, topic=topic, at=at, bytes=len(body), base64=coded)


def _start(journal: Journal, text: str) -> int:
    begin = parse_bookmark(text)
    if isinstance(begin, Epoch):
        return journal.first_sequence
    if isinstance(begin, Moment):
        return journal.sequence_at(begin.at)
    if isinstance(begin, After):
        for one in begin.bookmarks:
            if one.origin == journal.instance:
                return one.sequence + 1
    raise ClientError(
        "bad_bookmark",
        f"{text[:80]!r} isn't where browsing can begin.",
        f"Give a bookmark of {journal.instance}, 0, or a moment.",
    )
