"""Decisions as they are told: as a document for whoever keeps them, and as the notice to the client."""

from __future__ import annotations

from typing import Any

from broker_core.documents.system_records import DecisionEntry
from broker_core.slow_clients.evaluate.decision import Decision
from broker_core.slow_clients.evaluate.sentences import sentence

_AS_IT_IS = tuple(Decision.__dataclass_fields__.keys() - {"at", "samples"})
"""Fields that a document has of the same name and meaning."""


def decision_entry(decision: Decision, identity: str = "", *, ahead: bool = False) -> DecisionEntry:
    """Return the decision as a document; `ahead` as of `sentence`.

    Moments are milliseconds: nanoseconds don't fit a browser's numbers.
    """
    return DecisionEntry(
        id=identity,
        at=decision.at // 1_000_000,
        sentence=sentence(decision, ahead=ahead),
        samples=[[sample.at // 1_000_000, *sample[1:]] for sample in decision.samples],
        **{name: getattr(decision, name) for name in _AS_IT_IS},
    )


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
