"""Managed replays of an instance: kept by name while their client is away, steered by operators and by the client.

They are kept on disk (`positions.store`): at once when an operator makes, steers or ends one, else within a second. A
replay that isn't ended holds the log from its position on, under the name that journal removal shows.
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

ASKED: Final = ("topic", "filter", "rate", "rate_max_gap", "conflation", "conflation_key", "paused")
"""What is kept of a subscribe as it was asked."""
KEPT_NS: Final = 7 * 24 * 3_600_000_000_000
"""How long an ended one is still listed."""
SMOOTHING: Final = 0.3
"""Weight of the newest second in the speed that the time left is told by."""


class ReplaySpeed:
    """How many records of the log a replay passes in a second, smoothed, for telling the time it has left."""

    __slots__ = ("_at", "_position", "per_second")

    def __init__(self, position: int, now: int) -> None:
        self._position, self._at = position, now
        self.per_second = 0.0

    def update(self, position: int, now: int) -> None:
        """Called about once a second with where the replay stands."""
        seconds = (now - self._at) / 1e9
        if seconds <= 0:
            return
        newest = max(position - self._position, 0) / seconds
        weight = SMOOTHING if self.per_second else 1.0
        self.per_second = weight * newest + (1 - weight) * self.per_second
        self._position, self._at = position, now

    def seconds_left(self, replay: ManagedReplayRecord, newest: int, newest_at: int) -> float | None:
        """How long it will take at this pace; None when that can't be said. `newest_at`: when the log's last came."""
        records = replay.end_sequence(newest) - replay.position + 1
        if replay.ended or records <= 0:
            return 0.0
        rate = parse_rate(replay.rate, replay.rate_max_gap) if replay.rate else None
        if rate is not None and rate.unit == "recorded" and rate.max_gap_ns is None and replay.recorded_at:
            return max(min(newest_at, replay.not_after) - replay.recorded_at, 0) / 1e9 / rate.amount
        return records / self.per_second if self.per_second else None


class ManagedReplays:
    """All managed replays, by name."""

    def __init__(
        self,
        facilities: InstanceResources,
        frontier: DurableFrontier,
        control: ReplayControl,
        kept: PositionStore,
    ) -> None:
        self._clock, self._instance, self._journal = facilities.clock, facilities.instance, facilities.journal
        self._frontier = frontier
        self._control = control
        self._kept = kept
        self._replays = kept.replays
        self.is_journaled: Callable[[str], bool] = lambda topic: True
        """Whether the policy in force journals something of a topic or pattern; set by the engine."""
        self._active: dict[str, tuple[ClientSubscription, ReplaySpeed]] = {}
        """Those whose client is subscribed."""
        self._asked: dict[str, SpanResult] = {}
        """Of those that a client has made and not begun: what it asked for, and is to be told about that."""

    def get(self, name: str) -> ManagedReplayRecord:
        """The one of that name; OperatorError unknown_replay."""
        found = self._replays.get(name)
        if found is None:
            raise OperatorError(
                "unknown_replay", f"There is no managed replay {name[:64]!r}.", "See the list of replays."
            )
        return found

    # A client comes and goes.

    async def claim(
        self, client: str, command: commands.Subscribe, look_up: Callable[[], SpanResult]
    ) -> None:
        """See to it that the one a subscribe names is there and on disk, for who begins it at once; `look_up` says what of the log
        a new one is of.

        ClientErrors of `find` and of `look_up`, too_many_replays; JournalError not_kept, and then one that was new is none.
        """
        while True:
            replay = self.find(client, command)
            if replay is None:
                found = look_up()
                replay = self._make(client, command, found.span)
                self._asked[replay.name] = found
            if not self._kept.is_new(replay):
                return
            await self._kept.wait_durable(replay)
            # It may have been cancelled meanwhile, or begun by another: look again.

    def _make(self, client: str, command: commands.Subscribe, span: ReplaySpan) -> ManagedReplayRecord:
        now = self._clock.now_ns()
        for old in [one for one in self._replays.values() if one.ended and one.ended_at < now - KEPT_NS]:
            self._drop(old)
        if len(self._replays) >= MAX_MANAGED:
            raise ClientError(
                "too_many_replays",
                f"This instance holds at most {MAX_MANAGED} managed replays.",
                "Cancel some that nobody needs.",
            )
        replay = ManagedReplayRecord(
            **{name: getattr(command, name) for name in ASKED},
            **span._asdict(),
            name=command.managed or "",
            client=client,
            bookmark=command.bookmark or "",
            position=span.first,
            begun=span.not_before == 0,
            created_at=now,
        )
        self._kept.add(replay)
        self._asked.pop(replay.name, None)  # of one of that name that the disk refused
        return replay

    def find(self, client: str, command: commands.Subscribe) -> ManagedReplayRecord | None:
        """The one that a client's subscribe names and may go on with; None when there is none of that name yet.

        ClientError replay_of_another, replay_in_use, replay_differs, replay_cancelled or replay_completed.
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
        """Where its client goes on: after what it says it has received, else with the first that it may not have."""
        if (asked := self._asked.pop(replay.name, None)) is not None:
            return asked
        received = (
            bookmark_sequence(command.received, self._instance) if command.received is not None else None
        )
        if received is None or not replay.first <= received + 1 <= self._frontier.durable + 1:
            return SpanResult(replay.span)
        # It may be before the broker's position: what was on its way is delivered again, once.
        return SpanResult(replay.span._replace(first=max(received + 1, self._journal.begins_at)))

    def on_opened(self, replay: ManagedReplayRecord, target: ClientSubscription) -> None:
        target.managed = replay
        target.trail = SentHistory()
        self._active[replay.name] = (target, ReplaySpeed(replay.position, self._clock.now_ns()))

    def on_closed(self, target: ClientSubscription) -> None:
        """The client has left, or has unsubscribed. Before its deliveries are forgotten."""
        replay = target.managed
        if replay is not None and self._target_of(replay) is target:
            self._look_at(replay, target)
            del self._active[replay.name]
            replay.caught_up = False
            self._kept.on_client_left(replay)

    def release(self, replay: ManagedReplayRecord) -> None:
        """Let the subscription of one that is kept no longer go on as any other: it moves no later one of that
        name."""
        target = self._target_of(replay)
        if target is not None:
            del self._active[replay.name]
            target.managed = None

    def on_completed(self, target: ClientSubscription) -> None:
        """It has come to its end point."""
        replay = target.managed
        if replay is not None:
            self.on_closed(target)
            self._end(replay, "completed")

    # What operators do. Each raises OperatorError unknown_replay or replay_ended, and is done for good after a save.

    async def create(self, client: str, command: commands.Subscribe, span: ReplaySpan) -> ManagedReplayRecord:
        """Make one for a client that will come for it. OperatorError replay_exists; ClientError too_many_replays; JournalError
        not_kept, and then there is none."""
        if command.managed in self._replays:
            raise OperatorError(
                "replay_exists", f"There is a managed replay {command.managed}.", "Choose another name."
            )
        replay = self._make(client, command, span)
        await self._kept.wait_durable(replay)
        return replay

    def pause(self, name: str) -> ManagedReplayRecord:
        replay, target = self._running(name)
        if target is not None:
            self._control.pause([target])
        replay.paused, replay.steered_at = True, self._clock.now_ns()
        self._kept.mark_changed(replay)
        return replay

    def resume(self, name: str) -> ManagedReplayRecord:
        replay, target = self._running(name)
        replay.paused, replay.steered_at = False, self._clock.now_ns()
        self._kept.mark_changed(replay)
        if target is not None:
            self._control.resume([target])
        return replay

    def set_rate(self, name: str, rate: str | None, max_gap: str | None) -> ManagedReplayRecord:
        """Another rate, or none. ClientError bad_rate."""
        parsed = parse_rate(rate, max_gap) if rate else None
        replay, target = self._running(name)
        if target is not None:
            self._control.set_rate([target], parsed)
        replay.rate, replay.rate_max_gap = rate, max_gap if rate else None
        replay.steered_at = self._clock.now_ns()
        self._kept.mark_changed(replay)
        return replay

    def cancel(self, name: str) -> ManagedReplayRecord:
        """End it. Its client is told; the log is held no longer."""
        replay, target = self._running(name)
        if target is not None:
            self._end_subscription(replay, target)
        self._end(replay, "cancelled")
        return replay

    def _end_subscription(self, replay: ManagedReplayRecord, target: ClientSubscription) -> None:
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
        """Take an ended one off the list. OperatorError replay_not_ended."""
        replay = self.get(name)
        if not replay.ended:
            raise OperatorError(
                "replay_not_ended", f"The managed replay {name} hasn't ended.", "Cancel it first."
            )
        self._drop(replay)

    def _drop(self, replay: ManagedReplayRecord) -> None:
        self._kept.remove(replay)
        self._asked.pop(replay.name, None)

    def _running(self, name: str) -> tuple[ManagedReplayRecord, ClientSubscription | None]:
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
        self._kept.mark_changed(replay)

    # Positions, the list.

    def record_positions(self) -> None:
        """Note how far those that are served have come. Once a second."""
        now = self._clock.now_ns()
        for name, (target, speed) in self._active.items():
            replay = self._replays[name]
            self._look_at(replay, target)
            speed.update(replay.position, now)

    def _look_at(self, replay: ManagedReplayRecord, target: ClientSubscription) -> None:
        position = target.position(self._frontier.durable)
        acknowledges = target.peer.backlog.has_ack_window(target.stream)
        # What is acknowledged was read; without acknowledgements the kernels may still hold what was sent last.
        certain = position if acknowledges or target.trail is None else target.trail.first or position
        before = _moving(replay)
        replay.note_progress(position, certain)
        replay.begun, replay.caught_up = target.cursor.begun, target.completed
        replay.recorded_at = target.recorded_at or replay.recorded_at
        delivered = target.account.delivered.messages
        replay.delivered_messages += delivered - target.noted_messages
        target.noted_messages = delivered
        if _moving(replay) != before:
            self._kept.mark_changed(replay)

    def restart(
        self,
        name: str,
        position: int,
        topic: str,
        filter: str | None,
        carried: int,
        set_back: DestinationSetBack | None = None,
    ) -> None:
        """Make a link's replay anew in its place: from `position`, of this topic and filter.

        `carried`: newest record that the destination has. `set_back`: what it lost, if that is why; else what
        it lost last stays. The old definition gives way to the new one in one write, here and at a group's
        other members. Nothing is done while the replay is subscribed. Raises OperatorError unknown_replay.
        """
        old = self.get(name)
        if name in self._active:
            return
        made = msgspec.structs.replace(
            old, topic=topic, filter=filter, position=position, first=min(old.first, position), certain=0,
            began_at=0, recorded_at=0, begun=True, caught_up=False, carried=carried,
            set_back=set_back or old.set_back,
            created_at=max(self._clock.now_ns(), old.created_at + 1),
        )  # fmt: skip
        self._kept.remove(old, tell=False)
        self._kept.add(made)

    def note_carried(self, name: str, sequence: int) -> None:
        """Record that a link's destination has confirmed everything that is carried up to `sequence`.

        Raises OperatorError unknown_replay.
        """
        replay = self.get(name)
        if sequence > replay.carried:
            replay.carried = sequence
            self._kept.mark_changed(replay)

    def limit_carried(self, name: str, newest: int) -> None:
        """Record that a link carries nothing, and can't have carried more than the log's newest record.

        A limit that is recorded already stays: nothing was carried since. Raises OperatorError
        unknown_replay.
        """
        replay = self.get(name)
        if not replay.carried_limit:
            replay.carried_limit = newest
            self._kept.mark_changed(replay)

    async def lift_carried_limit(self, name: str) -> None:
        """Record that a link may carry any record from now on. On disk when this returns.

        Raises OperatorError unknown_replay; JournalError not_kept.
        """
        replay = self.get(name)
        if replay.carried_limit:
            replay.carried_limit = 0
            self._kept.mark_changed(replay)
            await self._kept.save()

    def is_served(self, name: str) -> bool:
        """Whether its client is subscribed to it here."""
        return name in self._active

    def follow(self, replay: ManagedReplayRecord) -> None:
        """Pause, resume, pace or end the subscription here as another member of the group was asked to."""
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
        """Return those whose client is away, and that aren't over."""
        return [one for one in self._replays.values() if not one.ended_at and one.name not in self._active]

    def list_entries(self) -> list[ReplayEntry]:
        """All of them, for the control plane; the newest first."""
        return [self.to_entry(one) for one in reversed(self._replays.values())]

    def to_entry(self, replay: ManagedReplayRecord) -> ReplayEntry:
        """One, for the control plane: with its progress, and moments in ms."""
        newest, newest_at = self._frontier.durable, self._clock.now_ns()
        connected, (_, speed) = replay.name in self._active, self._active.get(replay.name, (None, None))
        left = None
        if speed is not None and not replay.paused:
            left = speed.seconds_left(replay, newest, newest_at)
        return msgspec.convert(
            # What is shown as it is kept has the same name.
            msgspec.structs.asdict(replay)
            | {
                "state": replay.state(connected),
                "connected": connected,
                "position": f"{self._instance}|{replay.position - 1}|",
                "behind": max(replay.end_sequence(newest) - replay.position + 1, 0),
                "progress": round(replay.progress(newest), 6),
                "left_s": None if left is None else round(left, 1),
                "records_per_s": round(speed.per_second, 1) if speed is not None else 0.0,
                "recorded_at": replay.recorded_at // 1_000_000 or None,
                "created_at": replay.created_at // 1_000_000,
                "ended_at": replay.ended_at // 1_000_000 or None,
                "unrecorded": not self.is_journaled(replay.topic),
            },
            ReplayEntry,
        )


def _moving(replay: ManagedReplayRecord) -> tuple[object, ...]:
    """What of it changes while it is served."""
    return (
        replay.position, replay.certain, replay.begun, replay.caught_up, replay.recorded_at, replay.delivered_messages,
    )  # fmt: skip
