"""Problems of a broker's policy, group and links, as operators see them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from broker_core.documents.base import Document, Moment


class ProblemEntry(Document, frozen=True, kw_only=True):
    """Current problem of a broker's policy, of its group or of one of its links."""

    code: Annotated[str, Meta(description="Error code: see docs/api.md.")]
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
            description="Whether the problem delays or refuses publishes to this broker, or "
            "blocks changes of "
            "its policy."
        ),
    ]
    title: Annotated[str, Meta(description="Short title of the problem.")]
    message: Annotated[str, Meta(description="Reason, as a sentence.")]
    fix: str
