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
        Meta(description="Entries of the log that the member hasn't applied; null: not attached, unknown"),
    ]
    sequence: Annotated[int, Meta(description="Newest record of the member")]
    lag_records: Annotated[
        int | None, Meta(description="Records that another member has and this member lacks; null: unknown")
    ] = 0
    lag_ms: Annotated[
        int | None,
        Meta(
            description="ms by the log service's clock between its newest entry and the log's; null: unknown"
        ),
    ] = 0
    chain: Annotated[str, Meta(description="Hash over everything up to the newest entry; empty if unknown")]
    alike: Annotated[
        bool | None,
        Meta(description="Whether its journal equals that of the responding member; null: not compared"),
    ] = None
    heard_s: Annotated[float, Meta(description="s since its last report")] = 0.0
    since: Annotated[
        int | None,
        Meta(description="Time since which it is silent or its journal differs, ms UTC; null: neither"),
    ] = None
    mode: Annotated[
        str,
        Meta(
            description="`sync`: acknowledgements wait for it; `async`: the policy doesn't list it; "
            "`downgraded`: temporarily not"
        ),
    ] = "async"
    downgraded_by: Annotated[
        str, Meta(description="`policy` or the operator that downgraded it; empty while it isn't downgraded")
    ] = ""
    downgraded_at: Annotated[int, Meta(description="Time of a manual downgrade, ms UTC; 0 without one")] = 0
    confirmed: Annotated[int, Meta(description="Newest record that it has confirmed as synced")] = 0
    unconfirmed_ms: Annotated[
        int, Meta(description="Age of the oldest record that it hasn't confirmed, ms")
    ] = 0


class GroupStatus(Struct, frozen=True, kw_only=True):
    """Status of a group and of the log service's log."""

    instance: str
    member: str
    state: Annotated[str, Meta(description="`taking part`, `away`, or the code of the problem")]
    why: str
    fix: str
    code: Annotated[
        str,
        Meta(description="Code of the problem that makes it inactive: docs/api.md; empty while it is active"),
    ] = ""
    since: Annotated[int, Meta(description="Start of this state, ms UTC")] = 0
    log: Annotated[str, Meta(description="The log's identity; empty while the log service is away")]
    generation: int
    last: Annotated[int, Meta(description="Newest entry of the log service")]
    leader: Annotated[str, Meta(description="Leading server of the log service")]
    engines: Annotated[int, Meta(description="Servers of the log service")]
    engines_current: Annotated[int, Meta(description="Servers that are up to date")]
    engines_since: Annotated[
        int | None,
        Meta(description="Time since which a server isn't up to date, ms UTC; null: all are"),
    ] = None
    clock_ahead_ms: Annotated[int, Meta(description="Lead of the member's clock over the log service's, ms")]
    members: list[MemberEntry]
    confirmed: Annotated[
        int, Meta(description="Newest record that all sync members and destinations have")
    ] = 0
    downgrades: Annotated[int, Meta(description="Downgrades of members since the start")] = 0
    upgrades: Annotated[int, Meta(description="Upgrades of members since the start")] = 0


LinkState = Literal["carrying", "away", "standing by", "off"]
LinkMode = Literal["async", "sync", "downgraded"]


class LinkEntry(Document, frozen=True, kw_only=True):
    """Status of one link to another site. Times are ms UTC."""

    name: str
    client: Annotated[str, Meta(description="Client name under which the link reads the log.")]
    addresses: list[str]
    topic: str
    filter: str | None
    mode: Annotated[
        LinkMode,
        Meta(
            description="`sync`: acknowledgements wait for the destination. `downgraded`: sync, but "
            "acknowledgements don't wait at the moment. `async`: no publisher waits."
        ),
    ] = "async"
    downgraded_by: Annotated[
        str, Meta(description="`policy` or the operator that downgraded it; empty while it isn't downgraded.")
    ] = ""
    downgraded_at: MomentOrNone = None
    """Time at which an operator downgraded it. None: no operator did."""
    confirmed: Annotated[
        int, Meta(description="Newest record up to which a sync destination has all forwarded records.")
    ] = 0
    unconfirmed_ms: Annotated[
        int, Meta(description="Age of the oldest record that a sync destination hasn't confirmed, ms.")
    ] = 0
    downgrades: Annotated[int, Meta(description="Downgrades since the broker's start.")] = 0
    upgrades: Annotated[int, Meta(description="Upgrades since the broker's start.")] = 0
    state: Annotated[
        LinkState,
        Meta(
            description="`standing by`: another member of the group runs the link. `off`: disabled by the "
            "policy."
        ),
    ]
    since: Moment = 0
    """Time at which it entered this state."""
    instance: Annotated[
        str, Meta(description="The destination's instance; empty before the first connection.")
    ]
    code: Annotated[str, Meta(description="Reason why it isn't forwarding; empty while it is.")]
    why: str
    fix: str
    behind: Annotated[
        int, Meta(description="Records of the log that the link hasn't processed, of all topics.")
    ]
    behind_ms: Annotated[int, Meta(description="Age of the oldest of these records, ms, if known.")]
    position: Annotated[
        str, Meta(description="Bookmark up to which the destination has all forwarded records.")
    ]
    carried: Annotated[
        int, Meta(description="Messages that the destination has stored since the broker's start.")
    ]
    gaps: Annotated[
        int, Meta(description="Intervals of the log that were removed before the link forwarded them.")
    ]
    connected_at: MomentOrNone
    """Time since which it has been forwarding records."""
    set_back_at: MomentOrNone = None
    """Time at which the destination last lacked records that it had confirmed, as after a restored backup."""
    set_back_had: Annotated[
        int, Meta(description="Newest record that the destination had confirmed then.")
    ] = 0
    set_back_has: Annotated[
        int, Meta(description="Newest record that it had then: the link forwards later records again.")
    ] = 0


class LinkList(Document, frozen=True, kw_only=True):
    """Answer to requests about links: all links of one broker."""

    links: list[LinkEntry]
