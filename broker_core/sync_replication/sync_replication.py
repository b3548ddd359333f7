"""A broker's one waiting for others: what they say comes in, how far everybody is who is waited for goes out.

The decisions are `SyncReplicationState`'s. Here they are asked for each tenth of a second, logged, told, and kept when they are made by hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Final

import structlog

from broker_core.clock import Clock
from broker_core.config import PolicyDocument
from broker_core.errors import OperatorError
from broker_core.journal.journal import Journal
from broker_core.names import LINK_PREFIX
from broker_core.sync_replication.manual_downgrades import ManualDowngrade, ManualDowngradeStore
from broker_core.sync_replication.sync_state import SyncMode, SyncModeChange, SyncReplicationState

log = structlog.get_logger("sluice.confirming")
CHECK_INTERVAL_S: Final = 0.1
"""How often it is looked who has been waited for too long."""
STOOD_STILL_S: Final = 1.0
"""Between two looks: then this process was stopped, or got no CPU."""


class SyncReplication:
    """Of one broker. What is said goes to `moved` from `start` on."""

    def __init__(self, own: str, journal: Journal, clock: Clock) -> None:
        """`own`: this broker's name in its group, "" without one."""
        self._clock = clock
        self._before = journal.next_sequence - 1
        self.by_hand = ManualDowngradeStore(journal.directory, journal.instance, journal.files)
        by = {name: one.by for name, one in self.by_hand.of.items()}
        self.confirming = SyncReplicationState(own, self._before, clock.seconds(), by)
        self.moved: Callable[[int], None] = lambda _: None
        """Everybody who is waited for has everything up to there."""
        self.on_change: Callable[[SyncModeChange], None] = lambda _: None
        """Somebody isn't waited for any more, or is again."""
        self.unheard: Callable[[], Collection[str]] = tuple
        """Who can't be heard of now; set by a group's log."""
        self.links: Callable[[], Iterable[tuple[str, int]]] = tuple
        """Up to which record each sync destination has everything, by its link's client; set by who has the links."""
        self._logons_wait = False
        self._started = False
        self._told = 0

    def apply_policy(self, policy: PolicyDocument) -> None:
        """The policy in force. A destination that is switched off isn't waited for."""
        instance = policy.instance
        links = [f"{LINK_PREFIX}{one.name}" for one in policy.destinations if one.is_sync]
        self._logons_wait = bool(instance.sync_topics or links)
        self.confirming.apply_policy(
            [*instance.sync_members, *links], instance.downgrade_after_ms, self._clock.seconds()
        )
        if not self._started:
            self.confirming.mark_start_unconfirmed()
        self._tell()

    def start(self) -> None:
        """What is confirmed may be told from now on."""
        self._started = True
        self.check_timeouts()

    async def run(self) -> None:
        """Look, again and again."""
        now = self._clock.seconds()
        while True:
            before = now
            await asyncio.sleep(CHECK_INTERVAL_S)
            now = self._clock.seconds()
            if now - before > STOOD_STILL_S:
                # What others said meanwhile waits in the socket.
                log.warning("stood_still", seconds=round(now - before, 1))
                self.confirming.exclude_pause(now - before, now)
            self.check_timeouts()

    @property
    def is_required(self) -> bool:
        """Whether the policy names anybody who is waited for."""
        return self.confirming.is_required

    @property
    def members(self) -> list[str]:
        """The members of the group among them, without this one."""
        return [name for name in self.confirming.peers if not name.startswith(LINK_PREFIX)]

    @property
    def confirmed_sequence(self) -> int:
        """Up to which record all of those have everything that they are to have."""
        return self.confirming.upto

    @property
    def is_start_unconfirmed(self) -> bool:
        """Whether publishers may be told nothing yet of what the journal had at the start: an earlier process may not have
        acknowledged it, and those that are waited for may not have it."""
        return self._logons_wait and not (self._started and self.confirmed_sequence >= self._before)

    @property
    def has_unreachable_peer(self) -> bool:
        """Whether somebody can't be heard, so that it isn't known for how long they would be waited for."""
        return bool(self.unheard())

    # What comes in.

    def on_local_durable(self, sequence: int) -> None:
        """This broker has synced everything up to there; it is told later, when that has been delivered."""
        self.confirming.on_local_durable(sequence, self._clock.seconds())

    def on_peer_confirmed(self, name: str, sequence: int) -> None:
        """Somebody else has everything up to there."""
        change = self.confirming.on_peer_confirmed(name, sequence, self._clock.seconds())
        if change is not None:
            self._changed(change)
        self._tell()

    def poll_links(self) -> None:
        """Ask links how far they are, and tell what follows."""
        if self.confirming.is_required:
            for name, sequence in self.links():
                self.on_peer_confirmed(name, sequence)
        self._tell()

    def check_timeouts(self) -> None:
        """Whether somebody has been waited for too long."""
        self.poll_links()
        for change in self.confirming.check_timeouts(self._clock.seconds(), self.unheard()):
            self._changed(change)
        self._tell()

    # By hand.

    async def downgrade(self, name: str, by: str) -> None:
        """Wait for one no more, until it is upgraded by hand; that is on disk first. OperatorError unknown_member; JournalError not_kept."""
        self._check(name)
        await self.by_hand.record(name, ManualDowngrade(by, self._clock.now_ns()), self.confirming.peers)
        self._check(name)
        self._by_hand(self.confirming.downgrade(name, by, self._clock.seconds()))

    async def upgrade(self, name: str, by: str) -> None:
        """Wait for one again. Raises as `downgrade`."""
        self._check(name)
        await self.by_hand.record(name, None, self.confirming.peers)
        self._check(name)
        self._by_hand(self.confirming.upgrade(name, by, self._clock.seconds()))

    def downgraded_at(self, name: str) -> int:
        """When that was done by hand, ms UTC; 0 when it wasn't."""
        decided = self.by_hand.of.get(name)
        return decided.at // 1_000_000 if decided is not None and self.confirming.downgraded_by(name) else 0

    def _check(self, name: str) -> None:
        listed = self.confirming.peers
        if name not in listed:
            raise OperatorError(
                "unknown_member",
                f"{name[:64]} isn't waited for here; the policy lists {', '.join(listed) or 'nobody'}.",
                "Name another member of sync_members, or link.NAME for a destination whose durability is sync.",
                listed=listed,
            )

    def _by_hand(self, change: SyncModeChange | None) -> None:
        assert change is not None, "it is listed"
        self._changed(change)
        self._tell()

    # What goes out.

    def _changed(self, change: SyncModeChange) -> None:
        level = log.warning if change.mode is SyncMode.DOWNGRADED else log.info
        level(
            event_name(change),
            name=change.name,
            by=change.by,
            confirmed=change.confirmed,
            durable=change.durable,
            waited_ms=change.waited_ms,
        )
        self.on_change(change)

    def _tell(self) -> None:
        upto = self.confirming.upto
        if self._started and upto > self._told:
            self._told = upto
            self.moved(upto)


def event_name(change: SyncModeChange) -> str:
    """Its name among the broker's own records, and in the log."""
    kind = "link" if change.name.startswith(LINK_PREFIX) else "member"
    return f"{kind}_downgraded" if change.mode is SyncMode.DOWNGRADED else f"{kind}_upgraded"
