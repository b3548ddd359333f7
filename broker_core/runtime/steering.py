"""Starts, pauses, resumes and paces what bookmark subscriptions get from the log, one or many in one command.

A paused subscription keeps its place, and a pin on it. Resuming and changing a rate begin a new replay at that place,
so that there is one way only by which records come from the log. Subscriptions of one client that are resumed in one
command at the same place, with the same rate and end, share one replay (seed 002).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from broker_core.errors import ClientError
from broker_core.protocols import commands, replies
from broker_core.runtime.client_subscription import ClientSubscription
from broker_core.runtime.connection import Connection
from broker_core.runtime.pacing import Pace
from broker_core.runtime.replayer import Replay
from broker_core.subscriptions.pace import Rate, parse_rate

if TYPE_CHECKING:
    from broker_core.runtime.host import Host


class Steering:
    """How an instance's bookmark subscriptions move through its log."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def command(self, connection: Connection, command: commands.Pause | commands.Resume | commands.Rate) -> None:
        """Do what a client asks, to all it names or to none. ClientError unknown_subscription, not_steerable, bad_rate."""
        word = str(command.__struct_config__.tag)
        targets = [_steerable(connection, id, word) for id in dict.fromkeys(command.ids)]
        match command:
            case commands.Pause():
                self.pause(targets)
            case commands.Resume():
                self.resume(targets)
            case commands.Rate():
                self.set_rate(targets, _rate_of(command))
        for target in targets:
            if target.managed is not None:
                self._host.managed.steered(target.managed, target.paused)
                if isinstance(command, commands.Rate):
                    self._host.managed.rated(target.managed, command.rate, command.rate_max_gap)
            connection.reply(replies.Ack(
                ack="processed", of=word, id=target.subscription.id, bookmark=connection.bookmark_before(target.position)
            ))

    def pause(self, targets: Sequence[ClientSubscription]) -> None:
        """Hold them where they are. What has been queued for their client is still sent."""
        for target in targets:
            if not target.paused:
                self._stop(target)
                self.hold(target)

    def hold(self, target: ClientSubscription) -> None:
        """Keep a subscription that nothing serves in its place, until it is resumed."""
        target.paused = target.replaying = True
        if target.pin is None:
            owner = f"paused subscription {target.subscription.id} of {target.connection.name}"
            target.pin = self._host.pin(target.position, owner)

    def resume(self, targets: Sequence[ClientSubscription]) -> None:
        """Let the paused ones among them go on."""
        paused = [target for target in targets if target.paused]
        for target in paused:
            target.paused = False
        self._start_together(paused)

    def set_rate(self, targets: Sequence[ClientSubscription], rate: Rate | None) -> None:
        """Change their rate from now on; None lifts it. Those that share a replay go on sharing it if all are named."""
        moving = []
        for target in targets:
            target.rate = rate
            shared = target.replay.targets if target.replay is not None else []
            if target.paused or (target.replay is None and rate is None):
                continue
            if shared and set(shared) <= set(targets):
                assert target.replay is not None
                target.replay.set_rate(rate)
            else:
                self._stop(target)
                moving.append(target)
        self._start_together(moving)
        self._host.subscribing.dispatched()  # one whose rate was lifted may wait for news, and go live

    def start(self, targets: Sequence[ClientSubscription]) -> None:
        """Serve them by one replay, from where they are."""
        first = targets[0]
        assert first.span is not None
        span = first.span._replace(not_before=0) if first.begun else first.span
        replay = Replay(self._host, targets, span, Pace(first.rate) if first.rate is not None else None)
        for target in targets:
            target.replaying, target.replay = True, replay
        replay.task = self._host.spawn(replay.run())

    def _start_together(self, targets: Sequence[ClientSubscription]) -> None:
        groups: dict[Hashable, list[ClientSubscription]] = {}
        for target in targets:
            groups.setdefault(_group(target), []).append(target)
        for group in groups.values():
            self.start(group)

    def _stop(self, target: ClientSubscription) -> None:
        """Take a subscription away from what serves it; its place in the log is pinned before that lets go."""
        replay = target.replay
        if replay is None:
            self._host.subscribing.take_out(target)
            target.next_sequence = self._host.dispatched_sequence + 1
            if target.conflating is not None:
                target.conflating.keep(())
        target.pin = target.pin or self._host.pin(
            target.position, f"paused subscription {target.subscription.id} of {target.connection.name}"
        )
        target.replaying = True
        if replay is not None:
            replay.leave(target)


def _steerable(connection: Connection, id: str, word: str) -> ClientSubscription:
    target = connection.subscriptions.get(id)
    if target is None:
        raise ClientError("unknown_subscription", f"There is no subscription {id!r}.",
                          "Use the id it was subscribed with.", c=word, id=id)
    if target.span is None or target.durability == "live":
        raise ClientError("not_steerable", f"{word} is for bookmark subscriptions that wait for the disk, and {id!r} doesn't.",
                          "Subscribe with a bookmark (0|1| is from now on) and without durability live.", c=word, id=id)
    return target


def _rate_of(command: commands.Rate) -> Rate | None:
    try:
        return parse_rate(command.rate, command.rate_max_gap) if command.rate else None
    except ClientError as error:
        error.details["c"] = "rate"
        raise


def _group(target: ClientSubscription) -> Hashable:
    """Subscriptions for which this is equal can share a replay. A conflated one has its replay alone."""
    span = target.span
    assert span is not None
    if target.conflating is not None:
        return id(target)
    # Once it has begun, where it began doesn't matter any more.
    return target.next_sequence, span._replace(first=0, not_before=0) if target.begun else span, target.rate
