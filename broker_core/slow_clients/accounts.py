"""One client's account with a pool, and its recent history. Plain numbers, kept exact by the guard."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, overload

from broker_core.slow_clients.rules import ClientLimits, Rule, client_limits
from broker_core.slow_clients.signals import (
    NO_HOLDS,
    Backlog,
    Holds,
    Sample,
    SubscriptionSignals,
    Waiting,
    age_ms,
)

if TYPE_CHECKING:
    from broker_core.slow_clients.pools import Pool

SAMPLES: Final = 60
_FIGURES: Final = 5


class Account:
    """What a client takes from its pool. Only the guard writes it; everybody may read. `evaluate` sees it as a client.

    `memory_alarm` and `disk_alarm` are the one number each that the hot path compares with: the client's
    limit, or the bound up to which its place in the pool's ranking is good, whichever is lower.
    """

    __slots__ = (
        "backlog",
        "closing",
        "connected",
        "disk",
        "disk_alarm",
        "fresh",
        "history",
        "holds",
        "limits",
        "memory",
        "memory_alarm",
        "name",
        "narrow",
        "offlined",
        "offlined_at",
        "pool",
        "rules",
        "subscriptions",
        "transport",
        "user",
    )

    def __init__(self, name: str, transport: str, user: str, backlog: Backlog, pool: Pool, connected: int) -> None:
        self.name = name
        self.transport = transport
        self.user = user
        self.backlog = backlog
        self.pool = pool
        self.connected = connected
        self.rules: tuple[Rule, ...] = ()
        self.limits = ClientLimits()
        self.fresh = ClientLimits()
        """The lowest limits of rules judged at enqueue that haven't acted on what the client holds now."""
        self.memory = 0
        self.disk = 0
        self.memory_alarm = 0
        self.disk_alarm = 0
        self.offlined = False
        self.offlined_at = 0
        self.closing = False
        self.history: History | None = None
        self.holds: Holds = NO_HOLDS
        self.subscriptions: tuple[SubscriptionSignals, ...] = ()
        self.narrow: tuple[tuple[SubscriptionSignals, tuple[Rule, ...]], ...] = ()
        """Those of its subscriptions that rules look at."""

    @property
    def memory_percent(self) -> float:
        """Share of the pool's memory limit, 0 to 100 and more."""
        return 100.0 * self.memory / self.pool.limits.memory

    @property
    def disk_percent(self) -> float:
        """Share of the pool's disk limit, 0 to 100 and more."""
        return 100.0 * self.disk / self.pool.limits.disk

    def remember(self, holds: Holds) -> bool:
        """Take over what rules remember. True when its limits changed by it: it must be ranked anew."""
        before, known = self.fresh, self.holds.keys()
        self.holds = holds
        if holds.keys() != known:
            self.freshen()
        return self.fresh != before

    def freshen(self) -> None:
        """Its limits, without those of rules that have acted already."""
        self.fresh = self.limits
        if self.holds:
            self.fresh = client_limits(tuple(rule for rule in self.rules if (rule.name, "") not in self.holds))

    # As evaluate() reads a client.

    @property
    def pool_name(self) -> str:
        return self.pool.limits.name

    @property
    def outbox_bytes(self) -> int:
        return self.memory

    @property
    def spool_bytes(self) -> int:
        return self.disk

    @property
    def oldest_at(self) -> int:
        return self.backlog.oldest_at

    @property
    def sent_bytes(self) -> int:
        return self.backlog.sent_bytes

    @property
    def write_blocked_since(self) -> int:
        return self.backlog.blocked_since

    @property
    def outbox_messages(self) -> int:
        return self.backlog.waiting().outbox_messages

    @property
    def spool_messages(self) -> int:
        return self.backlog.waiting().spool_messages

    def waiting(self) -> Waiting:
        """The counts for a decision."""
        return self.backlog.waiting()

    @property
    def conflation_bytes(self) -> int:
        return sum(subscription.conflation_bytes for subscription in self.subscriptions)

    def past(self, until_ns: int) -> Sample | None:
        """The newest sample that isn't newer than that."""
        return self.history.past(until_ns) if self.history is not None else None

    def recent(self, now_ns: int) -> Samples:
        """The last 60 samples, the newest of now."""
        values = self.history.values(SAMPLES - 1) if self.history is not None else array("q")
        values.extend((now_ns, self.memory, self.disk, age_ms(self.oldest_at, now_ns), self.sent_bytes))
        return Samples(values)


class Samples(Sequence[Sample]):
    """Samples, made of plain numbers only when somebody reads them: a decision must be quick, its readers needn't be."""

    __slots__ = ("_values",)

    def __init__(self, values: array[int]) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values) // _FIGURES

    def __iter__(self) -> Iterator[Sample]:
        return map(Sample._make, zip(*[iter(self._values)] * _FIGURES, strict=True))

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Sample, ...]: ...
    def __getitem__(self, index: int | slice) -> Sample | tuple[Sample, ...]:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Samples({list(self)})"


class History:
    """The last 60 samples of one client, in 2.4 KiB, because there may be twenty thousand slow clients."""

    __slots__ = ("_next", "_values", "idle")

    def __init__(self) -> None:
        self._values = array("q")
        self._next = 0
        self.idle = 0
        """How many of the newest samples were empty."""

    def add(self, at: int, memory: int, disk: int, age: int, sent: int) -> None:
        """Note one sample; the 61st replaces the first."""
        values, slot = self._values, self._next
        if len(values) < _FIGURES * SAMPLES:
            values.extend((at, memory, disk, age, sent))
        else:
            values[slot : slot + _FIGURES] = array("q", (at, memory, disk, age, sent))
        self._next = (slot + _FIGURES) % (_FIGURES * SAMPLES)
        self.idle = 0 if memory or disk else self.idle + 1

    def values(self, newest: int) -> array[int]:
        """A copy of the figures of the newest samples, at most so many; oldest first."""
        values = self._values
        first = self._next if len(values) == _FIGURES * SAMPLES else 0
        ordered = values[first:] + values[:first]
        del ordered[: max(0, len(ordered) - _FIGURES * newest)]
        return ordered

    def past(self, until_ns: int) -> Sample | None:
        """The newest sample that isn't newer than that."""
        values, held = self._values, len(self._values)
        for back in range(_FIGURES, held + 1, _FIGURES):
            slot = (self._next - back) % held
            if values[slot] <= until_ns:
                return Sample(*values[slot : slot + _FIGURES])
        return None
