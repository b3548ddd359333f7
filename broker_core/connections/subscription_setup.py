"""Setup of subscriptions: acknowledgement windows and credit, and subscribes that need preparation.

A durable subscription, a managed replay, a resume token and a snapshot need preparation. Each ends as an
ordinary subscribe with a bookmark, and with deliveries before it. The slow part (disk, log) happens before
the subscription exists. Then, in one event-loop iteration, the subscription is added, its first deliveries
are queued, and the log continues behind the last record that they include. So there is no gap and no
duplicate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import msgspec
import structlog

from broker_core.bookmark import (
    AfterBookmarks,
    Bookmark,
    BookmarkRange,
    Start,
    bookmark_sequence,
    format_bookmark,
    parse_bookmark,
)
from broker_core.connections.connection_view import ConnectionView
from broker_core.connections.ports import ConnectionServices
from broker_core.delivery.backlog import Backlog
from broker_core.delivery.entries import OutboxEntry
from broker_core.delivery.subscription_queues import SubscriptionQueue
from broker_core.delivery.window import DEFAULT_PREFETCH, AckMode, AckWindow
from broker_core.errors import ClientError, JournalError
from broker_core.filters import compile_filter
from broker_core.names import link_client_name
from broker_core.protocols import commands, replies
from broker_core.replay.client_subscription import ClientSubscription
from broker_core.replay.conflated_snapshot import fold_latest, fold_start
from broker_core.replay.positions.file import SHARED_OWNER
from broker_core.replay.span import SpanResult, depends_on_end, translate_bookmarks
from broker_core.subscriptions.journaled_topics import JournaledTopics
from broker_core.subscriptions.keys import parse_key
from broker_core.subscriptions.subscription import TopicSubscription
from broker_core.subscriptions.topics import TopicPattern


def open_window(backlog: Backlog, stream: int, command: commands.Subscribe, prefetch: int | None) -> int:
    """Create the queue of a subscription with acknowledgements or credit.

    Return its window size, 0: no acknowledgements.

    A durable subscription acknowledges unless it says otherwise, because it resumes with the first
    unacknowledged record. `prefetch` is the policy's default.
    """
    word = command.ack or ("auto" if command.durable else None)
    window = None
    if word is not None and word != "none":
        window = AckWindow(AckMode(word), command.prefetch or prefetch or DEFAULT_PREFETCH)
    if window is not None or command.credit is not None:
        queue = backlog.queues[stream] = SubscriptionQueue(stream, window)
        queue.credit = command.credit
    return window.prefetch if window is not None else 0


def grant_credit(connection: ConnectionView, now_ns: int, command: commands.GrantCredit) -> None:
    """Execute a `credit` command.

    Raises:
        ClientError: unknown_subscription.
    """
    target = connection.subscriptions.get(command.id)
    queue = connection.backlog.queues.get(target.stream) if target is not None else None
    if queue is None or queue.credit is None:
        raise ClientError(
            "unknown_subscription",
            f"There is no subscription {command.id!r} with credit.",
            'Subscribe with "credit":1048576.',
        )
    queue.set_credit(command.upto, now_ns)
    connection.backlog.resume_sending()


def reject_message(
    connection: ConnectionView,
    services: ConnectionServices,
    target: ClientSubscription,
    number: int,
    *,
    for_good: bool = False,
) -> None:
    """Reject a message of a subscription with acknowledgements; in a cumulative mode also all before it.

    Messages of a shared subscription go to another consumer, unless `for_good`.

    Raises:
        ClientError: bad_ack; unknown_subscription, when it has no acknowledgements.
    """
    _window(connection, target, target.id)
    sequences = _sequences(connection, target, number, number)
    connection.backlog.reject(target.stream, number)
    if target.shared is not None:
        target.shared.on_returned(target, sequences, is_permanent=for_good)
    connection.backlog.resume_sending()
    services.judging.on_acknowledged(connection, target)


def acknowledge(
    connection: ConnectionView, services: ConnectionServices, command: commands.Acknowledge
) -> None:
    """Execute an `ack` command. Numbers before a wrong one are acknowledged.

    Raises:
        ClientError: unknown_subscription, bad_ack or bad_bookmark.
    """
    target = connection.subscriptions.get(command.id)
    target, window = _window(connection, target, command.id)
    try:
        for first, last in _numbers(window, command, services.facilities.instance):
            sequences = _sequences(connection, target, first, last)
            connection.backlog.acknowledge(target.stream, first, last)
            if target.shared is not None:
                target.shared.on_acknowledged(target, sequences)
    finally:
        connection.backlog.resume_sending()
        services.judging.on_acknowledged(connection, target)


def _window(
    connection: ConnectionView, target: ClientSubscription | None, id: str
) -> tuple[ClientSubscription, AckWindow]:
    """Return a subscription and its window.

    Raises:
        ClientError: unknown_subscription, also when the subscription has no window.
    """
    queue = connection.backlog.queues.get(target.stream) if target is not None else None
    if target is None or queue is None or queue.window is None:
        raise ClientError(
            "unknown_subscription",
            f"There is no subscription {id!r} with acknowledgements.",
            'Subscribe with "ack":"client".',
        )
    return target, queue.window


def _sequences(connection: ConnectionView, target: ClientSubscription, first: int, last: int) -> list[int]:
    """Return the sequences of message numbers of a shared subscription; [] for other subscriptions."""
    queue = connection.backlog.queues.get(target.stream)
    if target.shared is None or queue is None or queue.window is None:
        return []
    return queue.window.sequences(first, last)


def _numbers(window: AckWindow, command: commands.Acknowledge, instance: str) -> Iterator[tuple[int, int]]:
    """Yield the ranges of message numbers that an `ack` command names."""
    if command.upto is not None:
        yield command.upto, command.upto
    elif command.bookmark is not None:
        sequence = bookmark_sequence(command.bookmark, instance)
        if sequence is None:
            sentence = f"{command.bookmark[:80]!r} isn't the bookmark of a message."
            raise ClientError("bad_ack", sentence, "Acknowledge by upto or numbers.")
        number = window.number_of(sequence)
        if number:
            yield number, number
    yield from command.numbers


log = structlog.get_logger("sluice.subscribe")
Begin = Callable[[ConnectionView, commands.Subscribe, int, SpanResult | None], None]
"""Function that adds a prepared subscription: connection, command, stream, and the start to report."""


def needs_preparation(command: commands.Subscribe) -> bool:
    """Return whether a subscribe needs preparation."""
    return any(
        option is not None
        for option in (command.durable, command.managed, command.snapshot_key, command.resume)
    )


def needs_end(command: commands.Subscribe, services: ConnectionServices, topics: JournaledTopics) -> bool:
    """Return whether a subscribe needs a confirmed read of the end of a log that other brokers append to.

    Live delivery begins at that end. Also, the log has what other brokers stored for a client under a name.
    """
    if services.frontier.end is None:
        return False
    if needs_preparation(command):
        return True
    journal = services.facilities.journal
    log = services.frontier.bounds(services.facilities.instance, journal.first_sequence)
    try:
        if command.bookmark is None:
            return not topics.covers_nothing(TopicPattern.parse(command.topic))
        return depends_on_end(parse_bookmark(command.bookmark), log)
    except ClientError:
        return False  # the error is reported where the bookmark is used


def find_foreign_bookmark(
    command: commands.Subscribe, services: ConnectionServices
) -> Start | BookmarkRange | None:
    """Return a subscribe's start or range if it names a site whose records a link has brought; else None."""
    try:
        requested = parse_bookmark(command.bookmark) if command.bookmark is not None else None
    except ClientError:
        return None  # the error is reported where the bookmark is used
    starts = (requested.begin, requested.end) if isinstance(requested, BookmarkRange) else (requested,)
    listed = [one for start in starts if isinstance(start, AfterBookmarks) for one in start.bookmarks]
    return requested if any(_has_records_of(services, one.origin) for one in listed) else None


def _has_records_of(services: ConnectionServices, site: str) -> bool:
    """Return whether a link has ever brought records of a site."""
    return services.publishing.publisher_sequence(link_client_name(site)) > 0


def make_behind_error(instance: str) -> ClientError:
    """Return the error of a member that can't read the end of its group's log with confirmation."""
    return ClientError(
        "behind",
        f"This broker of {instance} can't be sure that it has all of the log.",
        "Use another member of the group, or retry; the client library does both.",
    )


@dataclass(slots=True)
class SubscribePreparation:
    """Preparation of one subscribe: its first deliveries, and the notice to the client about them."""

    connection: ConnectionView
    services: ConnectionServices
    command: commands.Subscribe
    stream: int
    topics: JournaledTopics
    is_at_end: bool = False
    """Whether it needs a confirmed read of the log's end."""
    first: list[OutboxEntry] = field(default_factory=list)
    resumed: replies.ResumedNotice | None = None
    start: SpanResult | None = None
    """Start that the bookmark of a new durable subscription names. A stored one has its own position."""

    async def run(self, begin: Begin) -> None:
        """Prepare, and call `begin`; or send the client an error."""
        connection, command = self.connection, self.command
        try:
            if self.is_at_end and await self.services.frontier.confirm() is None:
                raise make_behind_error(self.services.facilities.instance)
            if (requested := find_foreign_bookmark(command, self.services)) is not None:
                bookmark = format_bookmark(await self._translate(requested))
                command = self.command = msgspec.structs.replace(command, bookmark=bookmark)
            position = await self._find_position()
            if connection.is_closed:
                return
            if position is not None:
                command = msgspec.structs.replace(command, bookmark=self._bookmark(position - 1))
            # No await from here on: the log continues behind the first deliveries, with no gap or duplicate.
            begin(connection, command, self.stream, self.start)
            for entry in self.first:
                if entry.stream in connection.backlog.recipients:
                    connection.backlog.offer(entry)
            if self.resumed is not None:
                connection.reply(self.resumed)
            connection.backlog.send()
        except (ClientError, JournalError) as error:
            if error.code == "behind":
                connection.close(error.code, error.sentence, error.fix)
                return
            connection.reply(replies.error_reply(error, of="subscribe", id=command.id))
        except Exception:
            # No caller awaits this task. A client that is never answered would wait in silence.
            log.exception("subscribe_failed", client=connection.name, id=command.id)
            connection.close("internal_error", "The broker couldn't prepare this client's subscription.")
        finally:
            connection.preparing_ids.discard(command.id)
            connection.on_prepared()

    async def _translate(self, requested: Start | BookmarkRange) -> Start | BookmarkRange:
        """Return a start or a range with bookmarks of this instance in place of those of other sites."""
        services = self.services
        if services.frontier.end is None and services.frontier.newest_shown > services.frontier.durable:
            # The client may have a record that is in flight to the disk, and the search reads the disk.
            await services.publishing.barrier()
        return await translate_bookmarks(
            requested, services.facilities, services.frontier.durable, partial(_has_records_of, services)
        )

    async def _find_position(self) -> int | None:
        """Return the first record to read from the log; None: the command's own bookmark decides."""
        if not needs_preparation(self.command):
            return None
        command, pattern = self.command, TopicPattern.parse(self.command.topic)
        if self.topics.covers_nothing(pattern):
            raise ClientError(
                "not_journaled",
                f"{command.topic} isn't journaled, so the broker stores no records for a subscription.",
                "Have the topic journaled, or leave durable, snapshot_key and resume out.",
            )
        chosen = compile_filter(command.filter) if command.filter else None
        granted = self.connection.rights.check_subscribe(pattern, chosen)
        subscription = TopicSubscription(
            None, command.id, self.stream, granted.pattern, granted.filter, self.topics.decoder_of
        )
        if command.snapshot_key is not None:
            parse_key(command.snapshot_key)  # checked now, because a policy may conflate by it later
        if command.durable is not None:
            if command.shared and (granted.narrowed or granted.filter is not chosen):
                raise ClientError(
                    "not_entitled",
                    f"You aren't entitled to all of {command.topic[:80]!r}, "
                    f"which {command.durable} shares out.",
                    "An entitlement to all of it would allow it; or subscribe without sharing.",
                )
            client = SHARED_OWNER if command.shared else self.connection.durable_owner(command.durable)
            begins_at = self.services.frontier.durable + 1
            if not self.services.durables.is_known(client, command.durable):
                begins_at = await self._find_start()
            self.services.quotas.check_durable(self.connection, client, command.durable)
            record = await self.services.durables.claim(client, command, begins_at)
            return None if command.shared else record.position
        if command.managed is not None:
            await self.services.managed.claim(self.connection.name, command, self._find_replay_span)
            return None
        newest = self.services.frontier.durable
        if command.resume is not None:
            return await self._resume(command.resume, subscription, newest)
        if command.bookmark is not None:
            # With a bookmark the log itself is delivered; the key only determines a later conflation.
            return None
        return await self._fold(
            subscription, fold_start(self.services.facilities.journal, newest), newest, "snapshot"
        )

    def _find_replay_span(self) -> SpanResult:
        """Return the span of a new managed replay.

        Raises:
            ClientError: over_quota, or an error of the command's options.
        """
        self.services.quotas.check_replay(self.connection)
        return self.services.subscribing.find(self.command)

    async def _find_start(self) -> int:
        """Return the first record of a new durable subscription: from its bookmark, or now.

        A time in the future is now.
        """
        now = self.services.frontier.durable + 1
        if self.command.bookmark is None:
            return now
        self.start = self.services.subscribing.find(self.command)
        span = self.start.span
        if not span.not_before:
            return span.first
        reader = self.services.facilities.reader
        return min(await reader.run(self.services.facilities.journal.sequence_at, span.not_before), now)

    async def _resume(self, resume: str, subscription: TopicSubscription[object], newest: int) -> int:
        """Verify a resume token. Return the first record to read from the log, as `resume_how` requires."""
        command, now = self.command, self.services.facilities.clock.now_ns()
        listed = self.services.tokens.verify(resume, self.connection.name, now // 1_000_000)
        suspended = next((suspended for suspended in listed if suspended.id == command.id), None)
        if suspended is None or (suspended.topic, suspended.filter) != (command.topic, command.filter):
            raise ClientError(
                "bad_resume_token",
                f"The token doesn't know the subscription {command.id} of {command.topic}.",
                "Subscribe with the id, topic and filter it had.",
            )
        how = command.resume_how or "log"
        if how == "conflated":
            first = max(suspended.position, self.services.facilities.journal.first_sequence)
            return await self._fold(subscription, first, newest, how)
        if how == "log":
            self._set_resumed(how, 0, suspended.position, newest, exact=True)
            return suspended.position
        # No record of the interval is delivered; the missed ones are counted where the log still has them.
        first = max(suspended.position, fold_start(self.services.facilities.journal, newest))
        matched, _ = await fold_latest(
            self.services.facilities, subscription, first, newest, lambda topic, body: 0
        )
        uncounted = first - suspended.position
        self._set_resumed(how, matched + uncounted, suspended.position, newest, exact=not uncounted)
        return newest + 1

    async def _fold(self, subscription: TopicSubscription[object], first: int, newest: int, how: str) -> int:
        """Queue the last record per key of an interval as first deliveries.

        Return the sequence behind the interval.
        """
        key_of = parse_key(self.command.snapshot_key or "topic").key_of_record(subscription.decoder_of)
        matched, self.first = await fold_latest(self.services.facilities, subscription, first, newest, key_of)
        missed = matched - sum(entry.count for entry in self.first)
        is_exact = first <= self.services.facilities.journal.first_sequence or how != "snapshot"
        self._set_resumed(how, missed, first, newest, exact=is_exact)
        return newest + 1

    def _set_resumed(self, how: str, missed: int, first: int, newest: int, *, exact: bool) -> None:
        """Set the notice about skipped records."""
        ends = (self._bookmark(first - 1), self._bookmark(newest)) if first <= newest else ("", "")
        self.resumed = replies.ResumedNotice(
            id=self.command.id, how=how, missed=missed, exact=exact, first=ends[0], last=ends[1]
        )

    def _bookmark(self, sequence: int) -> str:
        return str(Bookmark(self.services.facilities.instance, sequence))
