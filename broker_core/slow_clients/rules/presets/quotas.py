"""The quota that what is there can outgrow, compiled to a rule; what is new is refused by `connections.quotas`.

Nothing is taken away because of a quota: a client that has come to hold more of the log than it may is warned, and the operators are told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from broker_core.config.rule_settings import Rung
from broker_core.config.vocabulary import Action, Shape, Signal
from broker_core.slow_clients.rules.rule import Rule


def rules(settings: Mapping[str, Any], revision: int) -> Iterable[Rule]:
    """The rule of effective settings; none without a quota."""
    if (limit := settings["client_pinned_bytes"]) is not None:
        yield Rule(
            "quotas.client_pinned_bytes", "client_pinned_bytes", "", Signal.PINNED_BYTES, Shape.HARD, limit,
            (Rung(Action.WARN),), revision,
        )  # fmt: skip
