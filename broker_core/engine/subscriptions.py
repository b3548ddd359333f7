"""Subscriptions of connected clients: how they start, switch to live delivery, and end."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from broker_core.bookmark import Bookmark, BookmarkRange, parse_bookmark
from broker_core.config.preset_settings import MAX_SUBSCRIPTIONS
from broker_core.connections.connection_view import ConnectionView
from broker_core.connections.ports import ConnectionServices
from broker_core.connections.subscription_setup import (
    SubscribePreparation,
    find_foreign_bookmark,
    needs_end,
    needs_preparation,
)
from broker_core.delivery.account import DiscardCause
from broker_core.delivery.conflation import SubscriptionConflator, parse_conflation
from broker_core.delivery.loss_ledger import DiscardTally
from broker_core.delivery.ports import MatchReceiver
from broker_core.errors import ClientError
from broker_core.filters import compile_filter
from broker_core.filters.message_types import Decoder
from broker_core.protocols import commands, replies
from broker_core.replay.client_subscription import REMOVED, ClientSubscription, resume_points
from broker_core.replay.cursor import Cursor, CursorEvent
from broker_core.replay.rate_limit import parse_rate
from broker_core.replay.span import ReplaySpan, SpanResult, find_span, is_reversed
from broker_core.subscriptions.journaled_topics import JournaledTopics
from broker_core.subscriptions.registry import SubscriptionRegistry
from broker_core.subscriptions.subscription import TopicSubscription
from broker_core.subscriptions.topics import TopicPattern

MAX_STREAM = 65_535
"""Maximum stream number of a connection.

Numbers are never reused, so that a late delivery cannot reach the wrong subscription.
"""


class SubscriptionManager:
    """Subscriptions of an instance.

    `registry` has the subscriptions that batches are matched for: live ones, and live ones that fell behind.
    A subscription that replays from its beginning is added when it has caught up. Receivers inside the broker
    are in it, too.
    """

    def __init__(self, topics: Callable[[], JournaledTopics]) -> None:
        """Create an empty manager. `topics` returns the topics that are journaled now."""
        self._topics = topics
        self.registry = SubscriptionRegistry[MatchReceiver](self._find_decoder)
        # Subscriptions with durability `live` receive a group before it is on disk. They are added between
        # groups.
        self.early_registry = SubscriptionRegistry[MatchReceiver](self._find_decoder)
        self._joining_early: list[ClientSubscription] = []
        self._bookmark_subscriptions: set[ClientSubscription] = set()
        self.services: ConnectionServices

    def _find_decoder(self, topic: str) -> Decoder | None:
        return self._topics().decoder_of(topic)

    @property
    def _instance(self) -> str:
        return self.services.facilities.instance

    # Start.

    def subscribe(self, connection: ConnectionView, command: commands.Subscribe) -> None:
        """Start a subscription, immediately or after its preparation.

        Raises:
            ClientError: too_many_subscriptions, or an error of `_create`.
        """
        self._check(connection, command)
        if connection.last_stream >= MAX_STREAM:
            raise _too_many_error(command)
        connection.last_stream += 1
        stream = connection.last_stream
        at_end = needs_end(command, self.services, self._topics())
        foreign = find_foreign_bookmark(command, self.services)
        if at_end or needs_preparation(command) or foreign is not None:
            connection.preparing_ids.add(command.id)
            preparation = SubscribePreparation(
                connection, self.services, command, stream, self._topics(), at_end
            )
            self.services.facilities.spawn(preparation.run(self._start_prepared))
        else:
            self._start_subscription(connection, command, stream)

    def _check(self, connection: ConnectionView, command: commands.Subscribe) -> None:
        """Raise ClientError if a client may not start this subscription."""
        if len(connection.subscriptions) + len(connection.preparing_ids) >= MAX_SUBSCRIPTIONS:
            raise _too_many_error(command)
        self.services.quotas.check_subscription(connection, len(connection.preparing_ids))
        if command.shared and self.services.publishing.following is not None:
            raise ClientError(
                "not_in_a_group",
                "This broker is a member of a group, and each member would share the same records out.",
                "Use a durable subscription, or a standalone broker for shared subscriptions.",
                id=command.id,
            )
        if command.credit is not None and connection.sink.text_mode:
            raise ClientError(
                "bad_command",
                "credit counts the bytes of frames, and in text mode there are none.",
                "Leave credit out, or log on with a frame.",
                field="credit",
            )
        if command.id in connection.subscriptions or command.id in connection.preparing_ids:
            raise ClientError(
                "bad_command",
                f"There is a subscription {command.id!r} already.",
                "Unsubscribe it first, or use another id.",
                c="subscribe",
                id=command.id,
            )

    def _start_prepared(
        self,
        connection: ConnectionView,
        command: commands.Subscribe,
        stream: int,
        requested: SpanResult | None,
    ) -> None:
        """Start a subscription after its preparation.

        Others may have started meanwhile, so the checks are repeated. `requested`: see `_create`.

        Raises:
            ClientError: An error of `_check` or `_create`.
        """
        connection.preparing_ids.discard(command.id)
        try:
            self._check(connection, command)
        except ClientError as error:
            raise _with_command(command, error) from None
        self._start_subscription(connection, command, stream, requested)

    def _start_subscription(
        self,
        connection: ConnectionView,
        command: commands.Subscribe,
        stream: int,
        requested: SpanResult | None = None,
    ) -> None:
        """Start a subscription that needs no further preparation. `requested`: see `_create`.

        Raises:
            ClientError: An error of `_create`.
        """
        services, clock = self.services, self.services.facilities.clock
        try:
            target = self._create(connection, command, stream, requested)
        except ClientError as error:
            raise _with_command(command, error) from None
        if command.durable is not None and command.shared:
            services.durables.on_consumer_added(target, command.durable, command.max_deliveries)
        elif command.durable is not None:
            services.durables.on_subscribed(target, command.durable)
        if command.lease_ms is not None:
            services.leases.begin(connection, target, command.lease_ms, clock.monotonic_ms())
        connection.record_event("subscribe", connection.backlog.state.value, target)

    def _create(
        self,
        connection: ConnectionView,
        command: commands.Subscribe,
        stream: int,
        requested: SpanResult | None = None,
    ) -> ClientSubscription:
        """Create a subscription and start its delivery.

        `requested`: start that the client's bookmark names, if the command now has a stored position instead.

        Raises:
            ClientError: bad_pattern, bad_filter, bad_bookmark, not_journaled, bookmark_gone, or an error of
                managed replays.
        """
        pattern = TopicPattern.parse(command.topic)
        chosen = compile_filter(command.filter) if command.filter else None
        pattern, chosen, narrowed = connection.rights.check_subscribe(pattern, chosen)
        managed, facilities = self.services.managed, self.services.facilities
        replay = managed.find(connection.name, command) if command.managed else None
        if replay is not None:
            # Settings that operators have changed since replace those that the client requested.
            command = structs.replace(
                command,
                rate=replay.rate,
                rate_max_gap=replay.rate_max_gap,
                conflation=replay.conflation,
                conflation_key=replay.conflation_key,
                paused=replay.paused,
            )
        if command.paused:
            self.services.quotas.check_pinned(connection, connection.name)
        rate = parse_rate(command.rate, command.rate_max_gap) if command.rate else None
        conflation = (
            parse_conflation(command.conflation, command.conflation_key) if command.conflation else None
        )
        start = None
        if not command.shared:  # a shared subscription reads the log for all its consumers
            start = (
                self._find_span(command, pattern) if replay is None else managed.resume_start(replay, command)
            )
        target = ClientSubscription(
            connection,
            command.topic,
            command.filter,
            command.bookmark,
            Cursor(start.span if start is not None else None),
            timestamp=command.timestamp,
            durability=self._durability(command),
            rate=rate,
        )
        subscription = target.subscription = TopicSubscription(
            target, command.id, stream, pattern, chosen, self._find_decoder
        )
        if conflation is not None:
            target.conflating = SubscriptionConflator(
                facilities, connection.backlog, target, subscription, conflation
            )
        if narrowed:
            connection.reply(_notice_narrowed(command, pattern))
        connection.add(target, command)
        if start is None:
            connection.reply(replies.Ack(ack="processed", of="subscribe", id=command.id, stream=stream))
            self._report_start(target, command, requested)
            target.cursor.apply_event(CursorEvent.CAUGHT_UP)
            if not command.shared:
                self.registry.add(subscription)
            return target
        if replay is not None:
            managed.on_subscribed(replay, target)
        self._bookmark_subscriptions.add(target)
        self._acknowledge_start(target, command, start, requested or start)
        self._start(target, start.span, command.paused)
        return target

    def _durability(self, command: commands.Subscribe) -> commands.Durability:
        """Return the durability in force.

        `fully_durable` equals `persisted` where no confirmation is required.
        """
        if command.durability == "fully_durable":
            return "fully_durable" if self.services.confirmations.is_required else "persisted"
        return command.durability or "persisted"

    def find(self, command: commands.Subscribe) -> SpanResult:
        """Return the part of the log that a subscribe command's bookmark names.

        Raises:
            ClientError: See `_create`.
        """
        if command.rate:
            parse_rate(command.rate, command.rate_max_gap)
        if command.conflation:
            parse_conflation(command.conflation, command.conflation_key)
        if command.filter:
            compile_filter(command.filter)
        found = self._find_span(command, TopicPattern.parse(command.topic))
        assert found is not None
        return found

    def is_durable(self, target: ClientSubscription) -> bool:
        """Return whether the log stores records of a subscription. True for patterns, where it is unknown."""
        return target.subscription.pattern.exact is None or self._topics().is_journaled(target.topic)

    def position(self, target: ClientSubscription) -> int:
        """Return the sequence of the first record that a subscription needs again."""
        return target.position(self.services.frontier.durable)

    def _find_span(self, command: commands.Subscribe, pattern: TopicPattern) -> SpanResult | None:
        """Return where a bookmark subscription starts and ends; None for one without a bookmark."""
        if command.bookmark is None:
            return None
        if self._topics().covers_nothing(pattern):
            raise ClientError(
                "not_journaled",
                f"Nothing of {command.topic} is journaled, so there is nothing to replay.",
                "Subscribe without a bookmark, or have the topic journaled.",
            )
        bookmark = parse_bookmark(command.bookmark)
        if command.durability == "live" and isinstance(bookmark, BookmarkRange):
            raise ClientError(
                "bad_command",
                "live applies after a replay, but no live delivery follows a range.",
                "Leave durability out, or the end of the range.",
                field="durability",
            )
        instance, journal = self._instance, self.services.facilities.journal
        bounds = self.services.frontier.bounds(instance, journal.begins_at, journal.removed_intervals())
        found = find_span(bookmark, bounds)
        if isinstance(bookmark, BookmarkRange) and is_reversed(found.span, journal.segments()):
            raise ClientError(
                "bad_bookmark",
                f"{command.bookmark!r} isn't a usable bookmark: it ends before it begins.",
                "Exchange its ends.",
            )
        gap = self._find_gap(found) if command.on_gap == "error" else None
        if gap is not None:
            first, last = (f"{instance}|{sequence}|" for sequence in gap)
            raise ClientError(
                "bookmark_gone",
                f"The records {first} to {last} aren't in the log, or were removed.",
                "Start from 0, the oldest record, or leave on_gap out.",
                **{"from": first, "to": last, "oldest": f"{instance}|{journal.first_sequence}|"},
            )
        return found

    def _find_gap(self, found: SpanResult) -> tuple[int, int] | None:
        """Return the first interval of a span that the log lacks; None if it has all.

        Records are missing because they were removed or because of a missing range.
        """
        span, journal = found.span, self.services.facilities.journal
        segments = journal.segments()
        if found.missing is not None or not segments:
            return found.missing
        at = {one.first_sequence: one for one in segments}
        for hole in journal.missing_ranges:
            segment = at.get(hole.segment)
            after = segment is not None and segment.last_at < span.not_before
            if hole.last_sequence >= span.first and hole.first_sequence <= span.last and not after:
                return max(hole.first_sequence, span.first), min(hole.last_sequence, span.last)
        return None

    def _report_start(
        self, target: ClientSubscription, command: commands.Subscribe, found: SpanResult | None
    ) -> None:
        """Send the gap between the requested start and the log, and the notice about unknown bookmarks."""
        if found is None:
            return
        if found.missing is not None:
            target.send_gap(self._instance, *found.missing, REMOVED)
        if found.unknown:
            target.peer.reply(_notice_unknown(command, found))

    def _acknowledge_start(
        self,
        target: ClientSubscription,
        command: commands.Subscribe,
        found: SpanResult,
        requested: SpanResult,
    ) -> None:
        """Acknowledge a subscribe command, with the start of the subscription and notices about it.

        `requested`: start that the client's bookmark names.
        """
        peer, span = target.peer, found.span
        peer.reply(
            replies.Ack(
                ack="processed",
                of="subscribe",
                id=command.id,
                stream=target.stream,
                # The start, so that a client that reconnects before its first record misses nothing.
                bookmark=None if span.not_before else str(Bookmark(self._instance, span.first - 1)),
                durability=target.durability,
            )
        )
        self._report_start(target, command, requested)
        if command.durability == "fully_durable" and target.durability == "persisted":
            reason = (
                "doesn't replicate"
                if self.services.publishing.following is None
                else "waits for no other member and no destination"
            )
            peer.reply(
                replies.DecisionNotice(
                    code="fully_durable_is_persisted",
                    details={"id": command.id},
                    message=f"This instance {reason}: fully_durable is the same as persisted here.",
                )
            )

    def _start(self, target: ClientSubscription, span: ReplaySpan, paused: bool) -> None:
        """Start delivery: paused, live, or by reading the log."""
        durable, control = self.services.frontier.durable, self.services.control
        target.caught_up_at, target.reported_upto = durable, span.first - 1
        if paused:
            control.pause_at(target)
        elif self.services.frontier.end is None and self._starts_live(target, span, durable):
            self.make_live(target)
            target.send_completed()
        else:
            control.start([target])

    @staticmethod
    def _starts_live(target: ClientSubscription, span: ReplaySpan, durable: int) -> bool:
        """Return whether no record of the log precedes live delivery.

        False for an offlined client, whose subscriptions wait for their slot among replays. Also false for a
        bookmark ahead of the disk: its client has records that are dispatched when they are durable.
        """
        needs_log = span.is_bounded or target.rate or target.managed or not target.cursor.has_reached_start
        needs_log = needs_log or target.durability == "fully_durable"
        return span.first == durable + 1 and not needs_log and target.peer.backlog.offline is None

    # Live delivery and end. Implements `replay.replay.LiveHandover`.

    def make_live(self, target: ClientSubscription) -> None:
        """Hand a subscription over to live delivery.

        There must be no await between the caller's last check of the log and this call; otherwise records are
        lost.
        """
        target.cursor.apply_event(CursorEvent.CAUGHT_UP)
        target.serving_replay = None
        self._discard_missing(target)
        self.registry.add(target.subscription)
        if target.conflating is not None:
            target.conflating.start_timer()
        if target.durability == "live":
            self._joining_early.append(target)

    def _discard_missing(self, target: ClientSubscription) -> None:
        """Count records as lost that were matched for a subscription and that the log no longer had.

        Call it when the subscription has read everything that was matched for it.
        """
        account = target.account
        missing, first, last = account.drop_log_only(), account.first_in_log, account.last_matched
        if missing.messages:
            tally = DiscardTally()
            tally.add(missing.messages, missing.nbytes, first, last)
            target.peer.backlog.discard(target.stream, tally, DiscardCause.REMOVED, "")

    @property
    def has_early_subscriptions(self) -> bool:
        """Whether any subscription receives records before they are on disk, or is about to."""
        return bool(self._joining_early) or len(self.early_registry) > 0

    def pending_live_switch(self) -> SubscriptionRegistry[MatchReceiver] | None:
        """Return the subscriptions that join `early_registry` from the next group on; None if there are none.

        Durable records have been dispatched to them, and no later ones. The caller must first deliver to them
        the batches that are in flight to the disk.
        """
        if not self._joining_early:
            return None
        entering, self._joining_early = self._joining_early, []
        new = SubscriptionRegistry[MatchReceiver](self._find_decoder)
        for target in entering:
            if target.cursor.is_live and self.registry.remove(target.subscription):
                self.early_registry.add(target.subscription)
                new.add(target.subscription)
        return new

    def remove_from_live(self, target: ClientSubscription) -> None:
        """End a subscription's live delivery."""
        if not self.registry.remove(target.subscription):
            self.early_registry.remove(target.subscription)

    def on_fallback(self, target: ClientSubscription) -> int:
        """Switch a subscription from live delivery to reading the log.

        New records are counted for it when they are durable, because it cannot read them earlier. Returns the
        sequence up to which it was given every record.
        """
        if not self.early_registry.remove(target.subscription):
            return self.services.frontier.durable
        self.registry.add(target.subscription)
        return max(self.services.frontier.durable, self.services.frontier.newest_shown)

    def remove(self, target: ClientSubscription) -> None:
        """Stop serving a subscription, live or from the log, because it has ended."""
        self._bookmark_subscriptions.discard(target)
        serving, target.serving_replay = target.serving_replay, None
        if serving is not None:
            serving.remove_subscription(target)
        self.remove_from_live(target)
        target.cursor.apply_event(CursorEvent.END)
        if target.conflating is not None:
            target.conflating.close()
        target.unpin()

    def on_replay_ended(self, target: ClientSubscription) -> None:
        """End a subscription whose replay has reached its end point."""
        target.serving_replay = None  # the replay removes the subscription itself
        self.services.managed.on_completed(target)
        connection = self.services.roster.clients[target.peer.name]
        connection.end(target, None)

    # Notices to bookmark subscriptions.

    def acknowledge(self) -> None:
        """Send its resume point to each bookmark subscription whose point has moved.

        Called once a second, to keep the cost low.
        """
        for target, sequence in resume_points(self._bookmark_subscriptions, self.services.frontier.durable):
            if sequence > target.reported_upto:
                target.reported_upto = sequence
                target.peer.reply(
                    replies.Ack(
                        ack="persisted",
                        of="subscribe",
                        id=target.id,
                        bookmark=str(Bookmark(self._instance, sequence)),
                    )
                )

    def on_write_failed(self, first: int, last: int) -> None:
        """Notify subscriptions with durability `live` that the log does not have records they received."""
        for target in [
            target
            for target in self._bookmark_subscriptions
            if target.durability == "live" and (target.cursor.is_live or target.cursor.next_sequence > first)
        ]:
            target.peer.reply(
                replies.DecisionNotice(
                    code="not_stored",
                    message="Records that were delivered to you weren't stored: the disk refused them.",
                    details={
                        "id": target.id,
                        "from": str(Bookmark(self._instance, first)),
                        "to": str(Bookmark(self._instance, last)),
                    },
                )
            )


def _with_command(command: commands.Subscribe, error: ClientError) -> ClientError:
    """Return the error with the command that it answers."""
    error.details.setdefault("c", "subscribe")
    error.details.setdefault("id", command.id)
    return error


def _too_many_error(command: commands.Subscribe) -> ClientError:
    """Return the error for one subscription too many."""
    return ClientError(
        "too_many_subscriptions",
        f"A client has {MAX_SUBSCRIPTIONS} subscriptions at most.",
        "Use topic patterns, or a second client.",
        c="subscribe",
        id=command.id,
    )


def _notice_unknown(command: commands.Subscribe, found: SpanResult) -> replies.DecisionNotice:
    """Return the notice about bookmarks that were never in this log."""
    names = ", ".join(map(str, found.unknown[:10]))
    then = "it starts now" if found.from_now else "they were left out"
    return replies.DecisionNotice(
        code="bookmark_unknown",
        message=f"{names} was never in this log; in the subscription {command.id} {then}.",
        details={"id": command.id, "unknown": [str(bookmark) for bookmark in found.unknown[:100]]},
    )


def _notice_narrowed(command: commands.Subscribe, pattern: TopicPattern) -> replies.DecisionNotice:
    """Return the notice that access rules narrow a subscription."""
    return replies.DecisionNotice(
        code="narrowed",
        message=f"You aren't entitled to all of {command.topic}: {command.id} gets {pattern.text}.",
        details={"id": command.id, "topics": pattern.text},
    )
