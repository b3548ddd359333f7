"""Managed replays as their broker sees them now, or as it last reported them while it is away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from broker_core.errors import OperatorError
from broker_core.names import name_fits
from console.broker_link import BrokerAway, link_to
from console.models import ManagedReplay
from console.queries.policies import instance_named


def replays(
    instance_name: str | None = None, *, state: str = "", patterns: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """The newest first, each with `author` and `reported_at` (ms; null: now, by the broker itself).

    `patterns` are the clients that may be seen; None is all of them.
    """
    instance = instance_named(instance_name)
    rows = {(row.name, row.shown.get("created_at")): row for row in ManagedReplay.objects.filter(instance=instance)}
    try:
        found = [dict(one, reported_at=None) for one in link_to(instance.name).call("replays")]
    except BrokerAway:
        found = [dict(row.shown, reported_at=int(row.reported_at.timestamp() * 1_000)) for row in rows.values()]
    for one in found:
        row = rows.get((one["name"], one["created_at"]))
        one["author"] = row.author if row is not None else ""
    return [
        one for one in found
        if (not state or one["state"] == state)
        and (patterns is None or any(name_fits(pattern, one["client"]) for pattern in patterns))
    ]  # fmt: skip


def replay(name: str, instance_name: str | None = None) -> dict[str, Any]:
    """One of them. Raises OperatorError unknown_replay."""
    for one in replays(instance_name):
        if one["name"] == name:
            return one
    raise OperatorError("unknown_replay", f"There is no managed replay {name[:64]!r}.", "See the list of replays.")
