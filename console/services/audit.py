"""Writes the audit: one event for each attempt to change something."""

from __future__ import annotations

from typing import Any

from console.choices import AuditResult
from console.models import AuditEvent
from console.services.actors import Actor


def record(
    actor: Actor,
    action: str,
    target: str = "",
    *,
    before: Any = None,
    after: Any = None,
    reason: str = "",
    result: AuditResult = AuditResult.DONE,
    message: str = "",
) -> AuditEvent:
    """Store one event. Texts longer than their column are cut: an audit must not fail on a long reason."""
    event = AuditEvent(
        actor_kind=actor.kind,
        actor=actor.name[:200],
        action=action[:100],
        object=target[:300],
        before=before,
        after=after,
        reason=reason[:500],
        result=result,
        message=message[:1000],
        source=actor.source[:64],
        request_id=actor.request_id[:64],
    )
    event.save()
    return event
