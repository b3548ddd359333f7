"""Problems of a broker's links. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker_core.documents.problems import ProblemEntry
from broker_core.documents.replication import LinkEntry

SETTLING_MS: Final = 2_000
"""Milliseconds within which a reconnecting link isn't reported."""


def link_problems(links: Sequence[LinkEntry], now_ms: int) -> list[ProblemEntry]:
    """Return the problems of the links at `now_ms`.

    A problem is severe if publishers wait for the destination, because it is a sync destination.
    """
    return [
        ProblemEntry(
            code=one.code if one.code else "link_away",
            subject=one.client,
            since=one.since,
            severe=one.mode == "sync",
            title=f"The link {one.name} carries nothing",
            message=one.why or "The link hasn't connected yet.",
            fix=one.fix or "See the page Replication and docs/sites.md.",
        )
        for one in links
        if one.state == "away" and now_ms - one.since >= SETTLING_MS
    ]
