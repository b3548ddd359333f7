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
MAX_CHECK_PAUSE_S: Final = 1.0
"""Seconds between two checks from which on this process counts as stopped, or starved of CPU."""


class SyncReplication:
    """Sync replication of one broker. It calls `on_confirmed` after `start`."""

    def __init__(self, local_name: str, journal: Journal, clock: Clock) -> None:
        """Load the manual downgrades. `local_name`: this broker's name in its group, "" without one."""
        self._clock = clock
        self._start_sequence = journal.next_sequence - 1
        self.manual_downgrades = ManualDowngradeStore(journal.directory, journal.instance, journal.files)
        operators = {name: one.by for name, one in self.manual_downgrades.downgrades.items()}
        self.confirming = SyncReplicationState(local_name, self._start_sequence, clock.seconds(), operators)
        self.on_confirmed: Callable[[int], None] = lambda _: None
        """Called with the record up to which all peers that are waited for have everything."""
        self.on_change: Callable[[SyncModeChange], None] = lambda _: None
        """Called when a peer is downgraded or upgraded."""
        self.list_unreachable: Callable[[], Collection[str]] = tuple
        """Returns the peers that can't be reached at present; set by a group's log."""
        self.list_links: Callable[[], Iterable[tuple[str, int]]] = tuple
        """Returns the confirmed record of each sync destination, by the link's client.

        Set by the owner of the links.
        """
        self._is_logon_delayed = False
        self._started = False
        self._reported_sequence = 0

    def apply_policy(self, policy: PolicyDocument) -> None:
        """Apply the policy in force. A destination that is switched off isn't waited for."""
        instance = policy.instance
        links = [f"{LINK_PREFIX}{one.name}" for one in policy.destinations if one.is_sync]
        self._is_logon_delayed = bool(instance.sync_topics or links)
        self.confirming.apply_policy(
            [*instance.sync_members, *links], instance.downgrade_after_ms, self._clock.seconds()
        )
        if not self._started:
            self.confirming.mark_start_unconfirmed()
        self._report_progress()

    def start(self) -> None:
        """Allow reports of confirmed records, and check once."""
        self._started = True
        self.check_timeouts()

    async def run(self) -> None:
        """Check time limits every CHECK_INTERVAL_S, without end."""
        now = self._clock.seconds()
        while True:
            previous = now
            await asyncio.sleep(CHECK_INTERVAL_S)
            now = self._clock.seconds()
            if now - previous > MAX_CHECK_PAUSE_S:
                # Confirmations that arrived meanwhile wait in the sockets.
                log.warning("stood_still", seconds=round(now - previous, 1))
                self.confirming.exclude_pause(now - previous, now)
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
        return self.confirming.confirmed_sequence

    @property
    def is_start_unconfirmed(self) -> bool:
        """Whether publishers must wait at logon, because records of before the start are unconfirmed.

        An earlier process may not have acknowledged these records, and the peers may not have them.
        """
        return self._is_logon_delayed and not (
            self._started and self.confirmed_sequence >= self._start_sequence
        )

    @property
    def has_unreachable_peer(self) -> bool:
        """Whether some peer can't be reached, so that the length of a wait for it is unknown."""
        return bool(self.list_unreachable())

    # Confirmations.

    def on_local_durable(self, sequence: int) -> None:
        """Record that this broker has synced everything up to `sequence`.

        `on_confirmed` reports it after delivery.
        """
        self.confirming.on_local_durable(sequence, self._clock.seconds())

    def on_peer_confirmed(self, name: str, sequence: int) -> None:
        """Record that a peer has everything up to `sequence`."""
        change = self.confirming.on_peer_confirmed(name, sequence, self._clock.seconds())
        if change is not None:
            self._report_change(change)
        self._report_progress()

    def poll_links(self) -> None:
        """Read the confirmed records of the links, and report progress."""
        if self.confirming.is_required:
            for name, sequence in self.list_links():
                self.on_peer_confirmed(name, sequence)
        self._report_progress()

    def check_timeouts(self) -> None:
        """Downgrade peers that were waited for too long."""
        self.poll_links()
        for change in self.confirming.check_timeouts(self._clock.seconds(), self.list_unreachable()):
            self._report_change(change)
        self._report_progress()

    # Manual decisions.

    async def downgrade(self, name: str, by: str) -> None:
        """Stop waiting for a peer until an operator upgrades it. The decision is on disk first.

        Raises OperatorError unknown_member; JournalError not_kept.
        """
        self._check_listed(name)
        await self.manual_downgrades.record(
            name, ManualDowngrade(by, self._clock.now_ns()), self.confirming.peers
        )
        self._check_listed(name)
        self._on_manual_change(self.confirming.downgrade(name, by, self._clock.seconds()))

    async def upgrade(self, name: str, by: str) -> None:
        """Wait for a peer again. Raises as `downgrade`."""
        self._check_listed(name)
        await self.manual_downgrades.record(name, None, self.confirming.peers)
        self._check_listed(name)
        self._on_manual_change(self.confirming.upgrade(name, by, self._clock.seconds()))

    def downgraded_at(self, name: str) -> int:
        """Return when an operator downgraded the peer, ms UTC; 0 if none did."""
        decided = self.manual_downgrades.downgrades.get(name)
        return decided.at // 1_000_000 if decided is not None and self.confirming.downgraded_by(name) else 0

    def _check_listed(self, name: str) -> None:
        listed = self.confirming.peers
        if name not in listed:
            raise OperatorError(
                "unknown_member",
                f"{name[:64]} isn't waited for here; the policy lists {', '.join(listed) or 'nobody'}.",
                "Name another member of sync_members, or link.NAME for a destination whose "
                "durability is sync.",
                listed=listed,
            )

    def _on_manual_change(self, change: SyncModeChange | None) -> None:
        assert change is not None, "it is listed"
        self._report_change(change)
        self._report_progress()

    # Reports.

    def _report_change(self, change: SyncModeChange) -> None:
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

    def _report_progress(self) -> None:
        """Report a higher confirmed record, after `start`."""
        sequence = self.confirming.confirmed_sequence
        if self._started and sequence > self._reported_sequence:
            self._reported_sequence = sequence
            self.on_confirmed(sequence)


def event_name(change: SyncModeChange) -> str:
    """Return the name of a change among the broker's events, and in its text log."""
    kind = "link" if change.name.startswith(LINK_PREFIX) else "member"
    return f"{kind}_downgraded" if change.mode is SyncMode.DOWNGRADED else f"{kind}_upgraded"
