"""The messages of topics, as the journal has them."""

from __future__ import annotations

from datetime import datetime

from broker_core.documents.messages import BrowsedPage
from broker_core.documents.requests import Browse
from console.broker_link import link_to
from console.queries.policies import instance_named


def browse(
    topic: str, *, filter: str = "", bookmark: str = "", start: datetime | None = None, end: datetime | None = None,
    limit: int = 100, instance_name: str | None = None,
) -> BrowsedPage:  # fmt: skip
    """Some messages, see broker_core/control/browsing.py. Raises BrokerAway or the broker's bad_pattern, bad_filter,
    bad_bookmark, bookmark_gone."""
    asked = Browse(
        topic=topic, filter=filter, bookmark=bookmark, limit=limit, from_ns=_ns(start), to_ns=_ns(end)
    )
    return link_to(instance_named(instance_name).name).call(asked)


def _ns(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1_000_000) * 1_000
