"""Decisions as they are told: as JSON for whoever keeps them, and as the notice to the client."""

from __future__ import annotations

from typing import Any

from broker_core.slow_clients.evaluate.decision import Decision
from broker_core.slow_clients.evaluate.sentences import sentence


def decision_json(decision: Decision) -> dict[str, Any]:
    """The decision as JSON. Moments are milliseconds: nanoseconds don't fit a browser's numbers."""
    return {
        "at": decision.at // 1_000_000,
        "client": decision.client,
        "transport": decision.transport,
        "pool": decision.pool,
        "action": decision.action.value,
        "reason": decision.reason.value,
        "rule": decision.rule,
        "setting": decision.setting,
        "revision": decision.revision,
        "mode": decision.mode.value,
        "choose": decision.choose.value,
        "signal": decision.signal.value,
        "observed": decision.observed,
        "limit": decision.limit,
        "unit": decision.unit.value,
        "used": decision.used,
        "chosen_over": decision.chosen_over and decision.chosen_over._asdict(),
        "kept": decision.kept,
        "lost": decision.lost,
        "resume_bookmark": decision.resume_bookmark,
        "sentence": sentence(decision),
        "shape": decision.shape.value,
        "subscription": decision.subscription,
        "topic": decision.topic,
        "rung": decision.rung,
        "rungs": decision.rungs,
        "for_ms": decision.for_ms,
        "hold_ms": decision.hold_ms,
        "worst_case_ms": decision.worst_case_ms,
        "first_lost": decision.first_lost,
        "last_lost": decision.last_lost,
        "resume_token": decision.resume_token,
        "told": decision.told,
        "times": decision.times,
        "problem": decision.problem,
        "samples": [[sample.at // 1_000_000, *sample[1:]] for sample in decision.samples],
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
