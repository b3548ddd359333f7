"""Policies with an operator's own rules, for tests with a running broker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from broker_core.config import PolicyDocument
from tests.support.brokers import tcp_policy


def policy_with(
    *rules: dict[str, Any], revision: int = 1, pool: dict[str, Any] | None = None, **presets: Any
) -> PolicyDocument:
    """Return the usual test policy with custom rules and presets, parsed and checked like a saved one."""
    document = replace(tcp_policy(**(pool or {})), revision=revision).to_dict()
    document["rules"] = [{"mode": "enforce", **rule} for rule in rules]
    document.update(presets)
    return PolicyDocument.from_dict(document)


def rule(
    action: str, limit: int = 10, *, signal: str = "backlog_messages", topic: str = "t", **more: Any
) -> dict[str, Any]:
    """Return settings of a rule with one rung, for subscriptions to a topic."""
    rung = {
        "action": action,
        **{key: more.pop(key) for key in ("for_ms", "after_ms", "at_percent") if key in more},
    }
    return {
        "name": "test",
        "scope": {"topic": topic},
        "signal": signal,
        "limit": limit,
        "ladder": [rung],
        **more,
    }
