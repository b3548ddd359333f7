"""Hash chain over the audit: each link hashes its event's content and the previous link.

Changing, removing or inserting an event breaks the chain from there on. A person who can write to the
database can also rebuild the whole chain. Against that, exported events carry their digests
(console/services/audit_export.py): every digest that a log host has received must be found here.
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
"""Links that `verify_chain` reads per query."""


class ChainBreak(NamedTuple):
    """First position at which the chain is broken: number of the link, event and reason."""

    number: int
    event_id: int
    problem: str


class ChainReport(NamedTuple):
    """Result of a check of the whole chain. `first_break` is the first break, or None."""

    events: int
    links: int
    head: str
    first_break: ChainBreak | None


def append_link(event: AuditEvent) -> AuditChainLink:
    """Link an event that was just stored. Call it in the same transaction, which locks the chain's head."""
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
    """Return the SHA-256 of an event's content, which doesn't depend on the kind of database."""
    content = {name: _plain(getattr(event, name)) for name in FIELDS}
    content |= {"id": event.pk, "at": _moment(event.at), "expires_at": _moment(event.expires_at)}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def link_digest(former: str, content: str) -> str:
    """Return the digest of a link: SHA-256 over the previous link's digest and the event's."""
    return hashlib.sha256(f"{former}\n{content}".encode()).hexdigest()


def verify_chain(now: datetime) -> ChainReport:
    """Check the whole chain, `AT_ONCE` links at a time, and return the result."""
    head = AuditChainHead.objects.filter(only=1).first()
    number, digest, events, links = None, None, 0, 0
    for some in _chunks():
        found = AuditEvent.objects.in_bulk([link.event_id for link in some])
        for link in some:
            links += 1
            event = found.get(link.event_id)
            events += event is not None
            if problem := _wrong(link, event, number, digest, now):
                return ChainReport(
                    events, links, _digest(head), ChainBreak(link.number, link.event_id, problem)
                )
            number, digest = link.number, link.digest
    unlinked = (
        AuditEvent.objects.filter(~Exists(AuditChainLink.objects.filter(event_id=OuterRef("pk"))))
        .order_by("pk")
        .first()
    )
    if unlinked is not None:
        return ChainReport(
            events,
            links,
            _digest(head),
            ChainBreak(0, unlinked.pk, "the event was inserted outside the chain"),
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
    """Delete the oldest links up to the first whose event still exists, and return how many.

    The next link's `former` remains as the anchor of the chain.
    """
    oldest = (
        AuditChainLink.objects.filter(Exists(AuditEvent.objects.filter(pk=OuterRef("event_id"))))
        .order_by("number")
        .first()
    )
    return AuditChainLink.objects.filter(number__lt=oldest.number).delete()[0] if oldest is not None else 0


def _wrong(
    link: AuditChainLink, event: AuditEvent | None, number: int | None, digest: str | None, now: datetime
) -> str:
    """Return why a link is invalid, or "".

    `number` and `digest` are those of the previous link; None for the first.

    A missing event is valid once its retention has passed.
    """
    if number is not None and link.number != number + 1:
        return f"link {number + 1} is missing"
    if digest is not None and link.former != digest:
        return "it doesn't continue the previous link"
    if link.digest != link_digest(link.former, link.content):
        return "its digest doesn't match its content"
    if event is None:
        return (
            ""
            if link.expires_at is not None and link.expires_at <= now
            else "the event was deleted before its retention ended"
        )
    if event.expires_at != link.expires_at or event_digest(event) != link.content:
        return "the event was changed"
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
    """Return a JSON value as every database returns it: keys are texts, whole floats are integers."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if value is None or isinstance(value, bool | int | float) else str(value)
