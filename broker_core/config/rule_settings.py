"""One entry of a custom rule, and entries of one name laid over each other: they are layers of one rule.

For a client or subscription the entries that match are laid over each other field by field, the most specific on top
(`slow_clients.rulebook`). So an entry may set as little as a limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Final

from broker_core.config.scopes import EVERYBODY, Scope, specificity, within
from broker_core.config.vocabulary import SUBSCRIPTION_SIGNALS, Action, Choice, Mode, Shape, Signal

MAX_MS: Final = 366 * 24 * 3_600_000
"""The longest time that any setting may be."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One step of a ladder: what is done, from how many percent of the limit, after how long over it.

    at_percent   default 100; less is an early rung, such as a warning
    after_ms     milliseconds the condition must go on after the hold; default 0
    for_ms       how long a pause or a refusal lasts; default 0: until resumed
    """

    action: Action
    at_percent: int = 100
    after_ms: int = 0
    for_ms: int = 0


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """One entry. None means: what the less specific entries of the same name say, and at last the default.

    mode            off, shadow or enforce; default shadow, so that a new rule harms nobody
    limit           in the signal's unit: bytes, messages, milliseconds, bytes/s
    percent         with percent_of, in place of the limit
    shape           default hard
    hold_ms         default 0; window_ms default 0; count default 0; clear default 0; guard_bytes default 1
    check_ms        milliseconds between two looks; default 1000
    cooldown_ms     default 0
    choose          default self; largest_in_pool for pool signals
    protected       patterns of client names that are never chosen
    confirm_delete  must be true for delete_durable
    """

    name: str
    scope: Scope = EVERYBODY
    mode: Mode | None = None
    signal: Signal | None = None
    shape: Shape | None = None
    limit: int | None = None
    percent: int | None = None
    hold_ms: int | None = None
    window_ms: int | None = None
    count: int | None = None
    clear: int | None = None
    guard_bytes: int | None = None
    check_ms: int | None = None
    cooldown_ms: int | None = None
    choose: Choice | None = None
    protected: tuple[str, ...] | None = None
    ladder: tuple[Rung, ...] | None = None
    confirm_delete: bool | None = None

    def over(self, below: RuleSettings) -> RuleSettings:
        """This entry laid over a less specific one."""
        mine = {key: value for key in RULE_FIELDS if (value := getattr(self, key)) is not None}
        return replace(below, scope=self.scope, **mine)


RULE_FIELDS: Final = tuple(key.name for key in fields(RuleSettings) if key.name not in ("name", "scope"))
"""What entries are laid over each other by."""


def is_per_subscription(entries: Iterable[RuleSettings]) -> bool:
    """Whether the rule of these entries measures each subscription alone: its signal, or the scope of one of them, is
    about subscriptions."""
    return any(entry.scope.per_subscription or entry.signal in SUBSCRIPTION_SIGNALS for entry in entries)


def laid_over(entries: Iterable[RuleSettings], scope: Scope) -> RuleSettings | None:
    """The entries of one rule that apply wherever the scope does, laid over each other; None when there is none."""
    below = sorted(
        (one for one in entries if within(one.scope, scope)), key=lambda one: specificity(one.scope)
    )
    return reduce(lambda made, one: one.over(made), below) if below else None
