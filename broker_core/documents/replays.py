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
    bookmark: Annotated[str, Meta(description="What was asked for.")]
    rate: str | None
    rate_max_gap: str | None
    conflation: str | None
    conflation_key: str | None
    state: ReplayState
    connected: bool
    position: Annotated[str, Meta(description="The bookmark it goes on after.")]
    behind: Annotated[int, Meta(description="Records of the log that are left.")]
    delivered_messages: int
    progress: Annotated[float, Meta(description="0 to 1.")]
    left_s: Annotated[float | None, Meta(description="Seconds left at this pace; null: can't be said.")]
    records_per_s: float
    recorded_at: Annotated[int | None, Meta(description="Where it is on the recorded timeline.")]
    created_at: Moment
    ended_at: MomentOrNone
    unrecorded: Annotated[bool, Meta(description="Whether the policy journals none of its topics.")] = False


class DurableEntry(Document, frozen=True, kw_only=True):
    """Durable subscription. Times are ms UTC; `behind` counts records of the log, of all topics."""

    client: str
    name: str
    topic: str
    filter: str | None
    bookmark: Annotated[str, Meta(description="It goes on after this record.")]
    connected: bool
    behind: int
    created_at: Moment
    seen_at: Moment
    shared: Annotated[
        bool, Meta(description="Whether several clients consume it, each record by one of them.")
    ] = False
    consumers: Annotated[int, Meta(description="Clients that are subscribed to it now.")] = 0
    unacknowledged: Annotated[
        int, Meta(description="Of a shared one: records that consumers have and haven't acknowledged.")
    ] = 0
    unrecorded: Annotated[bool, Meta(description="Whether the policy journals none of its topics.")] = False


class DurableName(Document, frozen=True, kw_only=True):
    """Client and name of a durable subscription."""

    client: str
    name: str


class ReplayName(Document, frozen=True, kw_only=True):
    """Name of a managed replay."""

    name: Name
