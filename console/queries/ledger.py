"""Queries for the stored loss ledger, and for durable subscriptions at their broker."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.db.models import QuerySet

from broker_core.documents.replays import DurableEntry
from broker_core.documents.requests import ListDurables
from broker_core.names import name_matches
from console.broker_link import link_to
from console.models import Instance, LossRecord
from console.queries.client_scope import visible_rows
from console.queries.policies import instance_named


def losses(
    instance: Instance,
    *,
    client: str = "",
    subscription: str = "",
    cause: str = "",
    rule: str = "",
    since: datetime | None = None,
    patterns: Sequence[str] | None = None,
) -> QuerySet[LossRecord]:
    """Return intervals of lost messages, newest first.

    Only clients whose names match one of `patterns` are included; None means all.
    """
    found = visible_rows(LossRecord.objects.filter(instance=instance), patterns)
    filters = {"client": client, "subscription": subscription, "cause": cause, "rule": rule}
    found = found.filter(**{key: value for key, value in filters.items() if value})
    return found.filter(at__gte=since) if since is not None else found


def durables(instance_name: str | None = None, patterns: Sequence[str] | None = None) -> list[DurableEntry]:
    """Return durable subscriptions of clients whose names match one of `patterns`; None means all.

    Raises BrokerUnavailable.
    """
    found = link_to(instance_named(instance_name).name).call(ListDurables())
    return [
        one
        for one in found
        if patterns is None or any(name_matches(pattern, one.client) for pattern in patterns)
    ]
