"""The audit as a chain of hashes: every event's over its content and the former's, so that none can be changed, taken out or put in
without everything behind it showing it.

Who may write to the database can also make the whole chain anew. Against that the events leave with their digests
(console/services/audit_export.py): what a log host has received must be found here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from django.db.models import Exists, OuterRef

from console.models import AuditChainHead, AuditChainLink, AuditEvent

FIELDS = (
    "actor_kind",
    "actor",
    "action",
    "object",
    "before",
    "after",
    "reason",
    "result",
    "message",
    "source",
    "request_id",
)
AT_ONCE = 2_000


class ChainBreak(NamedTuple):
    """Where the chain doesn't hold."""

    number: int
    event_id: int
    why: str


class ChainReport(NamedTuple):
    """What a look through the chain found; `broken` is the first, None when it holds."""

    events: int
    links: int
    head: str
    broken: ChainBreak | None


def append_link(event: AuditEvent) -> AuditChainLink:
    """Link an event that has just been stored, in the same transaction."""
    AuditChainHead.objects.get_or_create(only=1)
    head = AuditChainHead.objects.select_for_update().get(only=1)
    content = event_digest(event)
    link = AuditChainLink.objects.create(
        number=head.number + 1,
        event_id=event.pk,
        content=content,
        former=head.digest,
        digest=link_digest(head.digest, content),
        expires_at=event.expires_at,
    )
    AuditChainHead.objects.filter(only=1).update(number=link.number, digest=link.digest)
    return link


def event_digest(event: Any) -> str:
    """SHA-256 over what an event says, the same whatever database has kept it."""
    said = {name: _plain(getattr(event, name)) for name in FIELDS}
    said |= {"id": event.pk, "at": _moment(event.at), "expires_at": _moment(event.expires_at)}
    text = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def link_digest(former: str, content: str) -> str:
    """A link's digest."""
    return hashlib.sha256(f"{former}\n{content}".encode()).hexdigest()


def verify_chain(now: datetime) -> ChainReport:
    """Look through the whole chain, some events at a time."""
    head = AuditChainHead.objects.filter(only=1).first()
    number, digest, events, links = None, None, 0, 0
    for some in _chunks():
        found = AuditEvent.objects.in_bulk([link.event_id for link in some])
        for link in some:
            links += 1
            event = found.get(link.event_id)
            events += event is not None
            if why := _wrong(link, event, number, digest, now):
                return ChainReport(events, links, _digest(head), ChainBreak(link.number, link.event_id, why))
            number, digest = link.number, link.digest
    unlinked = (
        AuditEvent.objects.filter(~Exists(AuditChainLink.objects.filter(event_id=OuterRef("pk"))))
        .order_by("pk")
        .first()
    )
    if unlinked is not None:
        return ChainReport(
            events, links, _digest(head), ChainBreak(0, unlinked.pk, "the event was put in past the chain")
        )
    if (
        (head.number, head.digest) != (number, digest)
        if head is not None and head.number
        else number is not None
    ):
        return ChainReport(
            events,
            links,
            _digest(head),
            ChainBreak(head.number if head else 0, 0, "the newest links are missing"),
        )
    return ChainReport(events, links, _digest(head), None)


def delete_expired_links() -> int:
    """Delete links from the beginning whose events have all expired and gone; the next one's `former` stays as the anchor."""
    oldest = (
        AuditChainLink.objects.filter(Exists(AuditEvent.objects.filter(pk=OuterRef("event_id"))))
        .order_by("number")
        .first()
    )
    return AuditChainLink.objects.filter(number__lt=oldest.number).delete()[0] if oldest is not None else 0


def _wrong(
    link: AuditChainLink, event: AuditEvent | None, number: int | None, digest: str | None, now: datetime
) -> str:
    if number is not None and link.number != number + 1:
        return f"link {number + 1} is missing"
    if digest is not None and link.former != digest:
        return "it doesn't follow from the one before"
    if link.digest != link_digest(link.former, link.content):
        return "its digest isn't that of its content"
    if event is None:
        return (
            ""
            if link.expires_at is not None and link.expires_at <= now
            else "the event is missing before its time"
        )
    if event.expires_at != link.expires_at or event_digest(event) != link.content:
        return "the event isn't what was written"
    return ""


def _chunks() -> Iterator[list[AuditChainLink]]:
    last = -1
    while some := list(AuditChainLink.objects.filter(number__gt=last).order_by("number")[:AT_ONCE]):
        yield some
        last = some[-1].number


def _digest(head: AuditChainHead | None) -> str:
    return head.digest if head is not None else ""


def _moment(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat(timespec="microseconds")


def _plain(value: Any) -> Any:
    """JSON as databases give it back: keys are texts, and a whole float may come as an integer."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if value is None or isinstance(value, bool | int | float) else str(value)
