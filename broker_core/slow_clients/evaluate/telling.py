"""Decisions as they are told: as JSON for whoever keeps them, and as the notice to the client."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from broker_core.slow_clients.evaluate.decision import Decision
from broker_core.slow_clients.evaluate.sentences import sentence


def decision_json(decision: Decision) -> dict[str, Any]:
    """The decision as JSON. Moments are milliseconds: nanoseconds don't fit a browser's numbers."""
    figures = {field: getattr(decision, field) for field in Decision.__dataclass_fields__}
    return {
        field: value.value if isinstance(value, StrEnum) else value for field, value in figures.items()
    } | {
        "at": decision.at // 1_000_000,
        "chosen_over": decision.chosen_over and decision.chosen_over._asdict(),
        "samples": [[sample.at // 1_000_000, *sample[1:]] for sample in decision.samples],
        "sentence": sentence(decision),
    }


def notice_fields(decision: Decision) -> dict[str, Any]:
    """What the client is told before it is disconnected, without the protocol's own fields."""
    return {
        "code": decision.reason.value,
        "message": sentence(decision),
        "observed": decision.observed,
        "limit": decision.limit,
        "unit": decision.unit.value,
        "resume": decision.resume_bookmark,
        "kept": decision.kept,
        "lost": decision.lost,
    }
