"""What a broker journals about its clients: events on `$SLUICE.clients`, decisions on `$SLUICE.decisions`, losses on
`$SLUICE.ledger`. Control planes and the pipeline read them for as long as the journal holds them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from broker_core.documents.base import Document, Moment


class ClientEvent(Document, frozen=True, kw_only=True, omit_defaults=True):
    """Something happened to a client: connect, disconnect, subscribe, unsubscribe, offline_start, offline_stop, slow, or a
    sample of how far it is behind. `state` is its delivery, or of a disconnect why. Of the broker itself, whose name begins
    with $: clock_jumped, with how far in `state`; event_loop_stalled, with how long and why;
    member_downgraded, member_upgraded, link_downgraded, link_upgraded and link_set_back, with the figures."""

    at: Moment
    client: str
    event: str
    state: str
    topic: str | None = None
    """Of a subscription."""
    filter: str | None = None
    lag_messages: int | None = None
    """From here on of a sample."""
    lag_bytes: int | None = None
    lag_ms: int | None = None
    outbox_bytes: int | None = None
    spool_bytes: int | None = None
    delivered_messages: int | None = None
    """Since its logon, as delivered_bytes; also of a disconnect: all of its session."""
    delivered_bytes: int | None = None
    matched_messages: int | None = None
    """All that was for it since its logon; what became of it are the next four, which come to the same. Also
    of a disconnect."""
    acknowledged_messages: int | None = None
    in_flight_messages: int | None = None
    waiting_messages: int | None = None
    gone_messages: int | None = None
    seconds_behind: float | None = None
    health: str | None = None
    transport: str | None = None
    """Of a connect, a disconnect and subscriptions as well."""


class Candidate(Document, frozen=True, kw_only=False):
    """A client that was considered, with its use of what ran short."""

    client: str
    used: int


class DecisionEntry(Document, frozen=True, kw_only=True):
    """One explained act on a client: who, how, by which rule, on what evidence, and what it cost."""

    id: str = ""
    """Unique over restarts; "" in a preview."""
    at: Moment
    client: str
    transport: str = ""
    pool: str = ""
    action: str
    reason: str = ""
    rule: str = ""
    setting: str = ""
    revision: int = 0
    mode: str = ""
    choose: str = ""
    signal: str = ""
    observed: Annotated[int | None, Meta(description="In `unit`, as `limit` and `used`.")] = None
    limit: int | None = None
    unit: str = ""
    used: int = 0
    chosen_over: Candidate | None = None
    kept: int = 0
    lost: int = 0
    resume_bookmark: str = ""
    sentence: str = ""
    shape: str = ""
    subscription: str = ""
    topic: str = ""
    rung: int = 0
    rungs: int = 1
    for_ms: int = 0
    hold_ms: int = 0
    worst_case_ms: int = 0
    first_lost: str = ""
    last_lost: str = ""
    resume_token: str = ""
    told: str = "unknown"
    times: int = 1
    problem: Annotated[str, Meta(description="What the disk said, where that and no limit is why.")] = ""
    held_at: Annotated[
        int | None,
        Meta(
            description="Allowance of the staged rollout that held the decision: nothing was done. Else null."
        ),
    ] = None
    samples: Annotated[
        list[list[int]],
        Meta(description="Moment (ms), bytes in the outbox and the spool, age in ms, bytes sent."),
    ] = []


class LossEntry(Document, frozen=True, kw_only=True):
    """An interval of messages that a subscription did not get. `first` and `last` are bookmarks, "" when no
    journal has any."""

    at: Moment
    client: str
    subscription: str
    topic: str
    cause: str
    rule: str
    messages: int
    bytes: int
    unjournaled: int
    first: str = field(name="from")
    last: str = field(name="to")
