"""The clients of a running broker, as it sees them now: list, filter, sort, and one with its subscriptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker_core.errors import OperatorError
from console.broker_link import link_to
from console.queries.policies import instance_named

SORT_FIELDS = (
    "name", "transport", "protocol", "remote", "user", "state", "connected_at", "lag_messages", "lag_bytes", "lag_ms",
    "outbox_bytes", "outbox_messages", "spool_bytes", "spool_messages", "offlined_since", "delivered_messages",
    "delivered_bytes", "published_messages", "rate_out_messages", "write_blocked_ms", "pool", "memory_percent",
    "disk_percent", "revision",
)  # fmt: skip


def clients(
    *, state: str = "", transport: str = "", search: str = "", sort: str = "name", instance_name: str | None = None
) -> list[dict[str, Any]]:
    """All logged-on clients that fit, sorted; `-lag_ms` sorts downwards. Raises BrokerAway."""
    everyone = link_to(instance_named(instance_name).name).call("clients")
    return select(everyone, state=state, transport=transport, search=search, sort=sort)


def client(name: str, instance_name: str | None = None) -> dict[str, Any]:
    """One client. Raises OperatorError unknown_client, or BrokerAway."""
    found: dict[str, Any] = link_to(instance_named(instance_name).name).call("client", name=name)
    return found


def select(
    everyone: Sequence[Mapping[str, Any]], *, state: str = "", transport: str = "", search: str = "", sort: str = "name"
) -> list[dict[str, Any]]:
    """The clients that fit, sorted. Clients without a value come last either way; ties go by name."""
    field, down = sort.removeprefix("-"), sort.startswith("-")
    if field not in SORT_FIELDS:
        raise OperatorError("bad_sort", f"Clients can't be sorted by {field[:50]!r}.", f"Use {', '.join(SORT_FIELDS)}.")
    text = search.casefold()
    found = [
        dict(one)
        for one in everyone
        if (not state or one["state"] == state)
        and (not transport or one["transport"] == transport)
        and (not text or text in one["name"].casefold())
    ]
    found.sort(key=lambda one: one["name"])
    empty = [one for one in found if one.get(field) is None]
    filled = [one for one in found if one.get(field) is not None]
    filled.sort(key=lambda one: one[field], reverse=down)
    return filled + empty
