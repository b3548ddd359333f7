"""Links to other sites, as the broker sees them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from broker_core.documents.base import Document, MomentOrNone

LinkState = Literal["carrying", "away", "standing by", "off"]


class LinkEntry(Document, frozen=True, kw_only=True):
    """One link. Moments are ms UTC."""

    name: str
    client: Annotated[str, Meta(description="As which client it follows the log here.")]
    addresses: list[str]
    topic: str
    filter: str | None
    mode: Annotated[
        Literal["async"], Meta(description="`async`: no publisher waits for the destination.")
    ] = "async"
    state: Annotated[
        LinkState,
        Meta(
            description="`standing by`: another member of the group carries it. `off`: switched off by the policy."
        ),
    ]
    instance: Annotated[str, Meta(description="The destination's instance; empty before it was reached.")]
    code: Annotated[str, Meta(description="Why it isn't carrying; empty while it is.")]
    why: str
    fix: str
    behind: Annotated[int, Meta(description="Records of the log that it hasn't passed, of all topics.")]
    behind_ms: Annotated[int, Meta(description="ms since the oldest of them was accepted, as far as known.")]
    position: Annotated[
        str, Meta(description="The bookmark up to which the destination has everything that is carried.")
    ]
    carried: Annotated[
        int, Meta(description="Messages that the destination has stored since the broker's start.")
    ]
    gaps: Annotated[int, Meta(description="Stretches of the log that were removed before they were carried.")]
    connected_at: MomentOrNone
    """Since when it carries."""


class Links(Document, frozen=True, kw_only=True):
    """All of one broker's."""

    links: list[LinkEntry]
