"""Links to other sites, as the broker sees them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from broker_core.documents.base import Document, Moment, MomentOrNone

LinkState = Literal["carrying", "away", "standing by", "off"]
LinkMode = Literal["async", "sync", "downgraded"]


class LinkEntry(Document, frozen=True, kw_only=True):
    """One link. Moments are ms UTC."""

    name: str
    client: Annotated[str, Meta(description="As which client it follows the log here.")]
    addresses: list[str]
    topic: str
    filter: str | None
    mode: Annotated[
        LinkMode,
        Meta(
            description="`sync`: what it carries is acknowledged to publishers when the destination has it. `downgraded`: it is sync, and isn't waited for now. `async`: no publisher waits for it."
        ),
    ] = "async"
    downgraded_by: Annotated[
        str, Meta(description="`policy`, or who did it by hand; empty while it isn't.")
    ] = ""
    downgraded_at: MomentOrNone = None
    """When that was done by hand."""
    confirmed: Annotated[
        int, Meta(description="Newest record up to which a sync destination has everything that is carried.")
    ] = 0
    unconfirmed_ms: Annotated[
        int, Meta(description="ms for which what a sync destination hasn't confirmed has waited.")
    ] = 0
    downgrades: Annotated[int, Meta(description="How often it was downgraded since the broker's start.")] = 0
    upgrades: Annotated[int, Meta(description="How often it was upgraded.")] = 0
    state: Annotated[
        LinkState,
        Meta(
            description="`standing by`: another member of the group carries it. `off`: switched off by the policy."
        ),
    ]
    since: Moment = 0
    """Since when it is in this state."""
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
    set_back_at: MomentOrNone = None
    """When the destination last came back with less than it had confirmed, as from an older backup."""
    set_back_had: Annotated[
        int, Meta(description="Newest record that the destination had confirmed then.")
    ] = 0
    set_back_has: Annotated[
        int, Meta(description="Newest record that it had then: what is behind it is carried again.")
    ] = 0


class Links(Document, frozen=True, kw_only=True):
    """All of one broker's."""

    links: list[LinkEntry]
