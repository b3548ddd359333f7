"""Messages of topics, for whoever browses them, and what became of those that were published."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from broker_core.documents.base import Document, Json, Moment


class BrowsedMessage(Document, frozen=True, kw_only=True):
    """One message, its body as JSON, else as text, else in base64."""

    bookmark: str
    topic: str
    destination: Annotated[
        str, Meta(description="The topic as its publisher named it over STOMP, or as it would be named.")
    ]
    at: Moment
    bytes: int
    headers: Annotated[
        dict[str, str], Meta(description="What its publisher said of it besides the body; over STOMP alone.")
    ] = {}
    data: Json = UNSET
    text: str | UnsetType = UNSET
    base64: str | UnsetType = UNSET


class BrowsedPage(Document, frozen=True, kw_only=True):
    """Some messages of the journal."""

    messages: list[BrowsedMessage]
    next: Annotated[str, Meta(description="The bookmark to go on after.")]
    searched: Annotated[int, Meta(description="Records that were looked at.")]
    complete: Annotated[bool, Meta(description="Whether there is no more, up to the newest record on disk.")]
    behind: Annotated[
        bool,
        Meta(description="Whether this member of a group has no more, and can't know whether that is all."),
    ] = False


class Published(Document, frozen=True, kw_only=True):
    """A message was published."""

    topic: str


class PublishedBytes(Document, frozen=True, kw_only=True):
    """A message was published, as bytes."""

    topic: str
    bytes: int


class Stopping(Document, frozen=True, kw_only=True):
    """The broker stops."""

    stopping: bool
