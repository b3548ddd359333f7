"""The audit log: one event for each attempt to change something, stored for its action's retention period."""

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
from console.queries.database import database_problem
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
    """Store one event, add it to the audit chain, and schedule its export.

    Texts longer than their column are cut, because a change must not fail for a long reason.
    """
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


def require_database() -> None:
    """Raise OperatorError if the database can't store an event, as `database_read_only`.

    Commands to a broker call this first: a command without an event would be executed, answered 503, and
    sent again. The check is at most two seconds old.
    """
    if (problem := database_problem()) is not None:
        raise problem


def _text(text: str, max_length: int) -> str:
    """Return a text's first `max_length` characters without NUL, which PostgreSQL refuses."""
    return text[:max_length].replace("\x00", "\ufffd")


def event_expiry(action: str, now: datetime) -> datetime | None:
    """Return the time after which an event of this action may be deleted; None for never.

    The longest matching prefix in SLUICE_AUDIT_RETENTION_DAYS decides; 0 days means never.
    """
    days = settings.SLUICE_AUDIT_RETENTION_DAYS
    fitting = [
        prefix for prefix in days if action == prefix or action.startswith(f"{prefix}.") or prefix == "*"
    ]
    retention_days = (
        days[max(fitting, key=lambda prefix: -1 if prefix == "*" else len(prefix))] if fitting else 0
    )
    return now + timedelta(days=retention_days) if retention_days else None


def mark_read_only(request: Any) -> None:
    """Mark a POST as read-only (a plan, a preview). It gets an audit event only if it is refused."""
    getattr(request, "_request", request).sluice_changes_nothing = True


def mark_audited_elsewhere(request: Any) -> None:
    """Mark a refused request as counted by another event, so that guesses can't fill the database."""
    getattr(request, "_request", request).sluice_counted_elsewhere = True


def record_request(request: HttpRequest, response: HttpResponse) -> None:
    """Record a write request, unless it is marked or a service recorded an event with its request id."""
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
        result=_event_result(status, actor),
        message="" if status < HTTPStatus.BAD_REQUEST else f"{status} {_refusal_reason(response)}".strip(),
    )


def delete_expired(now: datetime) -> int:
    """Delete events past their retention, at most `FORGET_AT_ONCE` per call, and return how many."""
    chosen = (
        AuditEvent.objects.filter(expires_at__lte=now).order_by("expires_at").values_list("pk", flat=True)
    )
    expired = AuditEvent.objects.filter(pk__in=list(chosen[:FORGET_AT_ONCE]))
    # A raw delete bypasses ImmutableQuerySet. The database itself refuses to delete unexpired events.
    deleted = int(expired._raw_delete(expired.db) or 0)
    if deleted:
        audit_chain.delete_expired_links()
    return deleted


def _event_result(status: int, actor: Actor) -> AuditResult:
    if actor.user_id is None and status == HTTPStatus.FOUND:
        # A page redirected an anonymous request to the login.
        return AuditResult.DENIED
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS):
        return AuditResult.DENIED
    return AuditResult.FAILED if status >= HTTPStatus.BAD_REQUEST else AuditResult.DONE


def _refusal_reason(response: HttpResponse) -> str:
    data = getattr(response, "data", None)
    return f"{data.get('code', '')}: {data.get('detail', '')}" if isinstance(data, dict) else ""
