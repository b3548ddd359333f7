"""Qpid's slow consumers (seed 004): limits by topic key, compiled to rules for each subscription.

    depth          bytes that wait for the subscription
    messageAge     milliseconds its oldest message has waited, since the broker accepted it
    messageCount   messages that wait for it

Any one of them triggers the Delete policy: the connection ends with 506, resource error. Durable subscriptions are
kept, and their clients let alone, unless `delete-persistent` is set: then they are deleted with what they are owed.
The operators are told of a durable subscription that passes a limit and is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from broker_core.config import PolicyDocument, Scope
from broker_core.config.preset_fields import QPID, defaults
from broker_core.config.vocabulary import UNIT_OF, Action, Choice, Reason, Shape, Signal
from broker_core.slow_clients.rules.presets.layers import set_fields
from broker_core.slow_clients.rules.rule import Rule, Rung
from broker_core.slow_clients.rules.scopes import Layer

DEFAULTS: Final = defaults(QPID)
_LIMITS: Final = {
    "depth": Signal.BACKLOG_BYTES,
    "message_age": Signal.OLDEST_AGE,
    "message_count": Signal.BACKLOG_MESSAGES,
}


def layers(document: PolicyDocument) -> list[Layer]:
    """The document's topics by scope."""
    return [
        Layer(
            f"qpid {entry.topic} {entry.transport}".rstrip(),
            Scope(transport=entry.transport, topic=entry.topic),
            set_fields(entry, DEFAULTS),
        )
        for entry in document.qpid
    ]


def rules(settings: dict[str, Any], revision: int, *, durable: bool) -> Iterable[Rule]:
    """The rules of effective settings for a subscription."""
    if not durable:
        action = Action.DISCONNECT
    else:
        action = Action.DELETE_DURABLE if settings["delete_persistent"] else Action.NOTIFY
    for name, signal in _LIMITS.items():
        if settings[name] is not None:
            yield Rule(
                f"qpid.{name}", QPID[name].word, "", signal, Shape.HARD, settings[name], UNIT_OF[signal], Choice.SELF, (Rung(action),),
                Reason.RESOURCE_ERROR, revision, mode=settings["mode"], per_subscription=True,
            )  # fmt: skip
