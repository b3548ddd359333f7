"""Subscriptions of connected clients: where they start, their hand-over to live delivery, their end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec import structs

from broker_core.bookmark import Range, parse_bookmark
from broker_core.errors import ClientError
from broker_core.filters import compile_filter
from broker_core.filters.message_types import Decoder
from broker_core.protocols import commands, replies
from broker_core.runtime.client_subscription import ClientSubscription
from broker_core.runtime.connection import Connection
from broker_core.runtime.holding import Conflating
from broker_core.runtime.replay_telling import REMOVED, gap_reply
from broker_core.runtime.resume_points import resume_points
from broker_core.subscriptions.conflation import parse_conflation
from broker_core.subscriptions.pace import parse_rate
from broker_core.subscriptions.registry import Registry
from broker_core.subscriptions.span import Found, Log, Span, find_span
from broker_core.subscriptions.subscription import Subscription
from broker_core.subscriptions.topics import TopicPattern

if TYPE_CHECKING:
    from broker_core.runtime.host import Host


class Subscribing:
    """An instance's subscriptions. `registry` holds the live ones; those that replay aren't in it yet."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.registry = Registry(self._decoder_of)
        # Those with durability `live`: they get a group before it is on disk. They enter with a whole group.
        self._early = Registry(self._decoder_of)
        self._entering: list[ClientSubscription] = []
        self._bookmarked: set[ClientSubscription] = set()
        self._news = asyncio.Event()

    def _decoder_of(self, topic: str) -> Decoder | None:
        return self._host.journaled.decoder_of(topic)

    def add(self, connection: Connection, command: commands.Subscribe, stream: int) -> None:
        """Start a subscription; ClientError bad_pattern, bad_filter, bad_bookmark, not_journaled or bookmark_gone."""
        pattern = TopicPattern.parse(command.topic)
        chosen = compile_filter(command.filter) if command.filter else None
        pattern, chosen, narrowed = connection.rights.subscription(pattern, chosen)
        kept = self._host.managed.find(connection.name, command) if command.managed else None
        if kept is not None:
            # What operators have made of it since counts, and not what the client asked for at first.
            command = structs.replace(
                command, rate=kept.rate, rate_max_gap=kept.rate_max_gap, conflation=kept.conflation,
                conflation_key=kept.conflation_key, paused=kept.paused,
            )
        rate = parse_rate(command.rate, command.rate_max_gap) if command.rate else None
        conflation = parse_conflation(command.conflation, command.conflation_key) if command.conflation else None
        found = self._find(command, pattern) if kept is None else self._host.managed.continued(kept, command)
        if command.managed and kept is None and found is not None:
            kept = self._host.managed.make(connection.name, command, found.span)
        target = ClientSubscription(
            connection, Subscription(None, command.id, stream, pattern, chosen, self._decoder_of), command.topic, command.filter,
            command.bookmark, found is not None, timestamp=command.timestamp,
            durability="live" if command.durability == "live" else "persisted", rate=rate,
        )
        if conflation is not None:
            target.conflating = Conflating(self._host, target, conflation)
        target.subscription.client = target
        if narrowed:
            connection.reply(_notice_narrowed(command, pattern))
        connection.add(target, command)
        if found is None:
            connection.reply(replies.Ack(ack="processed", of="subscribe", id=command.id, stream=stream))
            self.registry.add(target.subscription)
            return
        if kept is not None:
            self._host.managed.opened(kept, target)
        self._bookmarked.add(target)
        self._say_where(target, command, found)
        self._begin(target, found.span, command.paused)

    def position_of(self, command: commands.Subscribe) -> int:
        """The first sequence a bookmark stands for, as near as can be said without reading the log."""
        found = self._find(command, TopicPattern.parse(command.topic))
        return found.span.first if found is not None else self._host.dispatched_sequence + 1

    def span_of(self, command: commands.Subscribe) -> Span:
        """What of the log a bookmark names; ClientErrors as `add`."""
        if command.rate:
            parse_rate(command.rate, command.rate_max_gap)
        if command.conflation:
            parse_conflation(command.conflation, command.conflation_key)
        if command.filter:
            compile_filter(command.filter)
        found = self._find(command, TopicPattern.parse(command.topic))
        assert found is not None
        return found.span

    def continue_from_journal(self, target: ClientSubscription) -> None:
        """Forget what waits of a live subscription and read it from the log instead, when all of it is there."""
        backlog, stream = target.connection.backlog, target.subscription.stream
        if target.replaying or not target.journaled_only:
            return
        taken = backlog.take_back(stream)
        if not taken:
            return
        target.delivered_messages -= sum(entry.count for entry in taken)
        if not self.registry.remove(target.subscription):
            self._early.remove(target.subscription)
        target.next_sequence = taken[0].batch.first_sequence
        target.span = Span(target.next_sequence)
        self._host.steering.start([target])

    def _find(self, command: commands.Subscribe, pattern: TopicPattern) -> Found | None:
        """Where a bookmark subscription begins and ends; None for one without a bookmark."""
        if command.bookmark is None:
            return None
        if self._host.journaled.covers_nothing(pattern):
            raise ClientError("not_journaled", f"Nothing of {command.topic} is journaled, so there is nothing to replay.",
                              "Subscribe without a bookmark, or have the topic journaled.")
        asked = parse_bookmark(command.bookmark)
        if command.durability == "live" and isinstance(asked, Range):
            raise ClientError("bad_command", "live speaks of what follows a replay, and nothing follows a range.",
                              "Leave durability out, or the end of the range.", field="durability")
        journal = self._host.journal
        found = find_span(asked, Log(self._host.instance, journal.first_sequence, self._host.dispatched_sequence))
        if found.missing is not None and command.on_gap == "error":
            first, last = (f"{self._host.instance}|{sequence}|" for sequence in found.missing)
            raise ClientError("bookmark_gone", f"The records {first} to {last} were removed from the log.",
                              "Start from 0, the oldest record, or leave on_gap out.",
                              **{"from": first, "to": last, "oldest": f"{self._host.instance}|{journal.first_sequence}|"})
        return found

    def _say_where(self, target: ClientSubscription, command: commands.Subscribe, found: Found) -> None:
        connection, span = target.connection, found.span
        connection.reply(replies.Ack(
            ack="processed", of="subscribe", id=command.id, stream=target.subscription.stream,
            # Where it starts, so that a client that comes back before its first record misses nothing.
            bookmark=None if span.not_before else connection.bookmark_before(span.first),
            durability=target.durability,
        ))
        if found.missing is not None:
            connection.reply(gap_reply(self._host.instance, command.id, *found.missing, REMOVED))
        if found.unknown:
            connection.reply(_notice_unknown(command, found))
        if command.durability == "fully_durable":
            connection.reply(replies.Notice(
                code="fully_durable_is_persisted", details={"id": command.id},
                message="This instance doesn't replicate: fully_durable is the same as persisted here.",
            ))

    def _begin(self, target: ClientSubscription, span: Span, paused: bool) -> None:
        target.span, target.caught_up_at = span, self._host.dispatched_sequence
        target.next_sequence, target.begun = span.first, span.not_before == 0
        target.acknowledged = span.first - 1
        if paused:
            self._host.steering.hold(target)
        elif span.first > self._host.dispatched_sequence and target.begun and not span.ends and not (target.rate or target.managed):
            self.make_live(target)
            target.completed = True
            target.connection.reply(replies.Ack(ack="completed", of="subscribe", id=target.subscription.id))
        else:
            self._host.steering.start([target])

    def make_live(self, target: ClientSubscription) -> None:
        """Hand a subscription over to live delivery. No await may stand between its last look and this."""
        target.replaying, target.replay = False, None
        self.registry.add(target.subscription)
        if target.conflating is not None:
            target.conflating.arm()
        if target.durability == "live":
            self._entering.append(target)

    def early(self) -> Registry | None:
        """Who gets a group that has just been stamped before it is on disk; None when nobody does.

        Everything before this group has been dispatched, so this is when a subscription can change over.
        """
        entering, self._entering = self._entering, []
        for target in entering:
            if self.registry.remove(target.subscription):
                self._early.add(target.subscription)
        return self._early if len(self._early) else None

    def remove(self, target: ClientSubscription) -> None:
        """End a subscription, live or replaying."""
        self._bookmarked.discard(target)
        self._host.managed.closed(target)
        if target.replay is not None:
            target.replay.leave(target)
        elif not target.replaying:
            self.take_out(target)
        if target.conflating is not None:
            target.conflating.close()
        target.unpin()
        target.replaying = target.paused = False

    def take_out(self, target: ClientSubscription) -> None:
        """End a subscription's live delivery."""
        if not self.registry.remove(target.subscription):
            self._early.remove(target.subscription)

    def ended(self, target: ClientSubscription) -> None:
        """A replay has come to its end point."""
        self._bookmarked.discard(target)
        self._host.managed.completed(target)
        target.connection.drop(target)

    # What those that follow the log wait for.

    def dispatched(self) -> None:
        """More of the log may be read."""
        self._news.set()
        self._news.clear()

    async def news(self) -> None:
        """Wait until more of the log may be read."""
        await self._news.wait()

    # What bookmark subscriptions are told.

    def acknowledge(self) -> None:
        """Tell those whose resume point has moved. Once a second, so that it costs nothing."""
        for target, sequence in resume_points(self._bookmarked, self._host.dispatched_sequence):
            if sequence > target.acknowledged:
                target.acknowledged = sequence
                target.connection.reply(replies.Ack(
                    ack="persisted", of="subscribe", id=target.subscription.id,
                    bookmark=target.connection.bookmark_before(sequence + 1),
                ))

    def not_stored(self, first: int, last: int) -> None:
        """A write failed: who got these records before they were on disk must know that the log doesn't have them."""
        for target in [target for target in self._bookmarked if target.durability == "live" and not target.replaying]:
            target.connection.reply(replies.Notice(
                code="not_stored", message="Records that were delivered to you weren't stored: the disk refused them.",
                details={"id": target.subscription.id, "from": target.connection.bookmark_before(first + 1),
                         "to": target.connection.bookmark_before(last + 1)},
            ))


def _notice_unknown(command: commands.Subscribe, found: Found) -> replies.Notice:
    names = ", ".join(map(str, found.unknown[:10]))
    then = "it starts now" if found.from_now else "they were left out"
    return replies.Notice(
        code="bookmark_unknown", message=f"{names} was never in this log; in the subscription {command.id} {then}.",
        details={"id": command.id, "unknown": [str(bookmark) for bookmark in found.unknown[:100]]},
    )


def _notice_narrowed(command: commands.Subscribe, pattern: TopicPattern) -> replies.Notice:
    return replies.Notice(
        code="narrowed", message=f"You aren't entitled to all of {command.topic}: {command.id} gets {pattern.text}.",
        details={"id": command.id, "topics": pattern.text},
    )
