"""Audit events of the logons that brokers refused."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import transaction

from broker_core.access import RefusedLogonEntry
from console.choices import ActorKind, AuditResult
from console.services import audit
from console.services.actors import Actor


def record_refused_logons(refused: Sequence[RefusedLogonEntry], instance: str) -> None:
    """Store one denied event per entry, all in one transaction."""
    with transaction.atomic():
        for entry in refused:
            actor = Actor(ActorKind.SYSTEM, f"broker {instance}", source=entry.remote)
            details = {
                "count": entry.count,
                "codes": dict(entry.codes),
                "users": entry.users,
                "clients": entry.clients,
                "at_ms": entry.minute * 60_000,
            }
            audit.record(
                actor,
                "logon",
                f"{instance}: {', '.join(sorted(entry.transports))}",
                after=details,
                result=AuditResult.DENIED,
                message=_sentence(entry),
            )


def _sentence(entry: RefusedLogonEntry) -> str:
    codes = ", ".join(f"{code} {count}" for code, count in entry.codes.most_common())
    tried = [f"users {', '.join(entry.users)}"] if entry.users else []
    tried += [f"clients {', '.join(entry.clients)}"] if entry.clients else []
    where = f"from {entry.remote}" if entry.remote else "from other addresses"
    return "; ".join([f"{entry.count} logons refused {where} within a minute: {codes}", *tried])
