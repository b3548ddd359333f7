"""Managed replays and durable subscriptions."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from broker_core.documents.base import Document, Moment, MomentOrNone, Name

ReplayState = Literal["waiting", "running", "following", "paused", "completed", "cancelled"]


class ReplayEntry(Document, frozen=True, kw_only=True):
    """Managed replay. Times are ms UTC."""

    name: str
    client: str
    topic: str
    filter: str | None
    bookmark: Annotated[str, Meta(description="Requested topic, filter and start.")]
    rate: str | None
    rate_max_gap: str | None
    conflation: str | None
    conflation_key: str | None
    state: ReplayState
    connected: bool
    position: Annotated[str, Meta(description="Bookmark after which it continues.")]
    behind: Annotated[int, Meta(description="Remaining records of the log.")]
    delivered_messages: int
    progress: Annotated[float, Meta(description="0 to 1.")]
    left_s: Annotated[
        float | None, Meta(description="Predicted remaining seconds at the current rate; null: unknown.")
    ]
    records_per_s: float
    recorded_at: Annotated[int | None, Meta(description="Position on the recorded timeline.")]
    created_at: Moment
    ended_at: MomentOrNone
    unrecorded: Annotated[bool, Meta(description="Whether the policy journals none of its topics.")] = False


class DurableEntry(Document, frozen=True, kw_only=True):
    """Durable subscription. Times are ms UTC; `behind` counts records of the log, of all topics."""

    client: str
    name: str
    topic: str
    filter: str | None
    bookmark: Annotated[str, Meta(description="The replay continues after this record.")]
    connected: bool
    behind: int
    created_at: Moment
    seen_at: Moment
    shared: Annotated[
        bool, Meta(description="Whether several clients consume it, each record by one of them.")
    ] = False
    consumers: Annotated[int, Meta(description="Clients that are subscribed at the moment.")] = 0
    unacknowledged: Annotated[
        int, Meta(description="Unacknowledged records at the consumers of a shared subscription.")
    ] = 0
    unrecorded: Annotated[bool, Meta(description="Whether the policy journals none of its topics.")] = False


class DeletedDurable(Document, frozen=True, kw_only=True):
    """Deleted durable subscription.

    `undelivered`: number of records that it was owed, 0 while clients are subscribed to it: they still get
    them.
    """

    client: str
    name: str
    undelivered: int


class ReplayName(Document, frozen=True, kw_only=True):
    """Name of a managed replay."""

    name: Name
