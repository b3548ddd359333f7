"""Rules: WHEN a signal crosses a shape in a scope, CHOOSE whom, DO the next rung of a ladder, in a mode.

The engine knows rules alone. Presets (`presets/`) compile the settings of a system an operator knows into
them. Limits in rules are resolved numbers: bytes, bytes a second, messages, or milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from broker_core.config.rule_terms import (
    POOL_SIGNALS,
    SIGNALS,
    DecisionReason,
    EnforcementMode,
    Shape,
    Signal,
    SignalSubject,
    TargetSelection,
    Unit,
)
from broker_core.config.rules import Rung

UNLIMITED: Final = 2**63 - 1
INSTANCE: Final = ""
"""The transport name of rules for clients whose transport has no rules of its own."""
TICK_MS: Final = 1_000
"""How often ages, rates and holds are looked at."""
SAMPLES: Final = 60
"""Looks at a client that are remembered one by one."""
MARKS: Final = 16
"""Into which a rate's look-back is divided where it goes farther than the samples."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule with its limit resolved. Over it means: the signal is greater than the limit."""

    name: str
    """Preset and setting, such as `amps.client_max_capacity.memory`, or what the operator called it."""
    setting: str
    """The setting in its system's own words, such as `ClientMaxCapacity`; for custom rules their name."""
    scope: str
    """A pool's name for LARGEST_IN_POOL; a transport's name for SELF, INSTANCE for those without rules."""
    signal: Signal
    shape: Shape
    limit: int
    ladder: tuple[Rung, ...]
    revision: int
    coded: DecisionReason | None = None
    """The reason code, where it isn't its signal's."""
    mode: EnforcementMode = EnforcementMode.ENFORCE
    hold_ms: int = 0
    window_ms: int = 0
    count: int = 0
    clear: int = 0
    check_ms: int = TICK_MS
    cooldown_ms: int = 0
    """After the rule has acted and the signal has fallen, this long nothing is done again."""
    guard_bytes: int = 0
    """With RATE_BELOW: nothing is slow while less than this waits."""
    per_subscription: bool = False
    """Measures each subscription alone; always so for signals that only subscriptions have."""
    protected: tuple[str, ...] = ()
    """Patterns of client names that are never acted on."""
    at_tick: bool = False
    """Judged at the tick only, even where it could be judged at enqueue."""
    wakes_at: int = field(init=False, compare=False, default=0)
    """A value that isn't greater is of no interest to any rung."""
    at_enqueue: bool = field(init=False, compare=False, default=False)
    """Whether it is judged at once, when something is queued or spooled, and not only at the tick."""
    counted: bool = field(init=False, compare=False, default=False)
    """How often the limit was passed is counted by the subscription itself, also between two looks."""

    def __post_init__(self) -> None:
        counted = self.shape is Shape.COUNT_IN_WINDOW and self.signal is Signal.WINDOW_FULL
        lowest = min(rung.at_percent for rung in self.ladder)
        object.__setattr__(self, "counted", counted)
        object.__setattr__(self, "wakes_at", 0 if counted else self.limit * lowest // 100)
        object.__setattr__(self, "at_enqueue", self._is_at_enqueue())

    @property
    def unit(self) -> Unit:
        """What its limit and figures are counted in."""
        return Unit.TIMES if self.shape is Shape.COUNT_IN_WINDOW else SIGNALS[self.signal].unit

    @property
    def reason(self) -> DecisionReason:
        """The reason code of its decisions."""
        return self.coded or SIGNALS[self.signal].reason

    @property
    def target_selection(self) -> TargetSelection:
        """Who is acted on."""
        return TargetSelection.LARGEST_IN_POOL if self.signal in POOL_SIGNALS else TargetSelection.SELF

    def look_back_ms(self, lump_bytes: int) -> int:
        """RATE_BELOW: over how long the rate is taken. Where the peer's own window moves in lumps of so many bytes, a
        peer at the floor takes one in less than this time; over less nothing can be said of it."""
        if not lump_bytes:
            return self.window_ms
        return max(self.window_ms, lump_bytes * 1_000 // max(1, self.limit) + 1)

    def worst_case_ms(self, rung: int = 0, lump_bytes: int = 0) -> int:
        """The longest from crossing the limit to that rung's act; 0 is in the same turn of the loop.

        Hold and check period; for a rate also the time it is taken over (longer for a peer whose window moves in lumps),
        and the checks at which it must still be low.
        """
        step = self.ladder[rung]
        if self.at_enqueue and rung == 0:
            return 0
        if self.shape is Shape.RATE_BELOW:
            looks_back = self.look_back_ms(lump_bytes)
            whole = -(-looks_back // TICK_MS) * TICK_MS
            seen = whole + TICK_MS
            if looks_back > self.window_ms:
                # Until it is seen that something has waited for a second; and a step of a slow peer may come in the
                # middle: not for as long again.
                seen += 2 * TICK_MS + whole
            if looks_back > (SAMPLES - 2) * TICK_MS:
                seen += looks_back // MARKS + TICK_MS
            return seen + max(self.hold_ms + step.after_ms, self.count * self.check_ms) + self.check_ms
        held = self.hold_ms if step.at_percent >= 100 else 0
        # Checks that are rarer than the tick go by the clock, and are made at the tick after their moment.
        looks = self.check_ms + TICK_MS if self.check_ms > TICK_MS else TICK_MS
        return held + step.after_ms + looks

    def _is_at_enqueue(self) -> bool:
        if self.signal in POOL_SIGNALS:
            measured = SignalSubject.POOL
        else:
            measured = SignalSubject.SUBSCRIPTION if self.per_subscription else SignalSubject.CLIENT
        return (
            measured in SIGNALS[self.signal].at_enqueue
            and self.shape in (Shape.HARD, Shape.PERCENT_OF, Shape.LARGEST_WHEN_POOL_OVER)
            and not self.hold_ms
            and not self.cooldown_ms
            and self.check_ms <= TICK_MS
            and (self.ladder[0].at_percent, self.ladder[0].after_ms) == (100, 0)
            and not self.at_tick
        )


class PoolLimits(NamedTuple):
    """A pool's resolved settings."""

    name: str
    memory: int
    disk: int
    disk_path: str


class ClientLimits(NamedTuple):
    """What its rules mean for a client, as two numbers for the hot path: bytes of its outbox, of its spool file."""

    memory: int = UNLIMITED
    disk: int = UNLIMITED


NO_LIMITS: Final = ClientLimits()


_LIMITED: Final = (Signal.OUTBOUND_BYTES, Signal.SPOOL_BYTES)


def is_client_limit(rule: Rule) -> bool:
    """Whether it is one of a client's, and all that it asks is in `client_limits`."""
    return rule.at_enqueue and rule.signal in _LIMITED


def client_limits(rules: Iterable[Rule]) -> ClientLimits:
    """What a client's rules mean for the hot path: the lowest limit that is judged at enqueue, in any mode."""
    lowest = dict.fromkeys(_LIMITED, UNLIMITED)
    for rule in rules:
        if is_client_limit(rule):
            lowest[rule.signal] = min(lowest[rule.signal], rule.limit)
    return ClientLimits(*lowest.values())
