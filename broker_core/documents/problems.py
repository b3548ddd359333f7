"""Problems of a broker's policy, group and links, as operators see them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from broker_core.documents.base import Document, Moment


class ProblemEntry(Document, frozen=True, kw_only=True):
    """Current problem of a broker's policy, of its group or of one of its links."""

    code: Annotated[str, Meta(description="Of the table of codes, docs/api.md.")]
    subject: Annotated[
        str,
        Meta(
            description="The member, `link.NAME`, or `policy.stored`: the policy in force; empty: the"
            " group's log service."
        ),
    ]
    since: Moment
    severe: Annotated[
        bool,
        Meta(
            description="Whether publishes to this broker are refused or wait because of it, or changes of"
            " the policy don't reach it."
        ),
    ]
    title: Annotated[str, Meta(description="What is wrong, in some words.")]
    message: Annotated[str, Meta(description="Why, in a sentence.")]
    fix: str
