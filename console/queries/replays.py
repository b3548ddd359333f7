"""Managed replays, as their broker reports them now, or last reported them while it is unavailable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, structs

from broker_core.documents.replays import ReplayEntry
from broker_core.documents.requests import ListReplays
from broker_core.errors import OperatorError
from broker_core.names import name_matches
from console.broker_link import BrokerUnavailable, link_to
from console.models import ManagedReplay
from console.queries.policies import instance_named


class ReplayView(ReplayEntry, frozen=True, kw_only=True):
    """Managed replay with its author and report time."""

    reported_at: Annotated[
        int | None,
        Meta(
            description="Time of the figures, ms UTC. Null: now. Otherwise the broker has been unavailable "
            "since about this time."
        ),
    ]
    author: Annotated[
        str, Meta(description="Operator that created the replay; empty: its client created it.")
    ]


def to_replay_view(entry: ReplayEntry, *, reported_at: int | None = None, author: str = "") -> ReplayView:
    """Return a broker's entry with `reported_at` and `author` added."""
    return ReplayView(**structs.asdict(entry), reported_at=reported_at, author=author)


def replays(
    instance_name: str | None = None, *, state: str = "", patterns: Sequence[str] | None = None
) -> list[ReplayView]:
    """Return managed replays, newest first.

    Only clients that match one of `patterns` are included; None means all.
    """
    instance = instance_named(instance_name)
    rows = {
        (row.name, row.shown.get("created_at")): row
        for row in ManagedReplay.objects.filter(instance=instance)
    }
    authors = {key: row.author for key, row in rows.items()}
    try:
        entries = link_to(instance.name).call(ListReplays())
        found = [to_replay_view(one, author=authors.get((one.name, one.created_at), "")) for one in entries]
    except BrokerUnavailable:
        found = [
            to_replay_view(
                msgspec.convert(row.shown, ReplayEntry),
                reported_at=int(row.reported_at.timestamp() * 1_000),
                author=row.author,
            )
            for row in rows.values()
        ]
    return [
        one
        for one in found
        if (not state or one.state == state)
        and (patterns is None or any(name_matches(pattern, one.client) for pattern in patterns))
    ]


def replay(
    name: str, instance_name: str | None = None, *, patterns: Sequence[str] | None = None
) -> ReplayView:
    """Return a managed replay by name.

    Only replays of clients that match one of `patterns` exist for the caller; None means all. Raises
    OperatorError `unknown_replay`.
    """
    for one in replays(instance_name, patterns=patterns):
        if one.name == name:
            return one
    raise OperatorError(
        "unknown_replay", f"The managed replay {name[:64]!r} doesn't exist.", "See the list of replays."
    )
