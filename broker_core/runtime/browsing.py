"""Looking at the messages of topics for an operator: some records of the journal, from a bookmark or a moment on.

Reads files and never the loop's own state, so that it can run in a thread; bounded in what it reads, gives and takes.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import orjson

from broker_core.batch import Batch
from broker_core.bookmark import After, Bookmark, Epoch, Moment, parse_bookmark
from broker_core.errors import ClientError, OperatorError
from broker_core.filters import Filter, compile_filter
from broker_core.filters.evaluate import BatchEvaluator
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
    start: int
    end_at: int
    limit: int


def wanted(journal: Journal, request: Mapping[str, Any]) -> Wanted:
    """Read {topic, filter, bookmark, from_ns, to_ns, limit}; all but `topic` may be left out or null.

    Raises ClientError bad_pattern, bad_filter, bad_bookmark; OperatorError bad_request.
    """
    limit = request.get("limit") or 100
    moments = (request.get("from_ns") or 0, request.get("to_ns") or 2**63 - 1)
    if any(isinstance(one, bool) or not isinstance(one, int) or one < 0 for one in (limit, *moments)):
        raise OperatorError("bad_request", "limit, from_ns and to_ns must be numbers.", "Give moments as ns UTC.")
    text, bookmark = str(request.get("filter") or ""), str(request.get("bookmark") or "")
    start = _start(journal, bookmark) if bookmark else journal.first_sequence
    if moments[0]:
        start = max(start, journal.sequence_at(moments[0]))
    return Wanted(
        TopicPattern.parse(str(request.get("topic") or "")), compile_filter(text) if text else None,
        start, moments[1], min(limit, MOST_MESSAGES),
    )  # fmt: skip


def browse(journal: Journal, instance: str, asked: Wanted, upto: int) -> dict[str, Any]:
    """{"messages", "next", "searched", "complete"}: `next` is the bookmark to go on after; `complete` says that there is no
    more up to the durable frontier `upto`. Raises JournalError bookmark_gone, journal_failed."""
    messages: list[dict[str, Any]] = []
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
            for at, message, size in _messages(batch, instance, asked, sequence):
                messages.append(message)
                body_bytes, sequence = body_bytes + size, at + 1
                if len(messages) == asked.limit or body_bytes > MOST_BODY_BYTES:
                    return _answer(messages, instance, sequence, searched + batch.count, False)
            sequence, searched = batch.last_sequence + 1, searched + batch.count
    return _answer(messages, instance, sequence, searched, complete)


def _answer(messages: list[dict[str, Any]], instance: str, sequence: int, searched: int, complete: bool) -> dict[str, Any]:
    following = str(Bookmark(instance, sequence - 1)) if sequence > 1 else "0"
    return {"messages": messages, "next": following, "searched": searched, "complete": complete}


def _messages(batch: Batch, instance: str, asked: Wanted, start: int) -> Iterator[tuple[int, dict[str, Any], int]]:
    """(sequence, message, bytes) of the records that fit, from `start` on."""
    named = [number for number, topic in enumerate(batch.topics, 1) if asked.pattern.matches(topic)]
    if not named:
        return
    sequences = batch.sequences()
    rows = np.flatnonzero(np.isin(batch.topic_indexes, named) & (sequences >= start))
    if asked.filter is not None:
        rows = BatchEvaluator(batch).rows(asked.filter, rows)
    indexes, topics = batch.topic_indexes, batch.topics
    for row in rows.tolist():
        body, sequence = batch.body(row), int(sequences[row])
        yield sequence, {
            "bookmark": str(Bookmark(instance, sequence)), "topic": topics[int(indexes[row]) - 1],
            "at": batch.accepted_at // 1_000_000, "bytes": len(body), **_readable(body),
        }, len(body)  # fmt: skip


def _readable(body: bytes) -> dict[str, Any]:
    """The body as JSON, else as text, else in base64."""
    try:
        return {"data": orjson.loads(body)}
    except orjson.JSONDecodeError:
        pass
    try:
        return {"text": body.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}


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
        "bad_bookmark", f"{text[:80]!r} isn't where browsing can begin.", f"Give a bookmark of {journal.instance}, 0, or a moment."
    )
