"""Managed replays of an instance: kept by name while their client is away, steered by operators and by the client.

The file `<instance>.replays.json` stands beside the journal and is replaced whole: at once when a replay is made,
steered or ended, and each second when one has moved. After a crash a position may be a second old. A replay that
isn't ended holds the log from its position on, under the name that journal removal shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import orjson

from broker_core.bookmark import After, parse_bookmark
from broker_core.errors import ClientError, OperatorError
from broker_core.journal.files import Files, replace_durably
from broker_core.journal.held import Pin
from broker_core.protocols import commands, replies
from broker_core.subscriptions.managed import ManagedReplay, Speed
from broker_core.subscriptions.pace import parse_rate
from broker_core.subscriptions.span import Found, Span
from broker_core.subscriptions.trail import Trail

if TYPE_CHECKING:
    from broker_core.runtime.client_subscription import ClientSubscription
    from broker_core.runtime.host import Host

MAX_MANAGED: Final = 1_000
"""Managed replays of an instance, ended ones included."""
KEPT_NS: Final = 7 * 24 * 3_600_000_000_000
"""How long an ended one is still listed."""
VERSION: Final = 1


class ManagedReplays:
    """All managed replays, by name."""

    def __init__(self, host: Host, path: Path) -> None:
        self._host = host
        self._path = path
        self._replays = _read(path)
        self._pins: dict[str, Pin] = {}
        self._active: dict[str, ClientSubscription] = {}
        self._speeds: dict[str, Speed] = {}
        self.changed = False
        """Whether `content` differs from what is stored."""
        for replay in self._replays.values():
            self._hold(replay)

    def get(self, name: str) -> ManagedReplay:
        """The one of that name; OperatorError unknown_replay."""
        found = self._replays.get(name)
        if found is None:
            raise OperatorError("unknown_replay", f"There is no managed replay {name[:64]!r}.", "See the list of replays.")
        return found

    def subscription_of(self, replay: ManagedReplay) -> ClientSubscription | None:
        """The subscription that is served by it now."""
        return self._active.get(replay.name)

    # A client comes and goes.

    def make(self, client: str, command: commands.Subscribe, span: Span) -> ManagedReplay:
        """A new one from what a client or an operator asks. ClientError too_many_replays."""
        assert command.managed is not None
        self._forget_old()
        if len(self._replays) >= MAX_MANAGED:
            raise ClientError("too_many_replays", f"This instance keeps {MAX_MANAGED} managed replays.",
                              "Cancel those that nobody needs.")
        replay = ManagedReplay(
            command.managed, client, command.topic, command.filter, command.bookmark or "", command.rate,
            command.rate_max_gap, command.conflation, command.conflation_key, command.paused, span.first,
            span.not_before, span.last, span.not_after, span.first, span.not_before == 0, self._host.now_ns(),
        )
        self._replays[replay.name] = replay
        self._hold(replay)
        self.changed = True
        return replay

    def find(self, client: str, command: commands.Subscribe) -> ManagedReplay | None:
        """The one that a client's subscribe names and may go on with; None when there is none of that name yet.

        ClientError replay_of_another, replay_in_use, replay_differs, replay_cancelled or replay_completed.
        """
        found = self._replays.get(command.managed or "")
        if found is None:
            return None
        if found.client != client:
            raise ClientError("replay_of_another", f"The managed replay {found.name} is for the client {found.client}.",
                              "Choose another name, or log on as that client.")
        if found.ended:
            raise ClientError(f"replay_{found.ended}", f"The managed replay {found.name} was {found.ended}.",
                              "Choose another name, or have this one forgotten.")
        if found.name in self._active:
            raise ClientError("replay_in_use", f"The managed replay {found.name} is subscribed already.",
                              "Subscribe to a managed replay once at a time.")
        if (found.topic, found.filter) != (command.topic, command.filter):
            raise ClientError("replay_differs", f"The managed replay {found.name} is of {found.topic}"
                              f"{' with ' + found.filter if found.filter else ''}.", "Subscribe with that topic and filter.")
        return found

    def continued(self, replay: ManagedReplay, command: commands.Subscribe) -> Found:
        """Where its client goes on: after what it says it has received, else with the first that it may not have."""
        if command.received is not None:
            received = parse_bookmark(command.received)
            if isinstance(received, After):
                mine = [one.sequence for one in received.bookmarks if one.origin == self._host.instance]
                if mine and replay.first <= mine[0] + 1 <= self._host.dispatched_sequence + 1:
                    # It may be before the broker's position: what was on its way is delivered again, once.
                    return Found(replay.span._replace(first=max(mine[0] + 1, self._host.journal.first_sequence)))
        return Found(replay.span)

    def opened(self, replay: ManagedReplay, target: ClientSubscription) -> None:
        """Its client is subscribed."""
        target.managed = replay
        self._active[replay.name] = target
        target.trail = Trail()
        self._speeds[replay.name] = Speed(replay.position, self._host.now_ns())

    def closed(self, target: ClientSubscription) -> None:
        """The client has left, or has unsubscribed. Before its deliveries are forgotten."""
        replay = target.managed
        if replay is not None and self._active.get(replay.name) is target:
            self._look_at(replay, target)
            del self._active[replay.name]
            replay.caught_up, self.changed = False, True

    def completed(self, target: ClientSubscription) -> None:
        """It has come to its end point."""
        if target.managed is not None:
            self.closed(target)
            self._end(target.managed, "completed")

    # What operators do. Each raises OperatorError unknown_replay or replay_ended.

    def create(self, client: str, command: commands.Subscribe, span: Span) -> ManagedReplay:
        """Make one for a client that will come for it. OperatorError replay_exists."""
        if command.managed in self._replays:
            raise OperatorError("replay_exists", f"There is a managed replay {command.managed}.", "Choose another name.")
        return self.make(client, command, span)

    def pause(self, name: str) -> ManagedReplay:
        """Hold it where it is."""
        replay, target = self._running(name)
        if target is not None:
            self._host.steering.pause([target])
        self.steered(replay, paused=True)
        return replay

    def resume(self, name: str) -> ManagedReplay:
        """Let it go on."""
        replay, target = self._running(name)
        self.steered(replay, paused=False)
        if target is not None:
            self._host.steering.resume([target])
        return replay

    def set_rate(self, name: str, rate: str | None, max_gap: str | None) -> ManagedReplay:
        """Another rate, or none. ClientError bad_rate."""
        parsed = parse_rate(rate, max_gap) if rate else None
        replay, target = self._running(name)
        if target is not None:
            self._host.steering.set_rate([target], parsed)
        self.rated(replay, rate, max_gap)
        return replay

    def cancel(self, name: str) -> ManagedReplay:
        """End it. Its client is told; the log is held no longer."""
        replay, target = self._running(name)
        if target is not None:
            connection, id = target.connection, target.subscription.id
            self.closed(target)
            connection.reply(replies.Error(
                code="replay_cancelled", message=f"The managed replay {name} was cancelled.",
                fix="Subscribe anew if you need the rest.", of="subscribe", id=id,
            ))
            connection.cancel(target, "replay_cancelled")
        self._end(replay, "cancelled")
        return replay

    def forget(self, name: str) -> None:
        """Take an ended one off the list. OperatorError replay_not_ended."""
        if not self.get(name).ended:
            raise OperatorError("replay_not_ended", f"The managed replay {name} isn't ended.", "Cancel it first.")
        del self._replays[name]
        self.changed = True

    def rated(self, replay: ManagedReplay, rate: str | None, max_gap: str | None) -> None:
        """It has another rate, by whomever."""
        replay.rate, replay.rate_max_gap, self.changed = rate, max_gap if rate else None, True

    def steered(self, replay: ManagedReplay, paused: bool) -> None:
        """It is paused, or isn't, by whomever."""
        if replay.paused != paused:
            replay.paused, self.changed = paused, True

    def _running(self, name: str) -> tuple[ManagedReplay, ClientSubscription | None]:
        replay = self.get(name)
        if replay.ended:
            raise OperatorError("replay_ended", f"The managed replay {name} was {replay.ended}.", "Make a new one.")
        return replay, self._active.get(name)

    def _end(self, replay: ManagedReplay, how: Literal["completed", "cancelled"]) -> None:
        replay.end(how, self._host.now_ns())
        self._pins.pop(replay.name).release()
        self._speeds.pop(replay.name, None)
        self.changed = True

    def _hold(self, replay: ManagedReplay) -> None:
        if not replay.ended:
            self._pins[replay.name] = self._host.pin(replay.kept_from, replay.owner)

    def _forget_old(self) -> None:
        before = self._host.now_ns() - KEPT_NS
        for replay in [one for one in self._replays.values() if one.ended and one.ended_at < before]:
            del self._replays[replay.name]

    # Positions, the list, the file.

    def look(self) -> bool:
        """Note how far those that are served have come; whether there is something to save. Once a second."""
        now = self._host.now_ns()
        for name, target in self._active.items():
            replay = self._replays[name]
            self._look_at(replay, target)
            self._speeds[name].look(replay.position, now)
        return self.changed

    def _look_at(self, replay: ManagedReplay, target: ClientSubscription) -> None:
        backlog = target.connection.backlog
        position = backlog.position_of(target)
        # What is acknowledged was read; without acknowledgements the kernels may still hold what was sent last.
        certain = position if backlog.acknowledges(target) or target.trail is None else target.trail.first or position
        if replay.advance(position) or certain != replay.certain:
            replay.certain, self.changed = certain, True
            self._pins[replay.name].move(replay.kept_from)
        replay.begun, replay.caught_up = target.begun, target.completed
        replay.recorded_at = target.recorded_at or replay.recorded_at
        replay.delivered_messages += target.delivered_messages - target.noted_messages
        target.noted_messages = target.delivered_messages

    def listed(self) -> list[dict[str, Any]]:
        """All of them as JSON, for the control plane; the newest first."""
        newest, newest_at = self._host.dispatched_sequence, self._host.now_ns()
        return [self.shown(one, newest, newest_at) for one in reversed(self._replays.values())]

    def shown(self, replay: ManagedReplay, newest: int, newest_at: int) -> dict[str, Any]:
        """One as JSON: bookmarks, progress from 0 to 1, seconds left (null: can't be said), moments in ms."""
        connected, speed = replay.name in self._active, self._speeds.get(replay.name)
        left = None
        if speed is not None and connected and not replay.paused:
            left = speed.seconds_left(replay, replay.paced(), newest, newest_at)
        bookmark = f"{self._host.instance}|{replay.position - 1}|"
        return {
            "name": replay.name, "client": replay.client, "topic": replay.topic, "filter": replay.filter,
            "bookmark": replay.bookmark, "rate": replay.rate, "rate_max_gap": replay.rate_max_gap,
            "conflation": replay.conflation, "conflation_key": replay.conflation_key,
            "state": replay.state(connected), "connected": connected, "position": bookmark,
            "behind": max(replay.goal(newest) - replay.position + 1, 0), "delivered_messages": replay.delivered_messages,
            "progress": round(replay.progress(newest), 6), "left_s": None if left is None else round(left, 1),
            "records_per_s": round(speed.per_second, 1) if speed is not None and connected else 0.0,
            "recorded_at": replay.recorded_at // 1_000_000 or None, "created_at": replay.created_at // 1_000_000,
            "ended_at": replay.ended_at // 1_000_000 or None,
        }

    def content(self) -> bytes:
        """What `write` stores."""
        self.changed = False
        return orjson.dumps({"version": VERSION, "replays": [one.as_json() for one in self._replays.values()]})

    def write(self, content: bytes) -> None:
        """Store, whole. Not on the loop. Raises OSError."""
        try:
            replace_durably(Files(), self._path, content)
        except OSError:
            self.changed = True
            raise


def _read(path: Path) -> dict[str, ManagedReplay]:
    try:
        content = orjson.loads(path.read_bytes())
        if content["version"] != VERSION:
            raise ValueError(f"version {content['version']}")
        replays = map(ManagedReplay.from_json, content["replays"])
        return {replay.name: replay for replay in replays}
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as problem:
        raise OperatorError("bad_replays", f"{path} can't be read: {problem}.",
                            "Restore it, or move it away: then no managed replay is known.") from problem
