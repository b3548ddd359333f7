"""Rules: WHEN a signal crosses a shape in a scope, CHOOSE a client, DO the next rung of a ladder, in a mode.

The engine knows only rules. Presets (`presets/`) compile the settings of systems that operators know into
rules. Limits in rules are resolved numbers: bytes, bytes per second, messages, or milliseconds.
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
"""Limit that no value exceeds."""
INSTANCE: Final = ""
"""Transport name in rules for clients whose transport has no rules of its own."""
TICK_MS: Final = 1_000
"""Interval at which ages, rates and holds are checked."""
SAMPLES: Final = 60
"""Maximum samples stored of each client."""
MARKS: Final = 16
"""Number of marks that cover a rate's period where the samples do not reach as far."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Rule with its limit resolved. The limit is exceeded when the signal is greater than it."""

    name: str
    """Preset and setting, such as `amps.client_max_capacity.memory`, or the operator's name of a custom rule.
    """
    setting: str
    """Setting as its system calls it, such as `ClientMaxCapacity`; the rule's name for custom rules."""
    scope: str
    """Pool name for LARGEST_IN_POOL; for SELF the transport name, INSTANCE for transports without rules."""
    signal: Signal
    shape: Shape
    limit: int
    ladder: tuple[Rung, ...]
    revision: int
    coded: DecisionReason | None = None
    """Reason code, where it differs from that of the signal."""
    mode: EnforcementMode = EnforcementMode.ENFORCE
    hold_ms: int = 0
    """How long the limit must be exceeded without interruption."""
    window_ms: int = 0
    """COUNT_IN_WINDOW: period in which crossings count, 0 for ever. RATE_BELOW: period of the rate."""
    count: int = 0
    """COUNT_IN_WINDOW: number of crossings.

    RATE_BELOW: number of checks at which the rate must still be low.
    """
    clear: int = 0
    """SET_CLEAR: value at or below which the rule is within its limit again."""
    check_ms: int = TICK_MS
    """Interval of the rule's checks."""
    cooldown_ms: int = 0
    """How long the rule does nothing after it has acted and the signal has fallen."""
    guard_bytes: int = 0
    """RATE_BELOW: no client is slow while less than this waits."""
    per_subscription: bool = False
    """Whether each subscription is measured separately.

    Always so for signals that only subscriptions have.
    """
    protected: tuple[str, ...] = ()
    """Patterns of names of clients that the rule never acts on."""
    at_tick: bool = False
    """Whether the rule is judged only at the tick, even where it could be judged at enqueue."""
    lowest_rung_value: int = field(init=False, compare=False, default=0)
    """No rung can fire at a value that is not greater than this. Derived."""
    at_enqueue: bool = field(init=False, compare=False, default=False)
    """Whether the rule is judged immediately when messages are queued or spooled. Derived."""
    counted: bool = field(init=False, compare=False, default=False)
    """Whether the subscription itself counts the crossings, also between two checks. Derived."""

    def __post_init__(self) -> None:
        counted = self.shape is Shape.COUNT_IN_WINDOW and self.signal is Signal.WINDOW_FULL
        lowest = min(rung.at_percent for rung in self.ladder)
        object.__setattr__(self, "counted", counted)
        object.__setattr__(self, "lowest_rung_value", 0 if counted else self.limit * lowest // 100)
        object.__setattr__(self, "at_enqueue", self._is_at_enqueue())

    @property
    def unit(self) -> Unit:
        """Unit of the limit and of observed values."""
        return Unit.TIMES if self.shape is Shape.COUNT_IN_WINDOW else SIGNALS[self.signal].unit

    @property
    def reason(self) -> DecisionReason:
        """Reason code of the rule's decisions."""
        return self.coded or SIGNALS[self.signal].reason

    @property
    def target_selection(self) -> TargetSelection:
        """How the client to act on is selected."""
        return TargetSelection.LARGEST_IN_POOL if self.signal in POOL_SIGNALS else TargetSelection.SELF

    def rate_period_ms(self, step_bytes: int) -> int:
        """Return the period over which a RATE_BELOW rule measures the rate, ms.

        A peer's window may move in steps of `step_bytes`. The period is then longer than one step of a peer
        at the limit, because no rate can be measured over less than a step.
        """
        if not step_bytes or self.signal is not Signal.DRAIN_RATE:
            return self.window_ms
        return max(self.window_ms, step_bytes * 1_000 // max(1, self.limit) + 1)

    def worst_case_ms(self, rung: int = 0, step_bytes: int = 0) -> int:
        """Return the longest time from crossing the limit to the action of rung `rung`, ms.

        0 means the same event-loop iteration. The time includes hold and check interval. For a rate it also
        includes the measured period and the checks at which the rate must still be low. The period is longer
        for a peer whose window moves in steps of `step_bytes`.
        """
        rung_settings = self.ladder[rung]
        if self.at_enqueue and rung == 0:
            return 0
        if self.shape is Shape.RATE_BELOW:
            period_ms = self.rate_period_ms(step_bytes)
            full_ticks_ms = -(-period_ms // TICK_MS) * TICK_MS
            delay_ms = full_ticks_ms + TICK_MS
            if period_ms > self.window_ms:
                # Two ticks until the backlog has been seen to wait for a second. A slow peer may acknowledge
                # a step of its window in the middle of the period; then another whole period has to pass.
                delay_ms += 2 * TICK_MS + full_ticks_ms
            if period_ms > (SAMPLES - 2) * TICK_MS:
                delay_ms += period_ms // MARKS + TICK_MS
            return (
                delay_ms
                + max(self.hold_ms + rung_settings.after_ms, self.count * self.check_ms)
                + self.check_ms
            )
        hold_ms = self.hold_ms if rung_settings.at_percent >= 100 else 0
        # Checks rarer than the tick are due at multiples of `check_ms` and made at the next tick.
        check_delay_ms = self.check_ms + TICK_MS if self.check_ms > TICK_MS else TICK_MS
        return hold_ms + rung_settings.after_ms + check_delay_ms

    def _is_at_enqueue(self) -> bool:
        """Return whether the rule can and shall be judged at enqueue.

        Only rules without hold, cooldown or slower checks, whose first rung fires at the limit itself.
        """
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
    """Resolved limits of a pool, bytes, and its spool directory."""

    name: str
    memory: int
    disk: int
    disk_path: str


class ClientLimits(NamedTuple):
    """Lowest limits of a client's rules for the hot path: bytes of its outbox and of its spool file."""

    memory: int = UNLIMITED
    disk: int = UNLIMITED


NO_LIMITS: Final = ClientLimits()
"""Limits of a client without rules."""


_LIMITED: Final = (Signal.OUTBOUND_BYTES, Signal.SPOOL_BYTES)
"""Signals of `ClientLimits`, in the order of its fields."""


def is_client_limit(rule: Rule) -> bool:
    """Return whether `client_limits` fully expresses the rule."""
    return rule.at_enqueue and rule.signal in _LIMITED


def client_limits(rules: Iterable[Rule]) -> ClientLimits:
    """Return the lowest limits that these rules judge at enqueue, in any mode."""
    lowest = dict.fromkeys(_LIMITED, UNLIMITED)
    for rule in rules:
        if is_client_limit(rule):
            lowest[rule.signal] = min(lowest[rule.signal], rule.limit)
    return ClientLimits(*lowest.values())
