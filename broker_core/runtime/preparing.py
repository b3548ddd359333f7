"""Subscribes that need something before they begin: a durable subscription, a resume token, a snapshot.

Each ends as an ordinary subscribe with a bookmark, and with what is delivered before it. What takes long (the disk,
the log) happens before the subscription exists; then, in one turn of the loop, it is entered, its first deliveries
are queued, and the log goes on behind the last record they stand for: no gap, and nothing twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from broker_core.bookmark import Bookmark
from broker_core.delivery import OutboxEntry
from broker_core.errors import ClientError, JournalError
from broker_core.filters import compile_filter
from broker_core.protocols import commands, replies
from broker_core.runtime.folding import fold, look_back
from broker_core.runtime.handoff import Held
from broker_core.sow.last_per_key import parse_key
from broker_core.subscriptions.subscription import Subscription
from broker_core.subscriptions.topics import TopicPattern

if TYPE_CHECKING:
    from broker_core.runtime.connection import Connection
    from broker_core.runtime.host import Host


@dataclass(slots=True)
class Prepared:
    """A subscribe that can begin, what it delivers first, and what the client is told about that."""

    command: commands.Subscribe
    first: list[OutboxEntry] = field(default_factory=list)
    resumed: replies.Resumed | None = None


def needs_preparing(command: commands.Subscribe) -> bool:
    """Whether a subscribe isn't an ordinary one."""
    return command.durable is not None or command.snapshot_key is not None or command.resume is not None


Begin = Callable[["Connection", commands.Subscribe, int], None]


async def prepare(connection: Connection, command: commands.Subscribe, stream: int, begin: Begin) -> None:
    """Make ready, and `begin`; or say what is wrong."""
    host = connection.host
    try:
        prepared = await _prepared(host, connection, command, stream)
        if not connection.closed:
            begin(connection, prepared.command, stream)
            for entry in prepared.first:
                connection.queue_first(entry)
            if prepared.resumed is not None:
                connection.reply(prepared.resumed)
            connection.backlog.flush()
    except (ClientError, JournalError) as error:
        connection.reply(replies.error_reply(error, of="subscribe", id=command.id))


async def _prepared(host: Host, connection: Connection, command: commands.Subscribe, stream: int) -> Prepared:
    client, pattern = connection.name, TopicPattern.parse(command.topic)
    if host.journaled.covers_nothing(pattern):
        raise ClientError("not_journaled", f"{command.topic} isn't journaled: nothing of it is kept for a subscription.",
                          "Have the topic journaled, or leave durable, snapshot_key and resume out.")
    chosen = compile_filter(command.filter) if command.filter else None
    granted = connection.rights.subscription(pattern, chosen)
    subscription = Subscription(None, command.id, stream, granted.pattern, granted.filter, host.journaled.decoder_of)
    if command.durable is not None:
        return await _durable(host, client, command)
    if command.resume is not None:
        return await _resumed(host, client, command, subscription)
    if command.bookmark is not None:
        # With a bookmark the log itself is delivered; the key only says what conflation would keep.
        return Prepared(command)
    assert command.snapshot_key is not None
    newest = host.dispatched_sequence
    return await _folded(host, command, subscription, look_back(host.journal, newest), newest, "snapshot")


async def _durable(host: Host, client: str, command: commands.Subscribe) -> Prepared:
    """From where the durable subscription stands; a new one from the bookmark given, or from now."""
    durable = host.durables.find(client, command)
    if durable is None:
        position = host.subscribing.position_of(command) if command.bookmark else host.dispatched_sequence + 1
        durable = host.durables.make(client, command, position)
        await asyncio.to_thread(host.durables.write, host.durables.content())
    return Prepared(_from(command, host.instance, durable.position))


async def _resumed(host: Host, client: str, command: commands.Subscribe, subscription: Subscription) -> Prepared:
    assert command.resume is not None
    token = host.tokens.read(command.resume, client, host.now_ns() // 1_000_000)
    held = next((held for held in token.subscriptions if held.id == command.id), None)
    if held is None or (held.topic, held.filter) != (command.topic, command.filter):
        raise ClientError("bad_resume_token", f"The token doesn't know the subscription {command.id} of {command.topic}.",
                          "Subscribe with the id, topic and filter it had.")
    newest, how = host.dispatched_sequence, command.resume_how or "log"
    if how == "conflated":
        first = max(held.position, host.journal.first_sequence)
        return await _folded(host, command, subscription, first, newest, how)
    if how == "now":
        return await _from_now(host, command, subscription, held, newest)
    resumed = _say(host, command, how, 0, held.position, newest, exact=True)
    return Prepared(_from(command, host.instance, held.position), resumed=resumed)


async def _from_now(
    host: Host, command: commands.Subscribe, subscription: Subscription, held: Held, newest: int
) -> Prepared:
    """Nothing of the interval is delivered; how much that is, is counted where the log still has it."""
    first = max(held.position, look_back(host.journal, newest))
    stretch, _ = await fold(host, subscription, first, newest, lambda topic, body: 0)
    uncounted = first - held.position
    resumed = _say(host, command, "now", stretch.matched + uncounted, held.position, newest, exact=not uncounted)
    return Prepared(_from(command, host.instance, newest + 1), resumed=resumed)


async def _folded(
    host: Host, command: commands.Subscribe, subscription: Subscription, first: int, newest: int, how: str
) -> Prepared:
    """The last record per key of a stretch, then the log behind it."""
    key_of = parse_key(command.snapshot_key or "topic")
    stretch, entries = await fold(host, subscription, first, newest, key_of)
    missed = stretch.matched - sum(entry.count for entry in entries)
    whole = first <= host.journal.first_sequence or how != "snapshot"
    resumed = _say(host, command, how, missed, first, newest, exact=whole)
    return Prepared(_from(command, host.instance, newest + 1), entries, resumed)


def _from(command: commands.Subscribe, instance: str, position: int) -> commands.Subscribe:
    bookmark = str(Bookmark(instance, position - 1)) if position > 1 else "0"
    return msgspec.structs.replace(command, bookmark=bookmark)


def _say(
    host: Host, command: commands.Subscribe, how: str, missed: int, first: int, newest: int, *, exact: bool
) -> replies.Resumed:
    return replies.Resumed(
        id=command.id, how=how, missed=missed, exact=exact,
        first=str(Bookmark(host.instance, first)) if first <= newest else "",
        last=str(Bookmark(host.instance, newest)) if first <= newest else "",
    )
