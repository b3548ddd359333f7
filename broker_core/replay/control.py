"""Start, pause, resume and rate changes of replays, for one subscription or many in one command.

A paused subscription keeps its position and pins the log there. Resuming and changing a rate start a new
replay at that position, so records come from the log in one way only. Subscriptions of one client that are
resumed in one command at the same position, with the same rate and end, share one replay (seed 002).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from broker_core.bookmark import Bookmark
from broker_core.delivery.ports import InstanceResources
from broker_core.errors import ClientError
from broker_core.protocols import commands, replies
from broker_core.replay.client_subscription import ClientSubscription, SubscriptionOwner
from broker_core.replay.cursor import CursorEvent, DurableFrontier
from broker_core.replay.positions.store import PositionStore
from broker_core.replay.rate_limit import ReplayRate, parse_rate
from broker_core.replay.replay import LiveHandover, Replay


@dataclass(slots=True)
class ReplayControl:
    """Control of an instance's bookmark subscriptions.

    `_everywhere` is the frontier for `fully_durable` subscriptions: the other members have stored its
    records.
    """

    _facilities: InstanceResources
    _frontier: DurableFrontier
    _everywhere: DurableFrontier
    _live: LiveHandover
    _store: PositionStore

    def execute(
        self,
        client: SubscriptionOwner,
        command: commands.PauseSubscriptions | commands.ResumeSubscriptions | commands.SetRate,
    ) -> None:
        """Execute a client's command for all subscriptions that it names, and acknowledge each.

        An error changes none of them. Raises ClientError unknown_subscription, not_steerable or bad_rate.
        """
        word = str(command.__struct_config__.tag)
        targets = [_steerable(client, id, word) for id in dict.fromkeys(command.ids)]
        match command:
            case commands.PauseSubscriptions():
                self.pause(targets)
            case commands.ResumeSubscriptions():
                self.resume(targets)
            case commands.SetRate():
                rate = parse_rate(command.rate, command.rate_max_gap) if command.rate else None
                self.set_rate(targets, rate)
        for target in targets:
            if (managed := target.managed) is not None:
                managed.paused, managed.steered_at = target.cursor.is_paused, self._facilities.clock.now_ns()
                if isinstance(command, commands.SetRate):
                    managed.rate, managed.rate_max_gap = command.rate, command.rate_max_gap
                self._store.mark_changed(managed)
            stands = Bookmark(self._facilities.instance, target.position(self._frontier.durable) - 1)
            client.reply(replies.Ack(ack="processed", of=word, id=target.id, bookmark=str(stands)))

    def pause(self, targets: Sequence[ClientSubscription]) -> None:
        """Pause subscriptions at their position. Queued records are still sent."""
        for target in targets:
            if not target.cursor.is_paused:
                self.pause_at(target)

    def pause_at(self, target: ClientSubscription) -> None:
        """Pause one subscription at its position.

        A subscription that was live still counts matching records, so that its lag is known.
        """
        self._store_position(target)
        if not target.cursor.is_live or target.conflating is not None:
            self._stop(target)
        target.cursor.apply_event(CursorEvent.PAUSE, self._frontier.durable)

    def resume(self, targets: Sequence[ClientSubscription]) -> None:
        """Resume the subscriptions that are paused."""
        self._start_together([target for target in targets if target.cursor.is_paused])

    def set_rate(self, targets: Sequence[ClientSubscription], rate: ReplayRate | None) -> None:
        """Change the rate of subscriptions from now on; None removes it.

        Subscriptions that share a replay continue to share it if the command names all of them.
        """
        moving = []
        for target in targets:
            target.rate = rate
            shared = target.serving_replay.targets if isinstance(target.serving_replay, Replay) else []
            if target.cursor.is_paused or (not shared and rate is None):
                continue
            if shared and set(shared) <= set(targets):
                assert isinstance(target.serving_replay, Replay)
                target.serving_replay.set_rate(rate)
            else:
                self._store_position(target)
                self._stop(target)
                moving.append(target)
        self._start_together(moving)
        self._frontier.notify_waiters()  # wake a replay whose rate was removed: it may become live
        self._everywhere.notify_waiters()

    def start(self, targets: Sequence[ClientSubscription], step: CursorEvent = CursorEvent.READ) -> None:
        """Start one replay for these subscriptions, from their positions."""
        first = targets[0].cursor
        assert first.span is not None
        span = first.span._replace(not_before=0) if first.has_reached_start else first.span
        frontier = self._everywhere if targets[0].durability == "fully_durable" else self._frontier
        replay = Replay(self._facilities, frontier, self._live, targets, span, targets[0].rate)
        for target in targets:
            target.cursor.apply_event(step, self._frontier.durable)
            target.serving_replay = replay
        replay.task = self._facilities.spawn(replay.run())

    def end(self, target: ClientSubscription) -> None:
        """Stop serving a subscription, and end its cursor."""
        self._stop(target)
        target.cursor.apply_event(CursorEvent.END)

    def fall_back(self, target: ClientSubscription) -> bool:
        """Make a live subscription of a slow client read the log again; return whether it did.

        Its queued records return to the log as far as they can be read again. It still counts new records,
        and becomes live when it has caught up.
        """
        if not target.cursor.is_live or not target.is_bookmark_subscription or target.conflating is not None:
            return False
        returned = target.peer.backlog.return_to_log(target.stream)
        delivered_upto = self._live.on_fallback(target)
        self.start([target], CursorEvent.FALL_BACK)
        target.cursor.rewind_to(returned[0].batch.first_sequence if returned else delivered_upto + 1)
        return True

    def _start_together(self, targets: Sequence[ClientSubscription]) -> None:
        """Start one replay for each set of subscriptions that can share it."""
        groups: dict[Hashable, list[ClientSubscription]] = {}
        for target in targets:
            groups.setdefault(_group(target, self._frontier.durable), []).append(target)
        for group in groups.values():
            self.start(group)

    def _store_position(self, target: ClientSubscription) -> None:
        """Pin the log at a subscription's position.

        Must run before the replay that serves it releases its own pin.
        """
        if target.pin is None:
            owner = f"paused subscription {target.id} of {target.peer.name}"
            at = target.position(self._frontier.durable)
            target.pin = self._facilities.journal.pin(at, owner, target.peer.durable_owner(""))

    def _stop(self, target: ClientSubscription) -> None:
        """Take a subscription out of its replay, or out of live delivery."""
        if target.serving_replay is not None:
            target.serving_replay.remove_subscription(target)
        elif target.cursor.is_live:
            self._live.remove_from_live(target)
            if target.conflating is not None:
                target.conflating.requeue_slices(())


def _steerable(client: SubscriptionOwner, id: str, word: str) -> ClientSubscription:
    """Return the client's subscription of this id, if a replay can be paused or paced for it.

    Raises ClientError unknown_subscription or not_steerable. `word` is the command's name for the error text.
    """
    target = client.subscriptions.get(id)
    if target is None:
        raise ClientError(
            "unknown_subscription",
            f"There is no subscription {id!r}.",
            "Use the id it was subscribed with.",
            id=id,
        )
    if not target.is_bookmark_subscription or target.durability == "live":
        raise ClientError(
            "not_steerable",
            f"{word} is for bookmark subscriptions that wait for the disk, and {id!r} doesn't.",
            "Subscribe with a bookmark (0|1| is from now on) and without durability live.",
            id=id,
        )
    return target


def _group(target: ClientSubscription, durable: int) -> Hashable:
    """Return a key that is equal for subscriptions that can share a replay.

    A conflated one has its replay alone.
    """
    cursor = target.cursor
    assert cursor.span is not None
    if target.conflating is not None:
        return id(target)
    # once started, the beginning of the span has no effect
    span = cursor.span._replace(first=0, not_before=0) if cursor.has_reached_start else cursor.span
    return cursor.next_to_deliver(durable), span, target.rate, target.durability
