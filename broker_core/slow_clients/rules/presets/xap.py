"""XAP's slow consumers (seed 001): its settings compiled to one rule.

A client that takes less than `throughput` while there is something for it is suspected. It has `latency` to recover,
and is looked at `retries` times within: still below at each of them, and its subscriptions are cancelled.

A subscription is a lease: the client learns that it is gone, takes a snapshot of the current state and subscribes
again. Its connection stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from broker_core.config.preset_settings import XAP, default_settings
from broker_core.config.rule_terms import PolicyAction, Shape, Signal
from broker_core.config.rules import Rung
from broker_core.slow_clients.rules.rule import Rule

DEFAULTS: Final = default_settings(XAP)
PART_MS: Final = 125
"""The shortest time between two looks at one client."""


def rules(settings: Mapping[str, Any], revision: int) -> Iterable[Rule]:
    """The rule of effective settings; none while it isn't enabled."""
    if not settings["enabled"]:
        return
    latency, retries = settings["latency"], settings["retries"]
    yield Rule(
        "xap.throughput", "throughput", "", Signal.DRAIN_RATE, Shape.RATE_BELOW, settings["throughput"],
        (Rung(PolicyAction.CANCEL_SUBSCRIPTION),), revision, mode=settings["mode"], hold_ms=latency, window_ms=latency,
        count=retries, check_ms=max(PART_MS, latency // (retries + 1)), guard_bytes=1,
    )  # fmt: skip
