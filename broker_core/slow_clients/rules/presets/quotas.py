"""The quotas that what is there can outgrow, compiled to rules; what is new is refused by `connections.quotas`.

Nothing is taken away because of a quota: a client that has come to hold more of the log than it may is warned, and the operators are told; of a user's
quota each of its clients is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from broker_core.config.rule_terms import PolicyAction, Shape, Signal
from broker_core.config.rules import Rung
from broker_core.slow_clients.rules.rule import Rule

OUTGROWN: Final = {
    "client_pinned_bytes": Signal.PINNED_BYTES,
    "user_pinned_bytes": Signal.USER_PINNED_BYTES,
}
"""By setting, what a quota limits."""


def rules(settings: Mapping[str, Any], revision: int) -> Iterable[Rule]:
    """The rules of effective settings; none without a quota."""
    for quota, signal in OUTGROWN.items():
        if (limit := settings[quota]) is not None:
            yield Rule(
                f"quotas.{quota}", quota, "", signal, Shape.HARD, limit, (Rung(PolicyAction.WARN),), revision
            )
