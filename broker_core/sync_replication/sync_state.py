"""Which records others have on their disks, as they say themselves: what `fully_durable` waits for, and `persisted` where it is sync. Pure.

The others are a group's `sync` members, by their names, and `sync` destinations, by their links' clients (`link.NAME`, which no member can be
called). One is waited for while the policy lists it and it isn't downgraded. It is downgraded when what it hasn't confirmed has waited for
`downgrade_after_ms`, and upgraded when it confirms within half of that again; by hand both hold until they are undone by hand.
Each broker decides for what it acknowledges itself: nobody votes, and nothing that was said is taken back.

Time in which another couldn't have been heard isn't counted against it: a member that is cut off from the engine hears no other. A link
that is away is heard: it confirms nothing, which is what the limit is for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

POLICY: Final = "policy"
"""Who decided, where nobody did by hand."""


class SyncMode(StrEnum):
    """Whether one is waited for."""

    SYNC = "sync"
    ASYNC = "async"
    """The policy doesn't list it."""
    DOWNGRADED = "downgraded"


class SyncModeChange(NamedTuple):
    """A decision, with its figures."""

    name: str
    mode: SyncMode
    by: str
    """`policy`, or who did it by hand."""
    confirmed: int
    durable: int
    waited_ms: int

    @property
    def sentence(self) -> str:
        lacks = self.durable - self.confirmed
        if self.mode is SyncMode.DOWNGRADED:
            return (
                f"{self.name} isn't waited for any more ({self.by}): it has confirmed record {self.confirmed} of {self.durable},"
                f" and the other {lacks} have waited for up to {self.waited_ms} ms"
            )
        return f"{self.name} is waited for again ({self.by}): it has confirmed record {self.confirmed} of {self.durable}"


@dataclass(slots=True)
class _AwaitedPeer:
    confirmed: int = 0
    goal: int = 0
    """What was durable here when it was looked at; confirmed, the next is what is durable then."""
    since: float = 0.0
    downgraded_by: str = ""


class SyncReplicationState:
    """Those that one broker waits for. Moments are seconds."""

    def __init__(
        self, own: str, durable: int, now: float, by_hand: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """`own`: this broker's name in its group. `by_hand`: who was downgraded by whom before."""
        self._own, self._durable = own, durable
        self._by_hand = dict(by_hand)
        self._awaited: dict[str, _AwaitedPeer] = {}
        self._said: dict[str, int] = {}
        """What each has confirmed, listed or not."""
        self._limit_s = 30.0
        self.upto = durable
        """Everything up to there has been confirmed by all that are waited for. Never goes back."""
        self.downgrades, self.upgrades = Counter[str](), Counter[str]()
        """How often each was."""

    def apply_policy(self, names: Collection[str], downgrade_after_ms: int, now: float) -> None:
        """The policy that is in force from now on."""
        self._limit_s = downgrade_after_ms / 1_000
        listed = [name for name in names if name != self._own]
        self._awaited = {
            name: self._awaited.get(name)
            or _AwaitedPeer(self._said.get(name, 0), self._durable, now, self._by_hand.get(name, ""))
            for name in listed
        }
        self._advance()

    def mark_start_unconfirmed(self) -> None:
        """Nothing that the journal had at the start is known to be anybody else's too, where anybody is waited for."""
        if self._awaited:
            self.upto = 0
            self._advance()  # where nobody of them is waited for

    @property
    def is_required(self) -> bool:
        """Whether anybody's word is asked for."""
        return bool(self._awaited)

    def on_local_durable(self, sequence: int, now: float) -> None:
        """This broker has synced everything up to there."""
        self._durable = sequence
        for one in self._awaited.values():
            if one.goal <= one.confirmed < sequence:
                one.goal, one.since = sequence, now
        self._advance()

    def on_peer_confirmed(self, name: str, sequence: int, now: float) -> SyncModeChange | None:
        """Another has everything up to there that it is to have. What follows from it."""
        self._said[name] = sequence
        one = self._awaited.get(name)
        if one is None:
            return None
        if sequence < one.confirmed:  # another process of that name: it has the whole time
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
        """Who is too slow. `unheard`: who couldn't have been heard of; that time isn't counted."""
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
        """For so long this process did nothing, so it heard nobody: that isn't counted either."""
        for one in self._awaited.values():
            one.since = min(one.since + seconds, now)

    def downgrade(self, name: str, by: str, now: float) -> SyncModeChange | None:
        """By hand, until it is upgraded by hand. None: the policy doesn't list it."""
        one = self._awaited.get(name)
        if one is None:
            return None
        self._by_hand[name] = by
        change = self._downgrade(name, one, by, now)
        self._advance()
        return change

    def upgrade(self, name: str, by: str, now: float) -> SyncModeChange | None:
        """By hand: it has the whole time again. None: the policy doesn't list it."""
        one = self._awaited.get(name)
        if one is None:
            return None
        self._by_hand.pop(name, None)
        return self._upgrade(name, one, by, now)

    def mode(self, name: str) -> SyncMode:
        """Whether one is waited for; a sync member's own journal always is."""
        one = self._awaited.get(name)
        if one is None:
            return SyncMode.SYNC if name == self._own and self._awaited else SyncMode.ASYNC
        return SyncMode.DOWNGRADED if one.downgraded_by else SyncMode.SYNC

    def downgraded_by(self, name: str) -> str:
        """Who downgraded it; "" while it isn't."""
        one = self._awaited.get(name)
        return one.downgraded_by if one is not None else ""

    def waited_ms(self, name: str, now: float) -> int:
        """For how long what it hasn't confirmed has waited."""
        one = self._awaited.get(name)
        return 0 if one is None else int(self._waited_s(one, now) * 1_000)

    @property
    def peers(self) -> list[str]:
        """The others that the policy lists."""
        return list(self._awaited)

    def confirmed_sequence_of(self, name: str) -> int:
        """What one has confirmed here."""
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
        waited = [one.confirmed for one in self._awaited.values() if self._is_waited_for(one)]
        self.upto = max(self.upto, min([self._durable, *waited]))
