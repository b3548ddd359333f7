"""Rules: WHEN a signal crosses a shape in a scope, CHOOSE whom, DO the next rung of a ladder, in a mode.

The engine knows rules alone. Presets (`presets/`) compile the settings of a system an operator knows into
them. Limits in rules are resolved numbers: bytes, bytes a second, messages, or milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

from broker_core.config.vocabulary import (
    FINAL_ACTIONS,
    UNIT_OF,
    Action,
    Choice,
    Mode,
    Shape,
    Signal,
    Unit,
)

__all__ = [
    "FINAL_ACTIONS", "INSTANCE", "TICK_MS", "UNIT_OF", "UNLIMITED", "Action", "Choice", "ClientLimits", "Mode",
    "PoolLimits", "Reason", "Rule", "Rung", "Shape", "Signal", "Unit", "client_limits", "in_shadow",
]

UNLIMITED: Final = 2**63 - 1
INSTANCE: Final = ""
"""The transport name of rules for clients whose transport has no rules of its own."""
TICK_MS: Final = 1_000
"""How often ages, rates and holds are looked at."""


class Reason(StrEnum):
    """Reason codes: one list for every protocol, the console and Spark."""

    POOL_MEMORY = "slow_client_pool_memory"
    MEMORY_CAPACITY = "slow_client_memory_capacity"
    DISK = "slow_client_disk"
    CAPACITY = "slow_client_capacity"
    AGE = "slow_client_age"
    BACKLOG = "slow_client_backlog"
    CONFLATION = "slow_client_conflation"
    DRAIN_RATE = "slow_client_drain_rate"
    WRITE_BLOCKED = "slow_client_write_blocked"
    WINDOW_FULL = "slow_client_window_full"
    UNACKED = "slow_client_unacked"
    ACK_SILENCE = "slow_client_ack_silence"
    RESOURCE_ERROR = "slow_client_resource_error"
    """Seed 004's 506."""


REASON_OF: Final = {
    Signal.POOL_MEMORY: Reason.POOL_MEMORY,
    Signal.POOL_DISK: Reason.DISK,
    Signal.OUTBOUND_BYTES: Reason.MEMORY_CAPACITY,
    Signal.OUTBOUND_MESSAGES: Reason.BACKLOG,
    Signal.SPOOL_BYTES: Reason.CAPACITY,
    Signal.SPOOL_AGE: Reason.AGE,
    Signal.CONFLATION_BYTES: Reason.CONFLATION,
    Signal.BACKLOG_BYTES: Reason.BACKLOG,
    Signal.BACKLOG_MESSAGES: Reason.BACKLOG,
    Signal.OLDEST_AGE: Reason.AGE,
    Signal.DRAIN_RATE: Reason.DRAIN_RATE,
    Signal.WRITE_BLOCKED: Reason.WRITE_BLOCKED,
    Signal.WINDOW_FULL: Reason.WINDOW_FULL,
    Signal.UNACKED_MESSAGES: Reason.UNACKED,
    Signal.UNACKED_AGE: Reason.UNACKED,
    Signal.ACK_SILENCE: Reason.ACK_SILENCE,
}
"""The reason code of a rule that names none."""


class Rung(NamedTuple):
    """One step of a ladder. It is due once the rule's condition has held for the rule's hold and `after_ms`.

    A rung with `at_percent` under 100 is an early one: due as soon as the signal is greater than that much of the
    limit, whatever the hold.
    """

    action: Action
    at_percent: int = 100
    after_ms: int = 0
    for_ms: int = 0
    """How long a pause lasts (0: until resumed), or a name is refused."""


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
    unit: Unit
    choose: Choice
    ladder: tuple[Rung, ...]
    reason: Reason
    revision: int
    percent: int | None = None
    """With PERCENT_OF: what the operator set; `limit` is the number it makes."""
    mode: Mode = Mode.ENFORCE
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

    def __post_init__(self) -> None:
        counted = self.shape is Shape.COUNT_IN_WINDOW and self.signal is Signal.WINDOW_FULL
        lowest = min(rung.at_percent for rung in self.ladder)
        object.__setattr__(self, "wakes_at", 0 if counted else self.limit * lowest // 100)
        object.__setattr__(self, "at_enqueue", self._is_at_enqueue())

    @property
    def action(self) -> Action:
        """The first rung's action."""
        return self.ladder[0].action

    def worst_case_ms(self, rung: int = 0) -> int:
        """The longest from crossing the limit to that rung's act; 0 is in the same turn of the loop.

        Hold and check period; for a rate also the window, and the checks at which it must still be low.
        """
        step = self.ladder[rung]
        if self.at_enqueue and rung == 0:
            return 0
        if self.shape is Shape.RATE_BELOW:
            seen = max(self.window_ms, TICK_MS) + TICK_MS
            return seen + max(self.hold_ms + step.after_ms, self.count * self.check_ms) + self.check_ms
        held = self.hold_ms if step.at_percent >= 100 else 0
        # Checks that are rarer than the tick go by the clock, and are made at the tick after their moment.
        looks = self.check_ms + TICK_MS if self.check_ms > TICK_MS else TICK_MS
        return held + step.after_ms + looks

    def _is_at_enqueue(self) -> bool:
        return (
            self.signal in (_AT_ENQUEUE_OF_SUBSCRIPTIONS if self.per_subscription else _AT_ENQUEUE)
            and self.shape in (Shape.HARD, Shape.PERCENT_OF, Shape.LARGEST_WHEN_POOL_OVER)
            and not self.hold_ms
            and not self.cooldown_ms
            and self.check_ms <= TICK_MS
            and self.ladder[0][1:3] == (100, 0)
            and not self.at_tick
        )


_AT_ENQUEUE: Final = frozenset({
    Signal.POOL_MEMORY, Signal.POOL_DISK, Signal.OUTBOUND_BYTES, Signal.SPOOL_BYTES,
})  # fmt: skip
_AT_ENQUEUE_OF_SUBSCRIPTIONS: Final = frozenset({Signal.BACKLOG_BYTES, Signal.BACKLOG_MESSAGES})


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


def client_limits(rules: tuple[Rule, ...]) -> ClientLimits:
    """What a client's rules mean for the hot path: the lowest limit that is judged at enqueue, in any mode."""

    def lowest(signal: Signal) -> int:
        return min((rule.limit for rule in rules if rule.signal is signal and rule.at_enqueue), default=UNLIMITED)

    return ClientLimits(lowest(Signal.OUTBOUND_BYTES), lowest(Signal.SPOOL_BYTES))


def in_shadow(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The same rules, none of which is carried out; those that are off stay off."""
    return tuple(rule if rule.mode is Mode.OFF else replace(rule, mode=Mode.SHADOW) for rule in rules)
