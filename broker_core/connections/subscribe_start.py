"""Subscribes that need something before they begin: a durable subscription, a resume token, a snapshot.

Each ends as an ordinary subscribe with a bookmark, and with what is delivered before it. What takes long (the disk,
the log) happens before the subscription exists; then, in one turn of the loop, it is entered, its first deliveries
are queued, and the log goes on behind the last record they stand for: no gap, and nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import structlog

from broker_core.bookmark import Bookmark
from broker_core.connections.member import Member
from broker_core.connections.ports import Services
from broker_core.connections.resume_tokens import Held
from broker_core.delivery.entry import OutboxEntry
from broker_core.errors import ClientError, JournalError
from broker_core.filters import compile_filter
from broker_core.protocols import commands, replies
from broker_core.replay.snapshot import fold, look_back
from broker_core.subscriptions.journaled_topics import JournaledTopics
from broker_core.subscriptions.keys import parse_key
from broker_core.subscriptions.subscription import Subscription
from broker_core.subscriptions.topics import TopicPattern

log = structlog.get_logger("sluice.subscribe")


@dataclass(slots=True)
class Prepared:
    """A subscribe that can begin, what it delivers first, and what the client is told about that."""

    command: commands.Subscribe
    first: list[OutboxEntry] = field(default_factory=list)
    resumed: replies.Resumed | None = None


def needs_preparing(command: commands.Subscribe) -> bool:
    """Whether a subscribe isn't an ordinary one."""
    return command.durable is not None or command.snapshot_key is not None or command.resume is not None


Begin = Callable[[Member, commands.Subscribe, int], None]


async def prepare(
    connection: Member,
    services: Services,
    command: commands.Subscribe,
    stream: int,
    topics: JournaledTopics,
    begin: Begin,
) -> None:
    """Make ready, and `begin`; or say what is wrong."""
    try:
        prepared = await _prepared(connection, services, command, stream, topics)
        if not connection.closed:
            begin(connection, prepared.command, stream)
            for entry in prepared.first:
                if entry.stream in connection.backlog.recipients:
                    connection.backlog.offer(entry)
            if prepared.resumed is not None:
                connection.reply(prepared.resumed)
            connection.backlog.send()
    except (ClientError, JournalError) as error:
        connection.reply(replies.error_reply(error, of="subscribe", id=command.id))
    except Exception:
        # Nobody awaits this: a client that is never answered would wait in silence.
        log.exception("subscribe_failed", client=connection.name, id=command.id)
        connection.close("internal_error", "What this client asked to subscribe to couldn't be prepared.")


async def _prepared(
    connection: Member, services: Services, command: commands.Subscribe, stream: int, topics: JournaledTopics
) -> Prepared:
    client, pattern = connection.name, TopicPattern.parse(command.topic)
    if topics.covers_nothing(pattern):
        raise ClientError(
            "not_journaled",
            f"{command.topic} isn't journaled: nothing of it is kept for a subscription.",
            "Have the topic journaled, or leave durable, snapshot_key and resume out.",
        )
    chosen = compile_filter(command.filter) if command.filter else None
    granted = connection.rights.subscription(pattern, chosen)
    subscription = Subscription(None, command.id, stream, granted.pattern, granted.filter, topics.decoder_of)
    if command.snapshot_key is not None:
        parse_key(
            command.snapshot_key
        )  # a policy may conflate by it later, whatever else the subscribe asks for
    if command.durable is not None:
        return await _durable(services, client, command)
    if command.resume is not None:
        return await _resumed(services, client, command, subscription)
    if command.bookmark is not None:
        # With a bookmark the log itself is delivered; the key only says what conflation would keep.
        return Prepared(command)
    assert command.snapshot_key is not None
    newest = services.frontier.durable
    first = look_back(services.facilities.journal, newest)
    return await _folded(services, command, subscription, first, newest, "snapshot")


async def _durable(services: Services, client: str, command: commands.Subscribe) -> Prepared:
    """From where the durable subscription stands; a new one from the bookmark given, or from now."""
    begins_at = await _begins_at(services, command)
    durable = await services.durables.claim(client, command, lambda: begins_at)
    return Prepared(_from(command, services.facilities.instance, durable.position))


async def _begins_at(services: Services, command: commands.Subscribe) -> int:
    """The first record that a new durable subscription gets: a moment to come is now."""
    now = services.frontier.durable + 1
    if command.bookmark is None:
        return now
    span = services.subscribing.span_of(command)
    if span.not_before:
        return min(
            await services.facilities.reader.run(services.facilities.journal.sequence_at, span.not_before),
            now,
        )
    return span.first


async def _resumed(
    services: Services, client: str, command: commands.Subscribe, subscription: Subscription[object]
) -> Prepared:
    assert command.resume is not None
    token = services.tokens.read(command.resume, client, services.facilities.clock.now_ns() // 1_000_000)
    held = next((held for held in token.subscriptions if held.id == command.id), None)
    if held is None or (held.topic, held.filter) != (command.topic, command.filter):
        raise ClientError(
            "bad_resume_token",
            f"The token doesn't know the subscription {command.id} of {command.topic}.",
            "Subscribe with the id, topic and filter it had.",
        )
    newest, how = services.frontier.durable, command.resume_how or "log"
    if how == "conflated":
        first = max(held.position, services.facilities.journal.first_sequence)
        return await _folded(services, command, subscription, first, newest, how)
    if how == "now":
        return await _from_now(services, command, subscription, held, newest)
    resumed = _say(services, command, how, 0, held.position, newest, exact=True)
    return Prepared(_from(command, services.facilities.instance, held.position), resumed=resumed)


async def _from_now(
    services: Services,
    command: commands.Subscribe,
    subscription: Subscription[object],
    held: Held,
    newest: int,
) -> Prepared:
    """Nothing of the interval is delivered; how much that is, is counted where the log still has it."""
    first = max(held.position, look_back(services.facilities.journal, newest))
    stretch, _ = await fold(services.facilities, subscription, first, newest, lambda topic, body: 0)
    uncounted = first - held.position
    resumed = _say(
        services, command, "now", stretch.matched + uncounted, held.position, newest, exact=not uncounted
    )
    return Prepared(_from(command, services.facilities.instance, newest + 1), resumed=resumed)


async def _folded(
    services: Services,
    command: commands.Subscribe,
    subscription: Subscription[object],
    first: int,
    newest: int,
    how: str,
) -> Prepared:
    """The last record per key of a stretch, then the log behind it."""
    key_of = parse_key(command.snapshot_key or "topic").of(subscription.decoder_of)
    stretch, entries = await fold(services.facilities, subscription, first, newest, key_of)
    missed = stretch.matched - sum(entry.count for entry in entries)
    whole = first <= services.facilities.journal.first_sequence or how != "snapshot"
    resumed = _say(services, command, how, missed, first, newest, exact=whole)
    return Prepared(_from(command, services.facilities.instance, newest + 1), entries, resumed)


def _from(command: commands.Subscribe, instance: str, position: int) -> commands.Subscribe:
    bookmark = str(Bookmark(instance, position - 1)) if position > 1 else "0"
    return msgspec.structs.replace(command, bookmark=bookmark)


def _say(
    services: Services,
    command: commands.Subscribe,
    how: str,
    missed: int,
    first: int,
    newest: int,
    *,
    exact: bool,
) -> replies.Resumed:
    return replies.Resumed(
        id=command.id,
        how=how,
        missed=missed,
        exact=exact,
        first=str(Bookmark(services.facilities.instance, first)) if first <= newest else "",
        last=str(Bookmark(services.facilities.instance, newest)) if first <= newest else "",
    )
