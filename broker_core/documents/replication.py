"""Replication: a group as one of its members sees it, and links to other sites."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from broker_core.documents.base import Document, Moment, MomentOrNone


class MemberEntry(Struct, frozen=True, kw_only=True):
    """Status of one member of a group, as the member itself reported it."""

    name: str
    there: Annotated[bool, Meta(description="Whether the member has reported in the last seconds")]
    applied: Annotated[int, Meta(description="Newest entry of the group's log that is in its journal")]
    behind: Annotated[
        int | None,
        Meta(
            description="Entries of the log that it hasn't applied; null: it isn't attached, and can't know"
        ),
    ]
    sequence: Annotated[int, Meta(description="Newest record there")]
    lag_records: Annotated[
        int | None, Meta(description="Records that another member has, and it hasn't; null: unknown")
    ] = 0
    lag_ms: Annotated[
        int | None,
        Meta(description="ms by the engine's clock between its newest entry and the log's; null: unknown"),
    ] = 0
    chain: Annotated[str, Meta(description="Hash over everything up to it; empty when it can't be known")]
    alike: Annotated[
        bool | None, Meta(description="Whether its journal is the asked member's; null: not compared")
    ] = None
    heard_s: Annotated[float, Meta(description="s since it said so")] = 0.0
    since: Annotated[
        int | None,
        Meta(description="Since when it is silent, or its journal differs, ms UTC; null: neither"),
    ] = None
    mode: Annotated[
        str,
        Meta(
            description="`sync`: it is waited for; `async`: the policy doesn't list it; `downgraded`: not now"
        ),
    ] = "async"
    downgraded_by: Annotated[str, Meta(description="`policy`, or who did it; empty while it isn't")] = ""
    downgraded_at: Annotated[
        int, Meta(description="When that was done by hand, ms UTC; 0 while it isn't")
    ] = 0
    confirmed: Annotated[int, Meta(description="Newest record that it is known to have synced")] = 0
    unconfirmed_ms: Annotated[int, Meta(description="ms for which what it hasn't confirmed has waited")] = 0


class GroupStatus(Struct, frozen=True, kw_only=True):
    """Status of a group and of the log service's log."""

    instance: str
    member: str
    state: Annotated[str, Meta(description="`taking part`, `away`, or the code of what keeps it from that")]
    why: str
    fix: str
    code: Annotated[
        str, Meta(description="Code of why it takes no part: docs/api.md; empty while it does")
    ] = ""
    since: Annotated[int, Meta(description="Since when it is in this state, ms UTC")] = 0
    log: Annotated[str, Meta(description="The log's identity; empty while the engine is away")]
    generation: int
    last: Annotated[int, Meta(description="The engine's newest entry")]
    leader: Annotated[str, Meta(description="The engine that orders entries")]
    engines: Annotated[int, Meta(description="Servers that keep the log")]
    engines_current: Annotated[int, Meta(description="Those that are up to date")]
    engines_since: Annotated[
        int | None,
        Meta(description="Since when not all of them are up to date, ms UTC; null: all are"),
    ] = None
    clock_ahead_ms: Annotated[int, Meta(description="How far the member's clock is ahead of the engine's")]
    members: list[MemberEntry]
    confirmed: Annotated[int, Meta(description="Newest record that everybody who is waited for has")] = 0
    downgrades: Annotated[int, Meta(description="How often a member was downgraded since the start")] = 0
    upgrades: Annotated[int, Meta(description="How often one was upgraded")] = 0


LinkState = Literal["carrying", "away", "standing by", "off"]
LinkMode = Literal["async", "sync", "downgraded"]


class LinkEntry(Document, frozen=True, kw_only=True):
    """Status of one link to another site. Times are ms UTC."""

    name: str
    client: Annotated[str, Meta(description="As which client it follows the log here.")]
    addresses: list[str]
    topic: str
    filter: str | None
    mode: Annotated[
        LinkMode,
        Meta(
            description="`sync`: what it carries is acknowledged to publishers when the destination has it. "
            "`downgraded`: it is sync, and isn't waited for now. `async`: no publisher waits for it."
        ),
    ] = "async"
    downgraded_by: Annotated[
        str, Meta(description="`policy`, or who did it by hand; empty while it isn't.")
    ] = ""
    downgraded_at: MomentOrNone = None
    """Time at which an operator downgraded it. None: no operator did."""
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
            description="`standing by`: another member of the group carries it. `off`: switched off by the "
            "policy."
        ),
    ]
    since: Moment = 0
    """Time at which it entered this state."""
    instance: Annotated[str, Meta(description="The destination's instance; empty before it was reached.")]
    code: Annotated[str, Meta(description="Why it isn't carrying; empty while it is.")]
    why: str
    fix: str
    behind: Annotated[
        int, Meta(description="Records of the log that the link hasn't processed, of all topics.")
    ]
    behind_ms: Annotated[int, Meta(description="ms since the oldest of them was accepted, as far as known.")]
    position: Annotated[
        str, Meta(description="The bookmark up to which the destination has everything that is carried.")
    ]
    carried: Annotated[
        int, Meta(description="Messages that the destination has stored since the broker's start.")
    ]
    gaps: Annotated[int, Meta(description="Stretches of the log that were removed before they were carried.")]
    connected_at: MomentOrNone
    """Time since which it has been forwarding records."""
    set_back_at: MomentOrNone = None
    """Time at which the destination last lacked records that it had confirmed, as after a restored backup."""
    set_back_had: Annotated[
        int, Meta(description="Newest record that the destination had confirmed then.")
    ] = 0
    set_back_has: Annotated[
        int, Meta(description="Newest record that it had then: what is behind it is carried again.")
    ] = 0


class LinkList(Document, frozen=True, kw_only=True):
    """Answer to requests about links: all links of one broker."""

    links: list[LinkEntry]
