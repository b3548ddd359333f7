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
        lacks = self.durable - self.confirmed
        if self.mode is SyncMode.DOWNGRADED:
            return (
                f"{self.name} isn't waited for any more ({self.by}): it has confirmed record "
                f"{self.confirmed} of {self.durable},"
                f" and the other {lacks} have waited for up to {self.waited_ms} ms"
            )
        return (
            f"{self.name} is waited for again ({self.by}): it has confirmed record {self.confirmed} "
            f"of {self.durable}"
        )


@dataclass(slots=True)
class _AwaitedPeer:
    confirmed: int = 0
    goal: int = 0
    """Newest durable record at the last check of the peer.

    When the peer confirms it, the goal moves to the newest one.
    """
    since: float = 0.0
    downgraded_by: str = ""


class SyncReplicationState:
    """The peers of one broker. Times are monotonic seconds."""

    def __init__(
        self, own: str, durable: int, now: float, by_hand: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Start without peers.

        `own`: this broker's name in its group. `by_hand`: stored manual downgrades, peer to operator.
        """
        self._own, self._durable = own, durable
        self._by_hand = dict(by_hand)
        self._awaited: dict[str, _AwaitedPeer] = {}
        self._said: dict[str, int] = {}
        """Newest confirmed record of each peer, listed or not."""
        self._limit_s = 30.0
        self.upto = durable
        """The record up to which all peers that are waited for have everything. It never decreases."""
        self.downgrades, self.upgrades = Counter[str](), Counter[str]()
        """Number of downgrades and upgrades of each peer."""

    def apply_policy(self, names: Collection[str], downgrade_after_ms: int, now: float) -> None:
        """Set the peers and the limit of the policy in force. Known peers keep their state."""
        self._limit_s = downgrade_after_ms / 1_000
        listed = [name for name in names if name != self._own]
        self._awaited = {
            name: self._awaited.get(name)
            or _AwaitedPeer(self._said.get(name, 0), self._durable, now, self._by_hand.get(name, ""))
            for name in listed
        }
        self._advance()

    def mark_start_unconfirmed(self) -> None:
        """Set `upto` to 0 if any peer is listed: no peer is known to have what the journal had at start."""
        if self._awaited:
            self.upto = 0
            self._advance()  # all of them may be downgraded

    @property
    def is_required(self) -> bool:
        """Whether any peer is listed."""
        return bool(self._awaited)

    def on_local_durable(self, sequence: int, now: float) -> None:
        """Record that this broker has synced everything up to `sequence`."""
        self._durable = sequence
        for one in self._awaited.values():
            if one.goal <= one.confirmed < sequence:
                one.goal, one.since = sequence, now
        self._advance()

    def on_peer_confirmed(self, name: str, sequence: int, now: float) -> SyncModeChange | None:
        """Record that a peer has everything up to `sequence` that it must have.

        Return its upgrade, if it follows.
        """
        self._said[name] = sequence
        one = self._awaited.get(name)
        if one is None:
            return None
        if sequence < one.confirmed:  # a new process of that name: its time limit begins again
            one.goal, one.since = self._durable, now
        one.confirmed = sequence
        change = None
        if sequence >= one.goal:
            quick = now - one.since < self._limit_s / 2
            if one.downgraded_by == POLICY and (quick or sequence >= self._durable):
                change = self._upgrade(name, one, POLICY, now)
            one.goal, one.since = self._durable, now
        self._advance()
        return change

    def check_timeouts(self, now: float, unheard: Collection[str] = ()) -> list[SyncModeChange]:
        """Downgrade the peers that are too slow; return the changes.

        `unheard`: peers that couldn't be reached; that time doesn't count against them.
        """
        changes = []
        for name, one in self._awaited.items():
            if name in unheard:
                one.since = now
            elif self._is_waited_for(one) and self._waited_s(one, now) > self._limit_s:
                changes.append(self._downgrade(name, one, POLICY, now))
        if changes:
            self._advance()
        return changes

    def exclude_pause(self, seconds: float, now: float) -> None:
        """Don't count `seconds` in which this process stood still against any peer."""
        for one in self._awaited.values():
            one.since = min(one.since + seconds, now)

    def downgrade(self, name: str, by: str, now: float) -> SyncModeChange | None:
        """Downgrade a peer manually, until `upgrade`. Return None if the policy doesn't list it."""
        one = self._awaited.get(name)
        if one is None:
            return None
        self._by_hand[name] = by
        change = self._downgrade(name, one, by, now)
        self._advance()
        return change

    def upgrade(self, name: str, by: str, now: float) -> SyncModeChange | None:
        """Upgrade a peer manually; its time limit begins again. Return None if the policy doesn't list it."""
        one = self._awaited.get(name)
        if one is None:
            return None
        self._by_hand.pop(name, None)
        return self._upgrade(name, one, by, now)

    def mode(self, name: str) -> SyncMode:
        """Return whether the broker waits for a peer. A sync member always waits for its own journal."""
        one = self._awaited.get(name)
        if one is None:
            return SyncMode.SYNC if name == self._own and self._awaited else SyncMode.ASYNC
        return SyncMode.DOWNGRADED if one.downgraded_by else SyncMode.SYNC

    def downgraded_by(self, name: str) -> str:
        """Return who downgraded a peer; "" while it isn't downgraded."""
        one = self._awaited.get(name)
        return one.downgraded_by if one is not None else ""

    def waited_ms(self, name: str, now: float) -> int:
        """Return for how long unconfirmed records of a peer have waited."""
        one = self._awaited.get(name)
        return 0 if one is None else int(self._waited_s(one, now) * 1_000)

    @property
    def peers(self) -> list[str]:
        """Names of the peers that the policy lists."""
        return list(self._awaited)

    def confirmed_sequence_of(self, name: str) -> int:
        """Return the newest record that a peer has confirmed."""
        return self._said.get(name, 0)

    @staticmethod
    def _is_waited_for(one: _AwaitedPeer) -> bool:
        return not one.downgraded_by

    def _waited_s(self, one: _AwaitedPeer, now: float) -> float:
        return max(now - one.since, 0.0) if one.confirmed < one.goal else 0.0

    def _downgrade(self, name: str, one: _AwaitedPeer, by: str, now: float) -> SyncModeChange:
        one.downgraded_by = by
        self.downgrades[name] += 1
        return SyncModeChange(
            name, SyncMode.DOWNGRADED, by, one.confirmed, self._durable, int(self._waited_s(one, now) * 1_000)
        )

    def _upgrade(self, name: str, one: _AwaitedPeer, by: str, now: float) -> SyncModeChange:
        one.downgraded_by, one.goal, one.since = "", self._durable, now
        self.upgrades[name] += 1
        return SyncModeChange(name, SyncMode.SYNC, by, one.confirmed, self._durable, 0)

    def _advance(self) -> None:
        """Raise `upto` to the lowest confirmed record of this broker and the peers that are waited for."""
        waited = [one.confirmed for one in self._awaited.values() if self._is_waited_for(one)]
        self.upto = max(self.upto, min([self._durable, *waited]))
