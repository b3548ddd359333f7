"""A page of a broker's clients: filtered, sorted and cut here, so that of 10,000 only the page is sent. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from broker_core.errors import OperatorError
from broker_core.names import name_fits

SORT_FIELDS = (
    "name", "transport", "protocol", "remote", "user", "state", "connected_at", "lag_messages", "lag_bytes", "lag_ms",
    "outbox_bytes", "outbox_messages", "spool_bytes", "spool_messages", "offlined_since", "delivered_messages",
    "delivered_bytes", "published_messages", "rate_out_messages", "write_blocked_ms", "pool", "memory_percent",
    "disk_percent", "revision",
)  # fmt: skip
MOST = 100_000
"""Entries of one page at most (a CSV of everybody)."""
Entry = Mapping[str, Any]


def page(everyone: Sequence[Entry], request: Mapping[str, Any]) -> dict[str, Any]:
    """{"total", "clients"} of {state, transport, search, patterns, sort, offset, limit}, each of which may be left out.

    Raises OperatorError bad_sort, bad_request.
    """
    offset, limit = _number(request, "offset", 0), min(_number(request, "limit", 100), MOST)
    found = in_order([one for one in everyone if _fits(one, request)], str(request.get("sort") or "name"))
    return {"total": len(found), "clients": found[offset : offset + limit]}


def in_order(entries: Sequence[Entry], sort: str) -> list[Entry]:
    """Sorted by a field, downwards after "-". Entries without a value come last either way; ties go by name."""
    field, down = sort.removeprefix("-"), sort.startswith("-")
    if field not in SORT_FIELDS:
        raise OperatorError("bad_sort", f"Clients can't be sorted by {field[:50]!r}.", f"Use {', '.join(SORT_FIELDS)}.")
    found = sorted(entries, key=lambda one: str(one["name"]))
    empty = [one for one in found if one.get(field) is None]
    filled = [one for one in found if one.get(field) is not None]
    filled.sort(key=lambda one: one[field], reverse=down)
    return filled + empty


def _fits(one: Entry, request: Mapping[str, Any]) -> bool:
    state, transport, patterns = request.get("state"), request.get("transport"), request.get("patterns")
    text = str(request.get("search") or "").casefold()
    return (
        (not state or one["state"] == state)
        and (not transport or one["transport"] == transport)
        and (not text or text in one["name"].casefold())
        and (patterns is None or any(name_fits(pattern, one["name"]) for pattern in patterns))
    )


def _number(request: Mapping[str, Any], key: str, default: int) -> int:
    value = request.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise OperatorError("bad_request", f"{key} must be a number, 0 or more.", "Give it.")
    return value
