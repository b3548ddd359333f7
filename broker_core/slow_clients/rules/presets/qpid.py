"""Qpid's slow consumers (seed 004): limits by topic key, compiled to rules for each subscription.

    depth          bytes that wait for the subscription
    messageAge     milliseconds its oldest message has waited, since the broker accepted it
    messageCount   messages that wait for it

Any one of them triggers the Delete policy: the connection ends with 506, resource error. Durable subscriptions are
kept, and their clients let alone, unless `delete-persistent` is set: then they are deleted with what they are owed.
The operators are told of a durable subscription that passes a limit and is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from broker_core.config.preset_settings import QPID, default_settings
from broker_core.config.rule_terms import DecisionReason, PolicyAction, Shape, Signal
from broker_core.config.rules import Rung
from broker_core.slow_clients.rules.rule import Rule

DEFAULTS: Final = default_settings(QPID)
_LIMITS: Final = {
    "depth": Signal.BACKLOG_BYTES,
    "message_age": Signal.OLDEST_AGE,
    "message_count": Signal.BACKLOG_MESSAGES,
}


def rules(settings: Mapping[str, Any], revision: int, *, durable: bool) -> Iterable[Rule]:
    """The rules of effective settings for a subscription."""
    if not durable:
        action = PolicyAction.DISCONNECT
    else:
        action = PolicyAction.DELETE_DURABLE if settings["delete_persistent"] else PolicyAction.NOTIFY
    for name, signal in _LIMITS.items():
        if settings[name] is not None:
            yield Rule(
                f"qpid.{name}", QPID[name].word, "", signal, Shape.HARD, settings[name], (Rung(action),), revision,
                DecisionReason.RESOURCE_ERROR, mode=settings["mode"], per_subscription=True,
            )  # fmt: skip
