"""Subscriptions of connected clients: where they start, their hand-over to live delivery, their end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_core.bookmark import After, Epoch, Moment, Now, parse_bookmark
from broker_core.errors import ClientError
from broker_core.filters import compile_filter
from broker_core.protocols import commands, replies
from broker_core.runtime.connection import ClientSubscription, Connection
from broker_core.runtime.replayer import replay
from broker_core.subscriptions.registry import Registry
from broker_core.subscriptions.subscription import Subscription
from broker_core.subscriptions.topics import TopicPattern

if TYPE_CHECKING:
    from broker_core.runtime.host import Host


class Subscribing:
    """An instance's subscriptions. `registry` holds the live ones; those that replay aren't in it yet."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.registry = Registry()

    def add(self, connection: Connection, command: commands.Subscribe, stream: int) -> None:
        """Start a subscription; ClientError bad_pattern, bad_filter, bad_bookmark or not_journaled."""
        pattern = TopicPattern.parse(command.topic)
        chosen = compile_filter(command.filter) if command.filter else None
        by_bookmark = command.bookmark is not None
        start, notice = self._start(command) if by_bookmark else (self._host.dispatched_sequence + 1, None)
        if by_bookmark and pattern.exact is not None and not self._host.journaled.is_journaled(pattern.exact):
            raise ClientError("not_journaled", f"{command.topic} isn't journaled, so there is nothing to replay.",
                              "Subscribe without a bookmark, or have the topic journaled.")
        target = ClientSubscription(
            connection, Subscription(None, command.id, stream, pattern, chosen), command.topic, command.filter,
            command.bookmark, by_bookmark, next_sequence=start,
        )
        target.subscription.client = target
        connection.add(target)
        connection.reply(replies.Ack(
            ack="processed", of="subscribe", id=command.id, stream=stream,
            # Where it starts, so that a client that comes back before its first record misses nothing.
            bookmark=connection.bookmark_before(start) if by_bookmark else None,
        ))
        if notice is not None:
            connection.reply(notice)
        if start > self._host.dispatched_sequence:
            self.make_live(target)
            if by_bookmark:
                connection.reply(replies.Ack(ack="completed", of="subscribe", id=command.id))
        else:
            target.replaying = True
            target.task = self._host.spawn(replay(self._host, target))

    def _start(self, command: commands.Subscribe) -> tuple[int, replies.Reply | None]:
        """The first sequence to deliver, and what the client must know about it."""
        assert command.bookmark is not None
        start = parse_bookmark(command.bookmark)
        oldest, newest = self._host.journal.first_sequence, self._host.dispatched_sequence
        match start:
            case Epoch():
                return oldest, None
            case Now():
                return newest + 1, None
            case Moment(at):
                return self._host.journal.sequence_at(at), None
            case After(bookmarks):
                mine = [bookmark.sequence for bookmark in bookmarks if bookmark.origin == self._host.instance]
                if not mine or mine[0] > newest:
                    return newest + 1, _notice_unknown(command)
                if mine[0] + 1 < oldest:
                    return oldest, replies.Gap(
                        id=command.id, first=f"{self._host.instance}|{mine[0] + 1}|", last=f"{self._host.instance}|{oldest - 1}|",
                        why="These records were removed from the log.",
                    )
                return mine[0] + 1, None

    def make_live(self, target: ClientSubscription) -> None:
        """Hand a subscription over to live delivery. No await may stand between its last look and this."""
        target.replaying = False
        target.task = None
        self.registry.add(target.subscription)

    def remove(self, target: ClientSubscription) -> None:
        """End a subscription, live or replaying."""
        if target.task is not None:
            target.task.cancel()
            target.task = None
        if not target.replaying:
            self.registry.remove(target.subscription)
        target.replaying = False


def _notice_unknown(command: commands.Subscribe) -> replies.Notice:
    return replies.Notice(
        code="bookmark_unknown",
        message=f"The bookmark {command.bookmark} is not in this log; the subscription {command.id} starts now.",
        details={"id": command.id},
    )
