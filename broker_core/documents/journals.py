"""Journal segments, the effect of archiving, compressing and removing them, and messages of topics.

The messages are those that operators browse and publish.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from broker_core.documents.base import Document, Json, Moment

JournalAction = Literal["archive", "compress", "remove"]
SwapAction = Literal["archive", "compress"]
Nanoseconds = Annotated[int, Meta(description="ns UTC; 0: unknown.")]


class SegmentEntry(Document, frozen=True, kw_only=True):
    """Segment file of the journal. `state` is current, sealed or archived."""

    name: str
    path: str
    state: str
    compressed: bool
    first_sequence: int
    last_sequence: int
    first_at: Nanoseconds
    last_at: Nanoseconds
    bytes: int
    records: int
    pinned_by: Annotated[list[str], Meta(description="Readers that still need the segment.")]


class PlannedSegment(Document, frozen=True, kw_only=True):
    """Segment that an action would process."""

    name: str
    path: str
    bytes: int
    records: int
    first_sequence: int
    last_sequence: int


class SkippedSegment(Document, frozen=True, kw_only=True):
    """Segment that an action would skip."""

    name: str
    why: str
    """Reason as a sentence."""
    reason: str = ""
    """Reason as a code."""


class JournalPlan(Document, frozen=True, kw_only=True):
    """Plan of a journal action: the segments that it would process and skip."""

    action: JournalAction
    chosen: list[str]
    segments: list[PlannedSegment] = []
    skipped: list[SkippedSegment]
    bytes: int
    archive_directory: str = ""


class SwapReply(Document, frozen=True, kw_only=True):
    """Answer to SwapJournal: a prepared file replaced a segment."""

    name: str
    action: SwapAction


class RemovalReply(Document, frozen=True, kw_only=True):
    """Answer to RemoveJournals: the removed segments.

    The records `first_sequence` to `last_sequence` were removed; `first_held` is the oldest remaining record.
    """

    action: str
    names: list[str]
    sizes: list[int]
    nbytes: int
    freed_bytes: int
    records: int
    first_sequence: int
    last_sequence: int
    first_held: int
    first_at: Nanoseconds
    last_at: Nanoseconds


class BrowsedMessage(Document, frozen=True, kw_only=True):
    """Message of the journal. Its body is given as JSON, else as text, else in base64."""

    bookmark: str
    topic: str
    destination: Annotated[str, Meta(description="STOMP destination of the topic.")]
    at: Moment
    time_is_estimated: Annotated[
        bool, Meta(description="Whether the broker estimated `at`, because its clock had jumped.")
    ] = False
    bytes: int
    headers: Annotated[dict[str, str], Meta(description="Headers from its publisher; only over STOMP.")] = {}
    data: Json = UNSET
    text: str | UnsetType = UNSET
    base64: str | UnsetType = UNSET


class BrowsedPage(Document, frozen=True, kw_only=True):
    """Page of messages of the journal."""

    messages: list[BrowsedMessage]
    next: Annotated[str, Meta(description="Bookmark after which to continue.")]
    searched: Annotated[int, Meta(description="Number of examined records.")]
    complete: Annotated[
        bool, Meta(description="Whether the result is complete up to the newest record on disk.")
    ]
    behind: Annotated[
        bool,
        Meta(description="Whether this member of a group has no more records, but may lack some."),
    ] = False


class PublishReply(Document, frozen=True, kw_only=True):
    """Answer to PublishMessage: a message was published."""

    topic: str


class PublishBytesReply(Document, frozen=True, kw_only=True):
    """Answer to PublishRawMessage: a message was published as bytes."""

    topic: str
    bytes: int


class ShutdownReply(Document, frozen=True, kw_only=True):
    """Answer to ShutDown: the broker is stopping."""

    stopping: bool
