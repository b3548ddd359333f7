"""Managed replays of an instance: created by name, controlled by operators and by the client that reads them.

They are on disk (`positions.store`) immediately when an operator creates, changes or ends one, otherwise
within a second. A replay that has not ended pins the log from its position on; journal removal shows the pin
with its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

import msgspec

from broker_core.bookmark import bookmark_sequence
from broker_core.config.preset_settings import MAX_MANAGED
from broker_core.delivery.account import DiscardCause
from broker_core.delivery.ports import InstanceResources
from broker_core.documents.replays import ReplayEntry
from broker_core.errors import ClientError, OperatorError
from broker_core.protocols import commands, replies
from broker_core.replay.client_subscription import ClientSubscription, SentHistory
from broker_core.replay.control import ReplayControl
from broker_core.replay.cursor import DurableFrontier
from broker_core.replay.positions.file import DestinationSetBack, ManagedReplayRecord
from broker_core.replay.positions.store import PositionStore
from broker_core.replay.rate_limit import parse_rate
from broker_core.replay.span import ReplaySpan, SpanResult

STORED_FIELDS: Final = ("topic", "filter", "rate", "rate_max_gap", "conflation", "conflation_key", "paused")
"""Fields of a subscribe command that are stored unchanged."""
ENDED_RETENTION_NS: Final = 7 * 24 * 3_600_000_000_000
"""Time in ns that an ended replay stays listed: 7 days."""
SMOOTHING: Final = 0.3
"""Weight of the newest second in the smoothed speed, which gives the estimated time left."""


class ReplaySpeed:
    """Smoothed speed of a replay in records of the log per second, for the estimate of the time left."""

    __slots__ = ("_at", "_position", "per_second")

    def __init__(self, position: int, now: int) -> None:
        self._position, self._at = position, now
        self.per_second = 0.0

    def update(self, position: int, now: int) -> None:
        """Update the speed with the replay's position; call it about once a second."""
        seconds = (now - self._at) / 1e9
        if seconds <= 0:
            return
        newest = max(position - self._position, 0) / seconds
        weight = SMOOTHING if self.per_second else 1.0
        self.per_second = weight * newest + (1 - weight) * self.per_second
        self._position, self._at = position, now

    def estimate_remaining_s(self, replay: ManagedReplayRecord, newest: int, newest_at: int) -> float | None:
        """Return the estimated seconds until the end at this speed, or None without an estimate.

        `newest` is the log's newest sequence; `newest_at` the time (ns UTC) up to which the log is recorded.
        """
        records = replay.end_sequence(newest) - replay.position + 1
        if replay.ended or records <= 0:
            return 0.0
        rate = parse_rate(replay.rate, replay.rate_max_gap) if replay.rate else None
        if rate is not None and rate.unit == "recorded" and rate.max_gap_ns is None and replay.recorded_at:
            return max(min(newest_at, replay.not_after) - replay.recorded_at, 0) / 1e9 / rate.amount
        return records / self.per_second if self.per_second else None


class ManagedReplays:
    """Managed replays of one instance, by name."""

    def __init__(
        self,
        facilities: InstanceResources,
        frontier: DurableFrontier,
        control: ReplayControl,
        store: PositionStore,
    ) -> None:
        self._clock, self._instance, self._journal = facilities.clock, facilities.instance, facilities.journal
        self._frontier = frontier
        self._control = control
        self._store = store
        self._replays = store.replays
        self.is_journaled: Callable[[str], bool] = lambda topic: True
        """Callback set by the engine: whether the policy in force journals any record of a topic or
        pattern."""
        self._active: dict[str, tuple[ClientSubscription, ReplaySpeed]] = {}
        """Subscription and speed of each replay whose client is subscribed."""
        self._new_spans: dict[str, SpanResult] = {}
        """Span and notices of replays that a client created and has not begun to read."""

    def get(self, name: str) -> ManagedReplayRecord:
        """Return the replay of this name. Raises OperatorError unknown_replay."""
        found = self._replays.get(name)
        if found is None:
            raise OperatorError(
                "unknown_replay",
                f"The managed replay {name[:64]!r} doesn't exist.",
                "See the list of replays.",
            )
        return found

    # Connections of the client.

    async def claim(
        self, client: str, command: commands.Subscribe, find_new_span: Callable[[], SpanResult]
    ) -> None:
        """Ensure that the replay a subscribe command names exists and is on disk.

        The caller must open it without awaiting in between. `find_new_span` computes the span of a new
        replay.

        Raises ClientError as `find` and `find_new_span` do, or too_many_replays. Raises JournalError not_kept
        when it can't be stored; a new one is then removed.
        """
        while True:
            replay = self.find(client, command)
            if replay is None:
                found = find_new_span()
                replay = self._make(client, command, found.span)
                self._new_spans[replay.name] = found
            if not self._store.is_new(replay):
                return
            await self._store.wait_durable(replay)
            # It may have been cancelled or opened by another client during the wait, so check again.

    def _make(self, client: str, command: commands.Subscribe, span: ReplaySpan) -> ManagedReplayRecord:
        """Create a replay of this span and add it to the store; first drop replays that ended long ago.

        Raises ClientError too_many_replays.
        """
        now = self._clock.now_ns()
        for old in [
            one for one in self._replays.values() if one.ended and one.ended_at < now - ENDED_RETENTION_NS
        ]:
            self._drop(old)
        if len(self._replays) >= MAX_MANAGED:
            raise ClientError(
                "too_many_replays",
                f"This instance holds at most {MAX_MANAGED} managed replays.",
                "Cancel some that nobody needs.",
            )
        replay = ManagedReplayRecord(
            **{name: getattr(command, name) for name in STORED_FIELDS},
            **span._asdict(),
            name=command.managed or "",
            client=client,
            bookmark=command.bookmark or "",
            position=span.first,
            begun=span.not_before == 0,
            created_at=now,
        )
        self._store.add(replay)
        self._new_spans.pop(replay.name, None)  # of an earlier replay of that name that could not be stored
        return replay

    def find(self, client: str, command: commands.Subscribe) -> ManagedReplayRecord | None:
        """Return the managed replay that a client's subscribe command names; None if there is none.


        Raises ClientError replay_of_another, replay_in_use, replay_differs, replay_cancelled or
        replay_completed.
        """
        found = self._replays.get(command.managed or "")
        if found is None:
            return None
        if found.client != client:
            raise ClientError(
                "replay_of_another",
                f"The managed replay {found.name} is for the client {found.client}.",
                "Choose another name, or log on as that client.",
            )
        if found.ended:
            code = "replay_cancelled" if found.ended == "cancelled" else "replay_completed"
            raise ClientError(
                code,
                f"The managed replay {found.name} was {found.ended}.",
                "Choose another name, or have this one forgotten.",
            )
        if found.name in self._active:
            raise ClientError(
                "replay_in_use",
                f"The managed replay {found.name} is subscribed already.",
                "A managed replay can have one subscriber at a time.",
            )
        if (found.topic, found.filter) != (command.topic, command.filter):
            raise ClientError(
                "replay_differs",
                f"The managed replay {found.name} is of {found.topic}"
                f"{' with ' + found.filter if found.filter else ''}.",
                "Subscribe with that topic and filter.",
            )
        return found

    def resume_start(self, replay: ManagedReplayRecord, command: commands.Subscribe) -> SpanResult:
        """Return the span at which the client continues.

        It starts after the bookmark that the client reports as `received`, otherwise at the first record
        that the client may not have.
        """
        if (new_span := self._new_spans.pop(replay.name, None)) is not None:
            return new_span
        received = (
            bookmark_sequence(command.received, self._instance) if command.received is not None else None
        )
        if received is None or not replay.first <= received + 1 <= self._frontier.durable + 1:
            return SpanResult(replay.span)
        # `received` may be older than the broker's position: records lost on the way are delivered again,
        # once.
        return SpanResult(replay.span._replace(first=max(received + 1, self._journal.begins_at)))

    def on_subscribed(self, replay: ManagedReplayRecord, target: ClientSubscription) -> None:
        """Connect a subscription with its managed replay."""
        target.managed = replay
        target.trail = SentHistory()
        self._active[replay.name] = (target, ReplaySpeed(replay.position, self._clock.now_ns()))

    def on_closed(self, target: ClientSubscription) -> None:
        """Store the position of a subscription that its client closed.

        Call it before the subscription's deliveries are discarded, because the position is computed from
        them.
        """
        replay = target.managed
        if replay is not None and self._target_of(replay) is target:
            self._update_progress(replay, target)
            del self._active[replay.name]
            replay.caught_up = False
            self._store.record_disconnect(replay)

    def release(self, replay: ManagedReplayRecord) -> None:
        """Turn the subscription of a deleted replay into an ordinary one.

        It then changes no later replay of the same name.
        """
        target = self._target_of(replay)
        if target is not None:
            del self._active[replay.name]
            target.managed = None

    def on_completed(self, target: ClientSubscription) -> None:
        """End the managed replay of a subscription that has reached its end point."""
        replay = target.managed
        if replay is not None:
            self.on_closed(target)
            self._end(replay, "completed")

    # Operations of the operator. Each raises OperatorError unknown_replay or replay_ended; it is durable
    # after a save.

    async def create(self, client: str, command: commands.Subscribe, span: ReplaySpan) -> ManagedReplayRecord:
        """Create a replay for a client that will subscribe to it later, and wait until it is on disk.

        Raises OperatorError replay_exists; ClientError too_many_replays; JournalError not_kept, and the
        replay is then removed.
        """
        if command.managed in self._replays:
            raise OperatorError(
                "replay_exists", f"There is a managed replay {command.managed}.", "Choose another name."
            )
        replay = self._make(client, command, span)
        await self._store.wait_durable(replay)
        return replay

    def pause(self, name: str) -> ManagedReplayRecord:
        """Pause a replay, whether or not its client is subscribed."""
        replay, target = self._running(name)
        if target is not None:
            self._control.pause([target])
        replay.paused, replay.steered_at = True, self._clock.now_ns()
        self._store.mark_changed(replay)
        return replay

    def resume(self, name: str) -> ManagedReplayRecord:
        """Resume a paused replay."""
        replay, target = self._running(name)
        replay.paused, replay.steered_at = False, self._clock.now_ns()
        self._store.mark_changed(replay)
        if target is not None:
            self._control.resume([target])
        return replay

    def set_rate(self, name: str, rate: str | None, max_gap: str | None) -> ManagedReplayRecord:
        """Set the rate of a replay; None removes it. Raises ClientError bad_rate."""
        parsed = parse_rate(rate, max_gap) if rate else None
        replay, target = self._running(name)
        if target is not None:
            self._control.set_rate([target], parsed)
        replay.rate, replay.rate_max_gap = rate, max_gap if rate else None
        replay.steered_at = self._clock.now_ns()
        self._store.mark_changed(replay)
        return replay

    def cancel(self, name: str) -> ManagedReplayRecord:
        """End a replay, send its client an error notice, and release the log."""
        replay, target = self._running(name)
        if target is not None:
            self._end_subscription(replay, target)
        self._end(replay, "cancelled")
        return replay

    def _end_subscription(self, replay: ManagedReplayRecord, target: ClientSubscription) -> None:
        """End the client's subscription of a cancelled replay, with an error notice."""
        self.on_closed(target)
        target.peer.reply(
            replies.ErrorReply(
                code="replay_cancelled",
                message=f"The managed replay {replay.name} was cancelled.",
                fix="Subscribe anew if you need the rest.",
                of="subscribe",
                id=target.id,
            )
        )
        target.peer.end(target, DiscardCause.CANCELLED, "replay_cancelled")

    def forget(self, name: str) -> None:
        """Remove an ended replay from the list. Raises OperatorError replay_not_ended."""
        replay = self.get(name)
        if not replay.ended:
            raise OperatorError(
                "replay_not_ended", f"The managed replay {name} hasn't ended.", "Cancel it first."
            )
        self._drop(replay)

    def _drop(self, replay: ManagedReplayRecord) -> None:
        self._store.remove(replay)
        self._new_spans.pop(replay.name, None)

    def _running(self, name: str) -> tuple[ManagedReplayRecord, ClientSubscription | None]:
        """Return a replay that has not ended, and its subscription or None.

        Raises OperatorError unknown_replay or replay_ended.
        """
        replay = self.get(name)
        if replay.ended:
            raise OperatorError(
                "replay_ended", f"The managed replay {name} was {replay.ended}.", "Make a new one."
            )
        return replay, self._target_of(replay)

    def _target_of(self, replay: ManagedReplayRecord) -> ClientSubscription | None:
        return self._active[replay.name][0] if replay.name in self._active else None

    def _end(self, replay: ManagedReplayRecord, how: Literal["completed", "cancelled"]) -> None:
        replay.ended, replay.ended_at = how, self._clock.now_ns()
        self._store.mark_changed(replay)

    # Positions, the list.

    def record_positions(self) -> None:
        """Update the stored position and speed of each subscribed replay; call it once a second."""
        now = self._clock.now_ns()
        for name, (target, speed) in self._active.items():
            replay = self._replays[name]
            self._update_progress(replay, target)
            speed.update(replay.position, now)

    def _update_progress(self, replay: ManagedReplayRecord, target: ClientSubscription) -> None:
        """Update a replay's stored progress from its subscription."""
        position = target.position(self._frontier.durable)
        acknowledges = target.peer.backlog.has_ack_window(target.stream)
        # Acknowledged records were read. Without acknowledgements the kernels may still buffer the newest
        # sent records.
        certain = position if acknowledges or target.trail is None else target.trail.first or position
        before = _moving(replay)
        replay.note_progress(position, certain)
        replay.begun, replay.caught_up = target.cursor.has_reached_start, target.completed
        replay.recorded_at = target.recorded_at or replay.recorded_at
        delivered = target.account.delivered.messages
        replay.delivered_messages += delivered - target.counted_messages
        target.counted_messages = delivered
        if _moving(replay) != before:
            self._store.mark_changed(replay)

    def restart(
        self,
        name: str,
        position: int,
        topic: str,
        filter: str | None,
        carried: int,
        set_back: DestinationSetBack | None = None,
    ) -> None:
        """Replace a link's replay by a new one of the same name, from `position` on.

        The store removes the old definition and adds the new one in one write, here and at the other members
        of a group. Does nothing while the replay is subscribed.

        Args:
            position: Sequence of the first record to carry.
            topic: Topic of the new replay.
            filter: Filter of the new replay.
            carried: Newest record that the destination has.
            set_back: Loss at the destination, if that is the reason. None keeps the last one.

        Raises:
            OperatorError: unknown_replay.
        """
        old = self.get(name)
        if name in self._active:
            return
        restarted = msgspec.structs.replace(
            old,
            topic=topic,
            filter=filter,
            position=position,
            first=min(old.first, position),
            certain=0,
            began_at=0,
            recorded_at=0,
            begun=True,
            caught_up=False,
            carried=carried,
            set_back=set_back or old.set_back,
            created_at=max(self._clock.now_ns(), old.created_at + 1),
        )
        self._store.remove(old, publish=False)
        self._store.add(restarted)

    def note_carried(self, name: str, sequence: int) -> None:
        """Record that a link's destination has confirmed everything that is carried up to `sequence`.

        Raises OperatorError unknown_replay.
        """
        replay = self.get(name)
        if sequence > replay.carried:
            replay.carried = sequence
            self._store.mark_changed(replay)

    def carried_generation_to(self, instance: str) -> int:
        """Return the newest generation of the group's log that any link carried to an instance; 0: none."""
        links = (replay for replay in self._replays.values() if replay.carried_to == instance)
        return max((replay.carried_generation for replay in links), default=0)

    def carried_limit_to(self, instance: str, durable: int) -> int:
        """Return the newest record that any link can have carried to an instance; 0 if none is known.

        `durable`: the log's newest record, the limit of a link that is carrying.
        """
        return max(
            (
                replay.carried_limit or durable
                for replay in self._replays.values()
                if replay.carried_to == instance
            ),
            default=0,
        )

    def pass_limits_on(self, removed: ManagedReplayRecord) -> None:
        """Raise the limits of links to the instance of a removed link, because it can have carried more."""
        for replay in self._replays.values():
            if replay.carried_to == removed.carried_to:
                if replay.carried_limit:
                    replay.carried_limit = max(replay.carried_limit, removed.carried_limit)
                replay.carried_generation = max(replay.carried_generation, removed.carried_generation)
                self._store.mark_changed(replay)

    def limit_carried(self, name: str, newest: int) -> None:
        """Record that a link carries nothing, and can't have carried more than the log's newest record.

        A limit that is recorded already stays: nothing was carried since. Raises OperatorError
        unknown_replay.
        """
        replay = self.get(name)
        if not replay.carried_limit:
            replay.carried_limit = newest
            self._store.mark_changed(replay)

    async def lift_carried_limit(self, name: str, instance: str, generation: int) -> None:
        """Record that a link may carry any record to `instance` from now on.

        `generation` is that of the group's log; 0 for a standalone broker. When this returns, it is on disk
        and, in a group, published to the other members. Raises OperatorError unknown_replay; JournalError
        not_kept.
        """
        replay = self.get(name)
        current = 0, instance, generation
        if (replay.carried_limit, replay.carried_to, replay.carried_generation) != current:
            replay.carried_limit, replay.carried_to, replay.carried_generation = current
            self._store.mark_changed(replay)
            await self._store.save()
            if self._store.on_secured is not None:
                await self._store.on_secured()

    def is_served(self, name: str) -> bool:
        """Whether the replay's client is subscribed to it at this broker."""
        return name in self._active

    def follow(self, replay: ManagedReplayRecord) -> None:
        """Apply to the local subscription a change that another member of the group made to the replay."""
        target = self._target_of(replay)
        if target is None:
            return
        if replay.ended:
            self._end_subscription(replay, target)
            return
        rate = parse_rate(replay.rate, replay.rate_max_gap) if replay.rate else None
        if rate != target.rate:
            self._control.set_rate([target], rate)
        if replay.paused:
            self._control.pause([target])
        else:
            self._control.resume([target])

    def waiting(self) -> list[ManagedReplayRecord]:
        """Return the replays that have not ended and whose client is not subscribed here."""
        return [one for one in self._replays.values() if not one.ended_at and one.name not in self._active]

    def list_entries(self) -> list[ReplayEntry]:
        """Return an entry for each replay, newest first, for the control plane."""
        return [self.to_entry(one) for one in reversed(self._replays.values())]

    def to_entry(self, replay: ManagedReplayRecord) -> ReplayEntry:
        """Return a replay as an entry of the control plane, with its progress and times in ms."""
        newest, newest_at = self._frontier.durable, self._clock.now_ns()
        connected, (_, speed) = replay.name in self._active, self._active.get(replay.name, (None, None))
        remaining_s = None
        if speed is not None and not replay.paused:
            remaining_s = speed.estimate_remaining_s(replay, newest, newest_at)
        return msgspec.convert(
            # Fields that are copied unchanged have the same name in both.
            msgspec.structs.asdict(replay)
            | {
                "state": replay.state(connected),
                "connected": connected,
                "position": f"{self._instance}|{replay.position - 1}|",
                "behind": max(replay.end_sequence(newest) - replay.position + 1, 0),
                "progress": round(replay.progress(newest), 6),
                "left_s": None if remaining_s is None else round(remaining_s, 1),
                "records_per_s": round(speed.per_second, 1) if speed is not None else 0.0,
                "recorded_at": replay.recorded_at // 1_000_000 or None,
                "created_at": replay.created_at // 1_000_000,
                "ended_at": replay.ended_at // 1_000_000 or None,
                "unrecorded": not self.is_journaled(replay.topic),
            },
            ReplayEntry,
        )


def _moving(replay: ManagedReplayRecord) -> tuple[object, ...]:
    """Return the fields of a replay that change while its client reads it."""
    return (
        replay.position,
        replay.certain,
        replay.begun,
        replay.caught_up,
        replay.recorded_at,
        replay.delivered_messages,
    )
