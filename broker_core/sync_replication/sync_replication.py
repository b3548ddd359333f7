"""A broker's wait for its peers.

It receives their confirmations, and reports up to which record all of them have everything.
`SyncReplicationState` makes the decisions. This module asks for them ten times a second, logs and reports
them, and stores the manual ones.
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
"""Seconds between checks for peers that were waited for too long."""
STOOD_STILL_S: Final = 1.0
"""Seconds between two checks from which on this process counts as stopped, or starved of CPU."""


class SyncReplication:
    """Sync replication of one broker. It calls `moved` after `start`."""

    def __init__(self, own: str, journal: Journal, clock: Clock) -> None:
        """Load the manual downgrades. `own`: this broker's name in its group, "" without one."""
        self._clock = clock
        self._before = journal.next_sequence - 1
        self.by_hand = ManualDowngradeStore(journal.directory, journal.instance, journal.files)
        by = {name: one.by for name, one in self.by_hand.of.items()}
        self.confirming = SyncReplicationState(own, self._before, clock.seconds(), by)
        self.moved: Callable[[int], None] = lambda _: None
        """Called with the record up to which all peers that are waited for have everything."""
        self.on_change: Callable[[SyncModeChange], None] = lambda _: None
        """Called when a peer is downgraded or upgraded."""
        self.unheard: Callable[[], Collection[str]] = tuple
        """Returns the peers that can't be reached at present; set by a group's log."""
        self.links: Callable[[], Iterable[tuple[str, int]]] = tuple
        """Returns the confirmed record of each sync destination, by the link's client.

        Set by the owner of the links.
        """
        self._logons_wait = False
        self._started = False
        self._told = 0

    def apply_policy(self, policy: PolicyDocument) -> None:
        """Apply the policy in force. A destination that is switched off isn't waited for."""
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
        """Allow reports of confirmed records, and check once."""
        self._started = True
        self.check_timeouts()

    async def run(self) -> None:
        """Check time limits every CHECK_INTERVAL_S, without end."""
        now = self._clock.seconds()
        while True:
            before = now
            await asyncio.sleep(CHECK_INTERVAL_S)
            now = self._clock.seconds()
            if now - before > STOOD_STILL_S:
                # Confirmations that arrived meanwhile wait in the sockets.
                log.warning("stood_still", seconds=round(now - before, 1))
                self.confirming.exclude_pause(now - before, now)
            self.check_timeouts()

    @property
    def is_required(self) -> bool:
        """Whether the policy lists any peer."""
        return self.confirming.is_required

    @property
    def members(self) -> list[str]:
        """Listed members of the group, without this one and without links."""
        return [name for name in self.confirming.peers if not name.startswith(LINK_PREFIX)]

    @property
    def confirmed_sequence(self) -> int:
        """The record up to which all peers that are waited for have everything."""
        return self.confirming.upto

    @property
    def is_start_unconfirmed(self) -> bool:
        """Whether publishers must wait at logon, because records of before the start are unconfirmed.

        An earlier process may not have acknowledged these records, and the peers may not have them.
        """
        return self._logons_wait and not (self._started and self.confirmed_sequence >= self._before)

    @property
    def has_unreachable_peer(self) -> bool:
        """Whether some peer can't be reached, so that the length of a wait for it is unknown."""
        return bool(self.unheard())

    # Confirmations.

    def on_local_durable(self, sequence: int) -> None:
        """Record that this broker has synced everything up to `sequence`.

        `moved` reports it after delivery.
        """
        self.confirming.on_local_durable(sequence, self._clock.seconds())

    def on_peer_confirmed(self, name: str, sequence: int) -> None:
        """Record that a peer has everything up to `sequence`."""
        change = self.confirming.on_peer_confirmed(name, sequence, self._clock.seconds())
        if change is not None:
            self._changed(change)
        self._tell()

    def poll_links(self) -> None:
        """Read the confirmed records of the links, and report progress."""
        if self.confirming.is_required:
            for name, sequence in self.links():
                self.on_peer_confirmed(name, sequence)
        self._tell()

    def check_timeouts(self) -> None:
        """Downgrade peers that were waited for too long."""
        self.poll_links()
        for change in self.confirming.check_timeouts(self._clock.seconds(), self.unheard()):
            self._changed(change)
        self._tell()

    # Manual decisions.

    async def downgrade(self, name: str, by: str) -> None:
        """Stop waiting for a peer until an operator upgrades it. The decision is on disk first.

        Raises OperatorError unknown_member; JournalError not_kept.
        """
        self._check(name)
        await self.by_hand.record(name, ManualDowngrade(by, self._clock.now_ns()), self.confirming.peers)
        self._check(name)
        self._by_hand(self.confirming.downgrade(name, by, self._clock.seconds()))

    async def upgrade(self, name: str, by: str) -> None:
        """Wait for a peer again. Raises as `downgrade`."""
        self._check(name)
        await self.by_hand.record(name, None, self.confirming.peers)
        self._check(name)
        self._by_hand(self.confirming.upgrade(name, by, self._clock.seconds()))

    def downgraded_at(self, name: str) -> int:
        """Return when an operator downgraded the peer, ms UTC; 0 if none did."""
        decided = self.by_hand.of.get(name)
        return decided.at // 1_000_000 if decided is not None and self.confirming.downgraded_by(name) else 0

    def _check(self, name: str) -> None:
        listed = self.confirming.peers
        if name not in listed:
            raise OperatorError(
                "unknown_member",
                f"{name[:64]} isn't waited for here; the policy lists {', '.join(listed) or 'nobody'}.",
                "Name another member of sync_members, or link.NAME for a destination whose "
                "durability is sync.",
                listed=listed,
            )

    def _by_hand(self, change: SyncModeChange | None) -> None:
        assert change is not None, "it is listed"
        self._changed(change)
        self._tell()

    # Reports.

    def _changed(self, change: SyncModeChange) -> None:
        """Log and report a change."""
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
        """Report a higher confirmed record, after `start`."""
        upto = self.confirming.upto
        if self._started and upto > self._told:
            self._told = upto
            self.moved(upto)


def event_name(change: SyncModeChange) -> str:
    """Return the name of a change among the broker's events, and in its text log."""
    kind = "link" if change.name.startswith(LINK_PREFIX) else "member"
    return f"{kind}_downgraded" if change.mode is SyncMode.DOWNGRADED else f"{kind}_upgraded"
