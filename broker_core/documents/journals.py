"""Segments of a journal, and what archiving, compressing and removing would take and took."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from broker_core.documents.base import Document

JournalAction = Literal["archive", "compress", "remove"]
SwapAction = Literal["archive", "compress"]
Nanoseconds = Annotated[int, Meta(description="ns UTC; 0: unknown.")]


class SegmentEntry(Document, frozen=True, kw_only=True):
    """One file of the journal. `state` is current, sealed or archived."""

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
    pinned_by: Annotated[list[str], Meta(description="Who still needs it.")]


class PlannedSegment(Document, frozen=True, kw_only=True):
    """A segment that an action would take."""

    name: str
    path: str
    bytes: int
    records: int
    first_sequence: int
    last_sequence: int


class SkippedSegment(Document, frozen=True, kw_only=True):
    """A segment that an action would leave, and why: in a sentence, and in a word."""

    name: str
    why: str
    reason: str = ""


class JournalPlan(Document, frozen=True, kw_only=True):
    """What an action would do."""

    action: JournalAction
    chosen: list[str]
    segments: list[PlannedSegment] = []
    skipped: list[SkippedSegment]
    bytes: int
    archive_directory: str = ""


class Swapped(Document, frozen=True, kw_only=True):
    """A prepared file has taken a segment's place."""

    name: str
    action: SwapAction


class Removal(Document, frozen=True, kw_only=True):
    """What was removed; the records `first_sequence` to `last_sequence` are gone, `first_held` is the oldest left."""

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
