"""Rules: WHEN a signal crosses a shape in a scope, CHOOSE whom, DO an action, in a mode.

The engine knows rules alone. Presets (`presets/`) compile the settings of a system an operator knows into
them. Limits in rules are resolved numbers: bytes, or milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

UNLIMITED: Final = 2**63 - 1
INSTANCE: Final = ""
"""The transport name of rules for clients whose transport has no rules of its own."""


class Signal(StrEnum):
    """What is measured."""

    POOL_MEMORY = "pool_memory"
    """Memory of the pool's clients that aren't offlined: what offlining can still relieve. Bytes."""
    POOL_DISK = "pool_disk"
    """Bytes of the spool files of the pool's clients."""
    OUTBOUND_BYTES = "outbound_bytes"
    """Bytes in a client's outbox, while it isn't offlined."""
    SPOOL_BYTES = "spool_bytes"
    """Bytes of a client's spool file."""
    OLDEST_AGE = "oldest_age"
    """Milliseconds the client's oldest message has been waiting, in memory or on disk."""


class Shape(StrEnum):
    """How a signal is compared."""

    HARD = "hard"
    PERCENT_OF = "percent_of"
    LARGEST_WHEN_POOL_OVER = "largest_when_pool_over"


class Choice(StrEnum):
    """Who is acted on."""

    SELF = "self"
    LARGEST_IN_POOL = "largest_in_pool"


class Action(StrEnum):
    """What is done. The order is that of the ladder."""

    OFFLINE = "offline"
    DISCONNECT = "disconnect"


class Mode(StrEnum):
    """Whether a rule's decisions are carried out."""

    OFF = "off"
    SHADOW = "shadow"
    ENFORCE = "enforce"


class Reason(StrEnum):
    """Reason codes: one list for every protocol, the console and Spark."""

    POOL_MEMORY = "slow_client_pool_memory"
    MEMORY_CAPACITY = "slow_client_memory_capacity"
    DISK = "slow_client_disk"
    CAPACITY = "slow_client_capacity"
    AGE = "slow_client_age"


class Unit(StrEnum):
    BYTES = "bytes"
    MILLISECONDS = "ms"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule with its limit resolved. Over it means: the signal is greater than the limit."""

    name: str
    """Preset and setting, such as `amps.client_max_capacity.memory`."""
    setting: str
    """The setting in its system's own words, such as `ClientMaxCapacity`."""
    scope: str
    """A pool's name for LARGEST_IN_POOL; a transport's name for SELF, INSTANCE for those without rules."""
    signal: Signal
    shape: Shape
    limit: int
    unit: Unit
    choose: Choice
    action: Action
    reason: Reason
    revision: int
    percent: int | None = None
    """With PERCENT_OF: what the operator set; `limit` is the number it makes."""
    mode: Mode = Mode.ENFORCE


class PoolLimits(NamedTuple):
    """A pool's resolved settings."""

    name: str
    memory: int
    disk: int
    disk_path: str


class ClientLimits(NamedTuple):
    """What a transport's enforced rules mean for each of its clients, as numbers for the hot path."""

    memory: int = UNLIMITED
    disk: int = UNLIMITED
    age_ms: int = UNLIMITED


def client_limits(rules: tuple[Rule, ...], transport: str) -> ClientLimits:
    """The lowest enforced limit of each signal for clients of a transport."""
    own = [rule for rule in rules if rule.choose is Choice.SELF and rule.mode is Mode.ENFORCE]
    scoped = [rule for rule in own if rule.scope == transport] or [r for r in own if r.scope == INSTANCE]

    def lowest(signal: Signal) -> int:
        return min((rule.limit for rule in scoped if rule.signal is signal), default=UNLIMITED)

    return ClientLimits(lowest(Signal.OUTBOUND_BYTES), lowest(Signal.SPOOL_BYTES), lowest(Signal.OLDEST_AGE))


def in_shadow(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The same rules, none of which is carried out."""
    return tuple(replace(rule, mode=Mode.SHADOW) for rule in rules)
