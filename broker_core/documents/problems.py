"""Problems of a broker's group and links, as operators see them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from broker_core.documents.base import Document, Moment


class ProblemEntry(Document, frozen=True, kw_only=True):
    """Problem of a broker's group or of one of its links, while it lasts."""

    code: Annotated[str, Meta(description="Of the table of codes, docs/api.md.")]
    subject: Annotated[
        str,
        Meta(description="The member, or `link.NAME`; empty: the group's log service."),
    ]
    since: Moment
    severe: Annotated[
        bool,
        Meta(description="Whether publishes to this broker are refused or wait because of it."),
    ]
    title: Annotated[str, Meta(description="What is wrong, in some words.")]
    message: Annotated[str, Meta(description="Why, in a sentence.")]
    fix: str
