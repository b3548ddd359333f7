"""Records that the peers of a broker have on disk, by their own reports. Pure.

`fully_durable` waits for all peers; `persisted` waits for them where it is sync.

Peers are a group's `sync` members, by name, and `sync` destinations, by their links' clients (`link.NAME`,
which no member can be called). The broker waits for a peer while the policy lists it and it isn't
downgraded. A peer is downgraded when unconfirmed records have waited for `downgrade_after_ms`. It is
upgraded when it confirms within half of that time. Manual decisions hold until an operator changes them.
Each broker decides for its own acknowledgements: there is no vote, and no acknowledgement is withdrawn.

Time in which a peer couldn't be reached doesn't count against it: a member that is cut off from the log
service receives nothing from the others. A disconnected link doesn't count as unreachable: it confirms
nothing, and the limit exists for that case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

POLICY: Final = "policy"
"""Author of decisions that no operator made."""


class SyncMode(StrEnum):
    """Whether the broker waits for a peer."""

    SYNC = "sync"
    ASYNC = "async"
    """The policy doesn't list the peer."""
    DOWNGRADED = "downgraded"


class SyncModeChange(NamedTuple):
    """A downgrade or upgrade of a peer, with its figures.

    `confirmed`: newest record that the peer has; `durable`: newest record that this broker has on disk;
    `waited_ms`: how long the oldest unconfirmed record has waited.
    """

    name: str
    mode: SyncMode
    by: str
    """`policy`, or the operator."""
    confirmed: int
    durable: int
    waited_ms: int

    @property
    def sentence(self) -> str:
        missing = self.durable - self.confirmed
        if self.mode is SyncMode.DOWNGRADED:
            return (
                f"{self.name} isn't waited for any more ({self.by}): it has confirmed record "
                f"{self.confirmed} of {self.durable},"
                f" and the other {missing} have waited for up to {self.waited_ms} ms"
            )
        return (
            f"{self.name} is waited for again ({self.by}): it has confirmed record {self.confirmed} "
            f"of {self.durable}"
        )


@dataclass(slots=True)
class _AwaitedPeer:
    confirmed: int = 0
    target_sequence: int = 0
    """Newest durable record at the last check of the peer.

    When the peer confirms it, the goal moves to the newest one.
    """
    waiting_since: float = 0.0
    downgraded_by: str = ""


class SyncReplicationState:
    """The peers of one broker. Times are monotonic seconds."""

    def __init__(
        self,
        local_name: str,
        durable: int,
        now: float,
        manual_downgrades: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Start without peers.

        `local_name`: this broker's name in its group. `manual_downgrades`: the stored ones, peer to operator.
        """
        self._local_name, self._durable = local_name, durable
        self._manual_downgrades = dict(manual_downgrades)
        self._peers: dict[str, _AwaitedPeer] = {}
        self._confirmed_by_peer: dict[str, int] = {}
        """Newest confirmed record of each peer, listed or not."""
        self._limit_s = 30.0
        self.confirmed_sequence = durable
        """The record up to which all peers that are waited for have everything. It never decreases."""
        self.downgrades, self.upgrades = Counter[str](), Counter[str]()
        """Number of downgrades and upgrades of each peer."""

    def apply_policy(self, names: Collection[str], downgrade_after_ms: int, now: float) -> None:
        """Set the peers and the limit of the policy in force. Known peers keep their state."""
        self._limit_s = downgrade_after_ms / 1_000
        listed = [name for name in names if name != self._local_name]
        self._peers = {
            name: self._peers.get(name)
            or _AwaitedPeer(
                self._confirmed_by_peer.get(name, 0),
                self._durable,
                now,
                self._manual_downgrades.get(name, ""),
            )
            for name in listed
        }
        self._advance_confirmed()

    def mark_start_unconfirmed(self) -> None:
        """Set `confirmed_sequence` to 0 if any peer is listed.

        No peer is known to have the records that the journal had at start.
        """
        if self._peers:
            self.confirmed_sequence = 0
            self._advance_confirmed()  # all of them may be downgraded

    @property
    def is_required(self) -> bool:
        """Whether any peer is listed."""
        return bool(self._peers)

    def on_local_durable(self, sequence: int, now: float) -> None:
        """Record that this broker has synced everything up to `sequence`."""
        self._durable = sequence
        for peer in self._peers.values():
            if peer.target_sequence <= peer.confirmed < sequence:
                peer.target_sequence, peer.waiting_since = sequence, now
        self._advance_confirmed()

    def on_peer_confirmed(self, name: str, sequence: int, now: float) -> SyncModeChange | None:
        """Record that a peer has everything up to `sequence` that it must have.

        Return its upgrade, if it follows.
        """
        self._confirmed_by_peer[name] = sequence
        peer = self._peers.get(name)
        if peer is None:
            return None
        if sequence < peer.confirmed:  # a new process of that name: its time limit begins again
            peer.target_sequence, peer.waiting_since = self._durable, now
        peer.confirmed = sequence
        change = None
        if sequence >= peer.target_sequence:
            is_prompt = now - peer.waiting_since < self._limit_s / 2
            if peer.downgraded_by == POLICY and (is_prompt or sequence >= self._durable):
                change = self._upgrade(name, peer, POLICY, now)
            peer.target_sequence, peer.waiting_since = self._durable, now
        self._advance_confirmed()
        return change

    def check_timeouts(self, now: float, unreachable: Collection[str] = ()) -> list[SyncModeChange]:
        """Downgrade the peers that are too slow; return the changes.

        `unreachable`: peers that couldn't be reached; that time doesn't count against them.
        """
        changes = []
        for name, peer in self._peers.items():
            if name in unreachable:
                peer.waiting_since = now
            elif self._is_awaited(peer) and self._waiting_s(peer, now) > self._limit_s:
                changes.append(self._downgrade(name, peer, POLICY, now))
        if changes:
            self._advance_confirmed()
        return changes

    def exclude_pause(self, seconds: float, now: float) -> None:
        """Don't count `seconds` in which this process stood still against any peer."""
        for peer in self._peers.values():
            peer.waiting_since = min(peer.waiting_since + seconds, now)

    def downgrade(self, name: str, by: str, now: float) -> SyncModeChange | None:
        """Downgrade a peer manually, until `upgrade`. Return None if the policy doesn't list it."""
        peer = self._peers.get(name)
        if peer is None:
            return None
        self._manual_downgrades[name] = by
        change = self._downgrade(name, peer, by, now)
        self._advance_confirmed()
        return change

    def upgrade(self, name: str, by: str, now: float) -> SyncModeChange | None:
        """Upgrade a peer manually; its time limit begins again. Return None if the policy doesn't list it."""
        peer = self._peers.get(name)
        if peer is None:
            return None
        self._manual_downgrades.pop(name, None)
        return self._upgrade(name, peer, by, now)

    def mode(self, name: str) -> SyncMode:
        """Return whether the broker waits for a peer. A sync member always waits for its own journal."""
        peer = self._peers.get(name)
        if peer is None:
            return SyncMode.SYNC if name == self._local_name and self._peers else SyncMode.ASYNC
        return SyncMode.DOWNGRADED if peer.downgraded_by else SyncMode.SYNC

    def downgraded_by(self, name: str) -> str:
        """Return who downgraded a peer; "" while it isn't downgraded."""
        peer = self._peers.get(name)
        return peer.downgraded_by if peer is not None else ""

    def waited_ms(self, name: str, now: float) -> int:
        """Return for how long unconfirmed records of a peer have waited."""
        peer = self._peers.get(name)
        return 0 if peer is None else int(self._waiting_s(peer, now) * 1_000)

    @property
    def peers(self) -> list[str]:
        """Names of the peers that the policy lists."""
        return list(self._peers)

    def get_confirmed_sequence(self, name: str) -> int:
        """Return the newest record that a peer has confirmed."""
        return self._confirmed_by_peer.get(name, 0)

    @staticmethod
    def _is_awaited(peer: _AwaitedPeer) -> bool:
        return not peer.downgraded_by

    def _waiting_s(self, peer: _AwaitedPeer, now: float) -> float:
        return max(now - peer.waiting_since, 0.0) if peer.confirmed < peer.target_sequence else 0.0

    def _downgrade(self, name: str, peer: _AwaitedPeer, by: str, now: float) -> SyncModeChange:
        peer.downgraded_by = by
        self.downgrades[name] += 1
        return SyncModeChange(
            name,
            SyncMode.DOWNGRADED,
            by,
            peer.confirmed,
            self._durable,
            int(self._waiting_s(peer, now) * 1_000),
        )

    def _upgrade(self, name: str, peer: _AwaitedPeer, by: str, now: float) -> SyncModeChange:
        peer.downgraded_by, peer.target_sequence, peer.waiting_since = "", self._durable, now
        self.upgrades[name] += 1
        return SyncModeChange(name, SyncMode.SYNC, by, peer.confirmed, self._durable, 0)

    def _advance_confirmed(self) -> None:
        """Raise `confirmed_sequence` to the lowest confirmed record of this broker and the awaited peers."""
        confirmed = [peer.confirmed for peer in self._peers.values() if self._is_awaited(peer)]
        self.confirmed_sequence = max(self.confirmed_sequence, min([self._durable, *confirmed]))
