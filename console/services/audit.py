"""Writes the audit: one event for each attempt to change something, kept as long as its action's retention says."""

from __future__ import annotations

from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from console.choices import AuditResult
from console.models import AuditEvent
from console.services import audit_chain, audit_export
from console.services.actors import Actor, actor_of

FORGET_AT_ONCE = 5_000


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
    now = timezone.now()
    event = AuditEvent(
        actor_kind=actor.kind,
        actor=_text(actor.name, 200),
        action=_text(action, 100),
        object=_text(target, 300),
        before=before,
        after=after,
        reason=_text(reason, 500),
        result=result,
        message=_text(message, 1000),
        source=_text(actor.source, 64),
        request_id=_text(actor.request_id, 64),
        expires_at=event_expiry(action, now),
    )
    with transaction.atomic():
        event.save()
        audit_chain.append_link(event)
        audit_export.schedule_export(event)
    return event


def _text(text: str, most: int) -> str:
    """What a column holds of a text: an address may have a NUL in it, which PostgreSQL's don't take."""
    return text[:most].replace("\x00", "\ufffd")


def event_expiry(action: str, now: datetime) -> datetime | None:
    """When an event of this action may be forgotten; None is never. The longest prefix of SLUICE_AUDIT_RETENTION_DAYS rules."""
    days = settings.SLUICE_AUDIT_RETENTION_DAYS
    fitting = [
        prefix for prefix in days if action == prefix or action.startswith(f"{prefix}.") or prefix == "*"
    ]
    kept = days[max(fitting, key=lambda prefix: -1 if prefix == "*" else len(prefix))] if fitting else 0
    return now + timedelta(days=kept) if kept else None


def mark_read_only(request: Any) -> None:
    """Say of a POST that it only looks (a plan, a preview): it needs no event unless it was refused."""
    getattr(request, "_request", request).sluice_changes_nothing = True


def mark_audited_elsewhere(request: Any) -> None:
    """Say of a refusal that another event counts for it too: whoever guesses can't fill the database."""
    getattr(request, "_request", request).sluice_counted_elsewhere = True


def record_request(request: HttpRequest, response: HttpResponse) -> None:
    """Write the event of a write request, unless a service wrote one with its request id."""
    status = response.status_code
    if status < HTTPStatus.BAD_REQUEST and getattr(request, "sluice_changes_nothing", False):
        return
    if getattr(request, "sluice_counted_elsewhere", False):
        return
    actor = actor_of(request)
    if AuditEvent.objects.filter(request_id=actor.request_id).exists():
        return
    kind = "api" if request.path.startswith("/api/") else "page"
    record(
        actor,
        f"{kind}.{str(request.method).lower()}",
        request.path,
        result=_result_of(status, actor),
        message="" if status < HTTPStatus.BAD_REQUEST else f"{status} {_why(response)}".strip(),
    )


def delete_expired(now: datetime) -> int:
    """Delete events past their retention, some at a time; the database refuses to delete any other. Returns how many."""
    chosen = (
        AuditEvent.objects.filter(expires_at__lte=now).order_by("expires_at").values_list("pk", flat=True)
    )
    expired = AuditEvent.objects.filter(pk__in=list(chosen[:FORGET_AT_ONCE]))
    # Past ImmutableQuerySet, which is there for everybody else.
    gone = int(expired._raw_delete(expired.db) or 0)
    if gone:
        audit_chain.delete_expired_links()
    return gone


def _result_of(status: int, actor: Actor) -> AuditResult:
    if actor.user_id is None and status == HTTPStatus.FOUND:
        return AuditResult.DENIED  # a page sent a stranger to the login
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS):
        return AuditResult.DENIED
    return AuditResult.FAILED if status >= HTTPStatus.BAD_REQUEST else AuditResult.DONE


def _why(response: HttpResponse) -> str:
    data = getattr(response, "data", None)
    return f"{data.get('code', '')}: {data.get('detail', '')}" if isinstance(data, dict) else ""
