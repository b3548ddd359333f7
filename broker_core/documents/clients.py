"""Clients and their subscriptions, as a broker sees them now."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta

from broker_core.documents.base import Document, Moment, MomentOrNone, Setting


class DeliveryState(StrEnum):
    """Delivery state: what the broker does for a client or a subscription.

    If several states apply, the first in this list counts.
    """

    OFFLINED = "offlined"
    """Waiting messages go to the spool; nothing is sent."""
    DRAINING = "draining"
    """The spool is being sent, in order."""
    REPLAYING = "replaying"
    """Records of the log are sent, starting from a bookmark."""
    LIVE = "live"
    """Records are sent as they are accepted."""
    PAUSED = "paused"
    """Nothing is sent until it is resumed. A client is paused if all its subscriptions are."""


class Health(StrEnum):
    """Health of a client: how well it processes its messages, ordered from worst to best."""

    STALLED = "stalled"
    """The client reads or acknowledges nothing although messages wait."""
    FLAPPING = "flapping"
    """The client is offlined repeatedly."""
    FALLING_BEHIND = "falling behind"
    """More messages arrive than the client reads, or it has read nothing for a while."""
    NOT_RECORDED = "not recorded"
    """The client reads the log, and the policy no longer journals its topics: nothing more will arrive."""
    UNKNOWN = "unknown"
    """The observation is too short, or the broker's own event loop is late."""
    PAUSED = "paused"
    """Nothing is sent to the client, so its health is unknown."""
    KEEPS_UP = "keeps up"
    """No messages wait for the client, or its backlog shrinks."""

    @property
    def rank(self) -> int:
        """Position in the order of severity: 0 is the worst."""
        return _RANKS[self]


Bodies = Annotated[int, Meta(description="Bytes of their bodies.")]
_RANKS = {health: rank for rank, health in enumerate(Health)}


class DeliveryStats(Document, frozen=True, kw_only=True):
    """Fields that a client's and a subscription's entry share: its lag, and the account of its messages."""

    delivery: Annotated[DeliveryState, Meta(description="State of the delivery to the subscription.")]
    health: Annotated[Health, Meta(description="Health of the client for the subscription.")]
    lag_messages: Annotated[int, Meta(description="Unsent records: waiting, or not yet read by a replay.")]
    lag_at_most: Annotated[
        bool,
        Meta(
            description="Whether lag_messages includes records of other topics that a replay "
            "has yet to read. "
            "Otherwise it counts only matching records."
        ),
    ]
    lag_bytes: Annotated[int, Meta(description="Waiting bytes.")]
    lag_ms: Annotated[
        int,
        Meta(
            description="Age of the oldest waiting message; a replayed message ages from the time when it is "
            "read."
        ),
    ]
    seconds_behind: Annotated[
        float,
        Meta(description="Age of the oldest unsent record; during a replay, of the current record."),
    ]
    caught_up_in_s: Annotated[
        float | None,
        Meta(
            description="Predicted seconds until the backlog is empty; null: no backlog, or see "
            "caught_up_why_none."
        ),
    ]
    caught_up_why_none: Annotated[
        str, Meta(description="Reason for a missing estimate; empty with an estimate, or without a backlog.")
    ]
    matched_messages: Annotated[
        int, Meta(description="All matching messages: acknowledged, in flight, waiting and discarded.")
    ]
    matched_bytes: Bodies
    acknowledged_messages: Annotated[
        int, Meta(description="Messages that the client, or else its kernel, has acknowledged.")
    ]
    acknowledged_bytes: Bodies
    in_flight_messages: Annotated[int, Meta(description="Delivered and not acknowledged.")]
    in_flight_bytes: Bodies
    waiting_messages: Annotated[
        int, Meta(description="Not delivered yet: in memory, in the spool, or only in the log.")
    ]
    waiting_bytes: Bodies
    gone: Annotated[dict[str, int], Meta(description="Messages that the client will not receive, by cause.")]
    gone_bytes: Annotated[int, Meta(description="Bytes of their bodies, of all causes.")]
    delivered_messages: Annotated[int, Meta(description="Delivered messages, acknowledged or not.")]
    lost_messages: Annotated[
        int,
        Meta(
            description="Losses in `gone`: discarded without a request of the client, neither stored in the "
            "log for it nor returned for another consumer."
        ),
    ]
    unacked_messages: Annotated[
        int, Meta(description="Sent messages that the application hasn't acknowledged.")
    ]


class SubscriptionEntry(DeliveryStats, frozen=True, kw_only=True):
    """Entry of one subscription of a client."""

    id: str
    topic: str
    filter: str | None
    bookmark: str | None
    rate: str | None
    ack: Annotated[
        str | None, Meta(description="auto, client, client-individual; null without acknowledgements.")
    ]
    prefetch: int | None
    durable: Annotated[str | None, Meta(description="Name of the durable subscription.")]
    lease_ms: int | None
    paused: Annotated[bool, Meta(description="Whether its client, an operator or a policy has paused it.")]
    unrecorded: Annotated[
        Literal["", "part", "all"],
        Meta(
            description="Extent of its topics that the policy no longer journals, for a subscription of the "
            "log."
        ),
    ] = ""


class ForecastEntry(Document, frozen=True, kw_only=True):
    """Forecast of when a rule acts on a client.

    The client's own entry has the forecast of the rule that acts first.
    """

    rule: str
    setting: str
    action: str
    mode: str
    signal: str
    value: int
    limit: int
    """Limit in the unit of the signal."""
    percent: Annotated[float, Meta(description="Percent of the limit in use.")]
    per_second: float
    """Growth of the signal per second."""
    fires_in_ms: Annotated[
        int | None,
        Meta(description="Milliseconds until it acts, including the rest of a hold; null: see `why_none`."),
    ]
    why_none: Annotated[str, Meta(description="Reason for a missing estimate; empty with an estimate.")]
    subscription: Annotated[
        str, Meta(description="Subscription of the signal; empty: the client's or its pool's.")
    ]


class VerdictEntry(Document, frozen=True, kw_only=True):
    """Explanation of why a client is slow: one cause with its evidence."""

    cause: str
    sentence: str
    evidence: dict[str, int]


class DecisionSummary(Document, frozen=True, kw_only=True):
    """Summary of the newest decision about a client."""

    id: str
    at: Moment
    action: str
    mode: str
    reason: str
    told: str
    """Whether the client received the notice: yes, no or unknown."""
    sentence: str


class ClientEntry(DeliveryStats, frozen=True, kw_only=True):
    """Entry of a client, as its broker sees it now.

    Lag is that of the subscription with the largest lag. Other figures are totals of all subscriptions.
    """

    name: str
    health: Annotated[Health, Meta(description="Health of the client: that of its worst subscription.")]
    member: Annotated[str, Meta(description="Member of the group with the connection.")] = ""
    transport: str
    protocol: str
    remote: str
    user: str
    connected_at: Moment
    lag_messages: Annotated[int, Meta(description="Unsent records of the subscription furthest behind.")]
    lag_bytes: Annotated[int, Meta(description="Waiting bytes of the subscription with most of them.")]
    outbox_bytes: Annotated[int, Meta(description="Bytes that its outbox uses of the pool's memory.")]
    outbox_messages: int
    spool_bytes: Annotated[int, Meta(description="Bytes that its spool uses on disk.")]
    spool_messages: int
    offlined_since: MomentOrNone
    delivered_bytes: Bodies
    published_messages: int
    published_topics: Annotated[
        dict[str, int],
        Meta(
            description="Published messages by topic; with many topics, also by pattern, such as `prices.>`."
        ),
    ]
    rate_out_messages: Annotated[float, Meta(description="Messages delivered in the last second.")]
    write_blocked_ms: Annotated[int, Meta(description="Time for which its socket has accepted no bytes.")]
    pool: str
    memory_percent: Annotated[float, Meta(description="Its share of the pool's memory limit.")]
    disk_percent: Annotated[float, Meta(description="Its share of the pool's disk limit.")]
    revision: Annotated[int, Meta(description="Policy revision of the client.")]
    window_full_ms: Annotated[
        int, Meta(description="Time for which a window of its subscriptions has been full.")
    ]
    held_bytes: Annotated[
        int, Meta(description="Bytes that wait for acknowledgements, or that a policy retains.")
    ]
    forecast: ForecastEntry | None
    why_slow: VerdictEntry | None
    last_decision: DecisionSummary | None
    subscriptions: list[SubscriptionEntry]

    @property
    def is_caught_up(self) -> bool:
        """Whether the client is live and no message waits for it."""
        return self.delivery is DeliveryState.LIVE and not (
            self.lag_messages or self.lag_ms or self.outbox_bytes or self.spool_bytes
        )

    @property
    def is_idle(self) -> bool:
        """Whether the client is caught up and was sent nothing in the last second."""
        return self.is_caught_up and not self.rate_out_messages


class ClientsPage(Document, frozen=True, kw_only=True):
    """Page of clients, and the total number of clients that match the query."""

    total: int
    clients: list[ClientEntry]


class EffectiveSetting(Document, frozen=True, kw_only=True):
    """Setting in force for a client or one of its subscriptions, and where it is set."""

    setting: Annotated[str, Meta(description="Name of the setting in policies: group, dot, field.")]
    value: Annotated[Setting, Meta(description="Value; null: no limit, or the broker's choice.")]
    unit: Annotated[str, Meta(description="bytes, ms, messages, percent, …; empty without a unit.")]
    origin: Annotated[
        str,
        Meta(description="Origin: default, instance, or the transport, rule or topic policy that sets it."),
    ]
    subscription: Annotated[str, Meta(description="Subscription of the setting; empty: the client.")]


class DisconnectReply(Document, frozen=True, kw_only=True):
    """Answer to DisconnectClient: the client was disconnected and received the reason.

    Of its backlog, `kept` messages are in the log, after `bookmark`; `lost` messages cannot be recovered.
    """

    name: str
    reason: str
    kept: int = 0
    lost: int = 0
    bookmark: str = ""


class OfflineReply(Document, frozen=True, kw_only=True):
    """Answer to OfflineClient: the client was offlined."""

    name: str
    state: DeliveryState


class PauseReply(Document, frozen=True, kw_only=True):
    """Answer to PauseClient and ResumeClient: the subscriptions that were paused or resumed."""

    name: str
    subscriptions: list[str]
