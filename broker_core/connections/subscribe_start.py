"""Subscribes that need something before they begin: a durable subscription, a resume token, a snapshot.

Each ends as an ordinary subscribe with a bookmark, and with what is delivered before it. What takes long (the disk,
the log) happens before the subscription exists; then, in one turn of the loop, it is entered, its first deliveries
are queued, and the log goes on behind the last record they stand for: no gap, and nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import structlog

from broker_core.bookmark import Bookmark
from broker_core.connections.member import Member
from broker_core.connections.ports import Services
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
Begin = Callable[[Member, commands.Subscribe, int], None]


def needs_preparing(command: commands.Subscribe) -> bool:
    """Whether a subscribe isn't an ordinary one."""
    return command.durable is not None or command.snapshot_key is not None or command.resume is not None


class Preparation:
    """One subscribe that is made ready: what it delivers first, and what the client is told about that."""

    def __init__(
        self,
        connection: Member,
        services: Services,
        command: commands.Subscribe,
        stream: int,
        topics: JournaledTopics,
    ) -> None:
        self._connection = connection
        self._services = services
        self._journal = services.facilities.journal
        self._command = command
        self._stream = stream
        self._topics = topics
        self._first: list[OutboxEntry] = []
        self._resumed: replies.Resumed | None = None

    async def run(self, begin: Begin) -> None:
        """Make ready, and `begin`; or say what is wrong."""
        connection, command = self._connection, self._command
        try:
            position = await self._position()
            if connection.closed:
                return
            if position is not None:
                bookmark = self._bookmark(position - 1) if position > 1 else "0"
                command = msgspec.structs.replace(command, bookmark=bookmark)
            begin(connection, command, self._stream)
            for entry in self._first:
                if entry.stream in connection.backlog.recipients:
                    connection.backlog.offer(entry)
            if self._resumed is not None:
                connection.reply(self._resumed)
            connection.backlog.send()
        except (ClientError, JournalError) as error:
            connection.reply(replies.error_reply(error, of="subscribe", id=command.id))
        except Exception:
            # Nobody awaits this: a client that is never answered would wait in silence.
            log.exception("subscribe_failed", client=connection.name, id=command.id)
            connection.close("internal_error", "What this client asked to subscribe to couldn't be prepared.")

    async def _position(self) -> int | None:
        """The first record that it gets from the log; None: what its bookmark says."""
        command, pattern = self._command, TopicPattern.parse(self._command.topic)
        if self._topics.covers_nothing(pattern):
            raise ClientError(
                "not_journaled",
                f"{command.topic} isn't journaled: nothing of it is kept for a subscription.",
                "Have the topic journaled, or leave durable, snapshot_key and resume out.",
            )
        chosen = compile_filter(command.filter) if command.filter else None
        granted = self._connection.rights.subscription(pattern, chosen)
        subscription = Subscription(
            None, command.id, self._stream, granted.pattern, granted.filter, self._topics.decoder_of
        )
        if command.snapshot_key is not None:
            parse_key(command.snapshot_key)  # a policy may conflate by it later, whatever else is asked for
        if command.durable is not None:
            begins_at = await self._begins_at()
            client = self._connection.name
            return (await self._services.durables.claim(client, command, lambda: begins_at)).position
        newest = self._services.frontier.durable
        if command.resume is not None:
            return await self._resume(command.resume, subscription, newest)
        if command.bookmark is not None:
            # With a bookmark the log itself is delivered; the key only says what conflation would keep.
            return None
        return await self._fold(subscription, look_back(self._journal, newest), newest, "snapshot")

    async def _begins_at(self) -> int:
        """The first record of a durable subscription that is new: from the bookmark given, or now; a moment to come is now."""
        now = self._services.frontier.durable + 1
        if self._command.bookmark is None:
            return now
        span = self._services.subscribing.span_of(self._command)
        if not span.not_before:
            return span.first
        reader = self._services.facilities.reader
        return min(await reader.run(self._journal.sequence_at, span.not_before), now)

    async def _resume(self, resume: str, subscription: Subscription[object], newest: int) -> int:
        command, now = self._command, self._services.facilities.clock.now_ns()
        listed = self._services.tokens.read(resume, self._connection.name, now // 1_000_000)
        held = next((held for held in listed if held.id == command.id), None)
        if held is None or (held.topic, held.filter) != (command.topic, command.filter):
            raise ClientError(
                "bad_resume_token",
                f"The token doesn't know the subscription {command.id} of {command.topic}.",
                "Subscribe with the id, topic and filter it had.",
            )
        how = command.resume_how or "log"
        if how == "conflated":
            first = max(held.position, self._journal.first_sequence)
            return await self._fold(subscription, first, newest, how)
        if how == "log":
            self._say(how, 0, held.position, newest, exact=True)
            return held.position
        # Nothing of the interval is delivered; how much that is, is counted where the log still has it.
        first = max(held.position, look_back(self._journal, newest))
        stretch, _ = await fold(self._services.facilities, subscription, first, newest, lambda topic, body: 0)
        uncounted = first - held.position
        self._say(how, stretch.matched + uncounted, held.position, newest, exact=not uncounted)
        return newest + 1

    async def _fold(self, subscription: Subscription[object], first: int, newest: int, how: str) -> int:
        """The last record per key of a stretch, then the log behind it."""
        key_of = parse_key(self._command.snapshot_key or "topic").of(subscription.decoder_of)
        stretch, self._first = await fold(self._services.facilities, subscription, first, newest, key_of)
        missed = stretch.matched - sum(entry.count for entry in self._first)
        whole = first <= self._journal.first_sequence or how != "snapshot"
        self._say(how, missed, first, newest, exact=whole)
        return newest + 1

    def _say(self, how: str, missed: int, first: int, newest: int, *, exact: bool) -> None:
        ends = (self._bookmark(first), self._bookmark(newest)) if first <= newest else ("", "")
        self._resumed = replies.Resumed(
            id=self._command.id, how=how, missed=missed, exact=exact, first=ends[0], last=ends[1]
        )

    def _bookmark(self, sequence: int) -> str:
        return str(Bookmark(self._services.facilities.instance, sequence))
