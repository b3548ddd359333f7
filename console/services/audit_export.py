"""Export of audit events to a place that this machine's administrators don't control.

Destinations are a syslog host (RFC 5424) and a webhook. Each event is a Celery task with `MAX_TRIES` tries;
after the last one the event is given up with a line in the log. The database has every event in any case.
"""

from __future__ import annotations

import json
import logging
import os
import socket
from datetime import UTC
from typing import Any
from urllib.parse import urlsplit

from celery import current_app
from django.conf import settings
from django.db import transaction
from kombu.exceptions import OperationalError

from broker_core.errors import SluiceError
from console.choices import AuditResult
from console.models import AuditChainLink, AuditEvent
from console.services import webhooks
from console.services.audit_chain import FIELDS
from console.services.bounded_call import CallSockets, call_within

TASK = "console.tasks.export_audit"
DEADLINE_S = 10.0
"""Seconds for one whole call."""
MAX_TRIES = 6
FIRST_WAIT_S = 5
"""Seconds before the first retry. Each further wait is twice as long: five retries within three minutes."""
MAX_BYTES = 8_192
"""Maximum size of one syslog message. A larger one is sent without the event's `before` and `after`."""
AUDIT_FACILITY, NOTICE, WARNING = 13, 5, 4

logger = logging.getLogger(__name__)


def is_configured() -> bool:
    """Whether a destination for audit events is configured."""
    return bool(settings.SLUICE_AUDIT_SYSLOG or settings.SLUICE_AUDIT_WEBHOOK)


def schedule_export(event: AuditEvent) -> None:
    """Queue an event for export once its transaction is committed."""
    if is_configured():
        transaction.on_commit(lambda: _enqueue(event.pk))


def _enqueue(event_id: int) -> None:
    try:
        current_app.send_task(TASK, args=[event_id], retry=False, ignore_result=True)
    except (OperationalError, OSError):
        logger.error("audit event %s isn't sent: the task queue can't be reached", event_id)


def export_event(event_id: int) -> None:
    """Send an event to every configured destination. Does nothing for an unknown event.

    Raises:
        OSError: a destination can't be reached.
        OperatorError: the webhook refused the event.
    """
    event = AuditEvent.objects.filter(pk=event_id).first()
    link = AuditChainLink.objects.filter(event_id=event_id).first()
    if event is None or link is None:
        return
    document = export_document(event, link)
    if settings.SLUICE_AUDIT_SYSLOG:
        _to_syslog(settings.SLUICE_AUDIT_SYSLOG, format_syslog(event, document))
    if settings.SLUICE_AUDIT_WEBHOOK:
        _to_webhook(settings.SLUICE_AUDIT_WEBHOOK, document)


def export_document(event: AuditEvent, link: AuditChainLink) -> dict[str, Any]:
    """Return an event with its position in the audit chain, as destinations receive it."""
    at = event.at.astimezone(UTC).isoformat(timespec="microseconds")
    return {
        "id": event.pk,
        "at": at,
        **{name: getattr(event, name) for name in FIELDS},
        "instance": settings.SLUICE_INSTANCE,
        "number": link.number,
        "former": link.former,
        "digest": link.digest,
    }


def format_syslog(event: AuditEvent, document: dict[str, Any]) -> bytes:
    """Return an event as a syslog message (RFC 5424): facility 13 (log audit), body in JSON."""
    priority = AUDIT_FACILITY * 8 + (NOTICE if event.result == AuditResult.DONE else WARNING)
    at = event.at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    host, word = _word(socket.gethostname(), 255), _word(event.action, 32)
    head = f"<{priority}>1 {at} {host} sluice {os.getpid()} {word} - "
    text = json.dumps(document, default=str, ensure_ascii=True)
    if len(head) + len(text) > MAX_BYTES:
        text = json.dumps(
            {**document, "before": None, "after": None, "cut": True}, default=str, ensure_ascii=True
        )
    return (head + text).encode()


def _to_syslog(url: str, line: bytes) -> None:
    call_within(DEADLINE_S, lambda sockets: _write_syslog(sockets, url, line))


def _write_syslog(sockets: CallSockets, url: str, line: bytes) -> None:
    address = urlsplit(url)
    where = (address.hostname or "", address.port or 514)
    if address.scheme == "tcp":
        with sockets.connect(*where) as connection:
            connection.sendall(b"%d %s" % (len(line), line))  # octet counting, RFC 6587
        return
    family, kind, protocol, _, target = sockets.resolve(*where, socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as sender:
        sender.sendto(line, target)


def _to_webhook(url: str, document: dict[str, Any]) -> None:
    body = json.dumps(document, default=str).encode()
    webhooks.post_webhook(urlsplit(url), body, "application/json", str(document["digest"]))


def _word(text: str, max_length: int) -> str:
    """Return `text` as a syslog header field of at most `max_length` printable characters; "-" when empty."""
    return "".join(sign for sign in text if "!" <= sign <= "~")[:max_length] or "-"


FAILURES = (OSError, SluiceError)
