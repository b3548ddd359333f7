"""What one client takes of its pool, and its recent history. Plain numbers, kept exact by the guard."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, overload

from broker_core.slow_clients.accounts.pools import Pool
from broker_core.slow_clients.accounts.trail import Trail
from broker_core.slow_clients.accounts.watched import Watched
from broker_core.slow_clients.evaluate.forecast import Seen, rates
from broker_core.slow_clients.evaluate.holds import NO_HOLD, Hold, wakes
from broker_core.slow_clients.evaluate.judge import spared
from broker_core.slow_clients.evaluate.signal_table import BEHIND_MS, READINGS, beyond, of_client
from broker_core.slow_clients.evaluate.signals import (
    Backlog,
    Holds,
    Mark,
    Sample,
    SubscriptionView,
    Waiting,
    age_ms,
)
from broker_core.slow_clients.rules.rule import (
    MARKS,
    SAMPLES,
    TICK_MS,
    ClientLimits,
    Rule,
    Shape,
    client_limits,
)
from broker_core.slow_clients.rules.rulebook import RuleBook
from broker_core.slow_clients.rules.scopes import Subject

_FIGURES: Final = 5
_MS: Final = 1_000_000


class PoolUse:
    """What a client takes from its pool. Only the guard writes it; everybody may read. `evaluate` sees it as a client.

    `memory_alarm` and `disk_alarm` are the one number each that the hot path compares with: the client's
    limit, or the bound up to which its place in the pool's ranking is good, whichever is lower.
    """

    __slots__ = (
        "_trail",
        "backlog",
        "beyond",
        "closing",
        "connected",
        "disk",
        "disk_alarm",
        "followed",
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
        "rates",
        "rules",
        "transport",
        "user",
        "watched",
    )

    def __init__(
        self, name: str, transport: str, user: str, backlog: Backlog, pool: Pool, connected: int
    ) -> None:
        self.name = name
        self.transport = transport
        self.user = user
        self.backlog = backlog
        self.pool = pool
        self.connected = connected
        self.rules: tuple[Rule, ...] = ()
        self.beyond = False
        """Whether a rule may be passed while nothing of it is in memory or on disk."""
        self.rates: tuple[Rule, ...] = ()
        self.followed: tuple[Rule, ...] = ()
        """Those of its rules whose signal its samples don't have."""
        self._trail: Trail | None = None
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
        self.holds: dict[tuple[str, str], Hold] = {}
        self.watched: dict[str, Watched] = {}
        """Its subscriptions by their ids."""
        self.narrow: dict[str, Watched] = {}
        """Those that rules look at."""

    @property
    def subject(self) -> Subject:
        """Whom scopes are matched with."""
        return Subject(self.transport, self.user, self.name)

    def ask(self, book: RuleBook, view: SubscriptionView) -> tuple[Rule, ...]:
        """A book's rules for one of its subscriptions."""
        subject = Subject(self.transport, self.user, self.name, view.topic, view.id, view.name)
        return book.of_subscription(subject, durable=view.durable, prefetch=view.prefetch)

    def give(self, rules: tuple[Rule, ...]) -> None:
        """These are its rules from now on."""
        self.rules = rules
        self.limits = client_limits(rules)
        self.beyond = beyond(rules)
        self.rates = tuple(rule for rule in rules if rule.shape is Shape.RATE_BELOW)
        self.followed = tuple(
            rule
            for rule in rules
            if READINGS[rule.signal].column is None and rule.shape is not Shape.RATE_BELOW
        )
        self._trail = None

    def watch(self, watched: Watched, rules: tuple[Rule, ...]) -> None:
        """These are the rules of one of its subscriptions from now on."""
        watched.give(rules)
        if rules:
            self.narrow[watched.view.id] = watched
        else:
            self.narrow.pop(watched.view.id, None)

    def held(self, identity: str, rules: tuple[Rule, ...]) -> dict[str, Hold]:
        """What these rules remember of one of its subscriptions, or with "" of itself."""
        return {
            rule.name: hold for rule in rules if (hold := self.holds.get((rule.name, identity))) is not None
        }

    def remember(self, holds: Holds) -> bool:
        """Take over what rules remember. True when its limits changed by it: it must be ranked anew."""
        before, known = self.fresh, self.holds.keys()
        self.holds = holds if isinstance(holds, dict) else dict(holds)
        if holds.keys() != known:
            self.freshen()
        return self.fresh != before

    def forget(self, keys: Iterable[tuple[str, str]]) -> None:
        """What rules remembered of a subscription that has ended. Its client's own limits don't depend on that."""
        for key in keys:
            self.holds.pop(key, None)

    def freshen(self) -> None:
        """Its limits, without those of rules that have acted already."""
        self.fresh = self.limits
        if self.holds:
            self.fresh = client_limits(
                tuple(rule for rule in self.rules if (rule.name, "") not in self.holds)
            )

    def follow(self, now_ns: int) -> None:
        """Keep what rules read of it that its samples don't have."""
        values = [of_client(rule, self, now_ns) for rule in self.followed]
        if any(value > 0 for value in values):
            if self._trail is None:
                self._trail = Trail(len(values))
            self._trail.add(now_ns, values)
        else:
            self._trail = None

    def stirs(self, now_ns: int) -> bool:
        """Whether a rule that remembers nothing of it should be asked."""
        return any(wakes(rule, of_client(rule, self, now_ns)) for rule in self.rules)

    def seen(self, now_ns: int) -> Iterator[Seen]:
        """What each of its rules sees of it, for forecasts."""
        samples = tuple(self.recent(now_ns))
        for rule in self.rules:
            value, column = of_client(rule, self, now_ns), READINGS[rule.signal].column
            if rule.shape is Shape.RATE_BELOW:
                points = rates(rule, [(one.at, one.taken_bytes) for one in samples], self.lump_bytes)
            elif column is not None:
                points = [(one.at, one[column]) for one in samples]
            else:
                looks = self._trail.points(self.followed.index(rule)) if self._trail is not None else []
                points = [*(point for point in looks if point[0] < now_ns), (now_ns, value)]
            hold = self.holds.get((rule.name, ""), NO_HOLD)
            yield Seen(rule, value, hold, points, spared=spared(rule, self.name))

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
    def unacked_at(self) -> int:
        return self.backlog.unacked_at

    @property
    def taken_bytes(self) -> int:
        return self.backlog.taken_bytes

    @property
    def lump_bytes(self) -> int:
        return self.backlog.lump_bytes

    @property
    def owed_messages(self) -> int:
        return self.backlog.owed_messages

    @property
    def owed_bytes(self) -> int:
        return self.backlog.owed_bytes

    @property
    def behind_since(self) -> int:
        return self.history.behind_since if self.history is not None else 0

    @property
    def write_blocked_since(self) -> int:
        return self.backlog.blocked_since

    @property
    def outbox_messages(self) -> int:
        return self.backlog.messages

    @property
    def subscriptions(self) -> tuple[SubscriptionView, ...]:
        return tuple([one.view for one in self.watched.values()])

    def waiting(self) -> Waiting:
        """The counts for a decision."""
        return self.backlog.waiting()

    @property
    def conflation_bytes(self) -> int:
        return sum(one.view.conflation_bytes for one in self.watched.values())

    def taken_by(self, until_ns: int) -> Mark | None:
        """The newest that is remembered of what the peer had taken, not newer than that."""
        return self.history.taken_by(until_ns) if self.history is not None else None

    def look_back_ms(self) -> int:
        """How far back its rules on rates look; 0 when it has none."""
        return max([rule.look_back_ms(self.backlog.lump_bytes) for rule in self.rates]) if self.rates else 0

    def recent(self, now_ns: int) -> Samples:
        """The last 60 samples, the newest of now."""
        values = self.history.values(SAMPLES - 1) if self.history is not None else array("q")
        values.extend((now_ns, self.memory, self.disk, age_ms(self.oldest_at, now_ns), self.taken_bytes))
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
    """The last 60 samples of one client, in 2.4 KiB, because there may be twenty thousand slow clients.

    Where a rule on a rate looks back farther than they reach, 300 bytes of marks do.
    """

    __slots__ = ("_marks", "_next", "_values", "behind_since", "idle")

    def __init__(self) -> None:
        self._values = array("q")
        self._next = 0
        self._marks = array("q")
        self.idle = 0
        """How many of the newest samples were empty."""
        self.behind_since = 0
        """Since when the oldest message was a second old or older at each sample, ns; 0: it isn't."""

    def add(self, at: int, memory: int, disk: int, age: int, taken: int, look_back_ms: int = 0) -> None:
        """Note one sample; the 61st replaces the first. With a look-back farther than 60 samples, marks are kept too."""
        values, slot = self._values, self._next
        if len(values) < _FIGURES * SAMPLES:
            values.extend((at, memory, disk, age, taken))
        else:
            values[slot : slot + _FIGURES] = array("q", (at, memory, disk, age, taken))
        self._next = (slot + _FIGURES) % (_FIGURES * SAMPLES)
        self.idle = 0 if memory or disk else self.idle + 1
        self.behind_since = (self.behind_since or at) if age >= BEHIND_MS else 0
        if look_back_ms > (SAMPLES - 2) * TICK_MS:
            self._mark(at, taken, look_back_ms // MARKS)

    def _mark(self, at: int, taken: int, apart_ms: int) -> None:
        marks = self._marks
        if not marks or at - marks[-2] >= apart_ms * _MS:
            marks.extend((at, taken))
            del marks[: max(0, len(marks) - 2 * (MARKS + 3))]

    def values(self, newest: int) -> array[int]:
        """A copy of the figures of the newest samples, at most so many; oldest first."""
        values = self._values
        first = self._next if len(values) == _FIGURES * SAMPLES else 0
        ordered = values[first:] + values[:first]
        del ordered[: max(0, len(ordered) - _FIGURES * newest)]
        return ordered

    def taken_by(self, until_ns: int) -> Mark | None:
        """The newest that is remembered of what the peer had taken, not newer than that."""
        values, held = self._values, len(self._values)
        for back in range(_FIGURES, held + 1, _FIGURES):
            slot = (self._next - back) % held
            if values[slot] <= until_ns:
                return Mark(values[slot], values[slot + _FIGURES - 1])
        return next((mark for mark in reversed(self.marks()) if mark.at <= until_ns), None)

    def marks(self) -> tuple[Mark, ...]:
        """What is remembered besides the samples, oldest first."""
        return tuple(Mark._make(pair) for pair in zip(*[iter(self._marks)] * 2, strict=True))
