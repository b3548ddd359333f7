"""Clients and their subscriptions, as a broker sees them now."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta

from broker_core.documents.base import Document, Moment, MomentOrNone, Setting


class DeliveryState(StrEnum):
    """What the broker does for a client or a subscription; where it does several things, the first of these."""

    OFFLINED = "offlined"
    """What waits goes to the spool; nothing is sent."""
    DRAINING = "draining"
    """The spool is being sent, in order."""
    REPLAYING = "replaying"
    """Records of the log are sent, from a bookmark on."""
    LIVE = "live"
    """Records are sent as they are accepted."""
    PAUSED = "paused"
    """Nothing is sent until it is resumed; of a client: all its subscriptions are."""


class Health(StrEnum):
    """What a client does with what it is sent, the worst first."""

    STALLED = "stalled"
    """It takes nothing of what is for it, or acknowledges nothing."""
    FLAPPING = "flapping"
    """It is offlined again and again."""
    FALLING_BEHIND = "falling behind"
    """More comes for it than it takes, or it has taken nothing for a while."""
    NOT_RECORDED = "not recorded"
    """The policy no longer journals its topics, and it reads the log: nothing more comes for it."""
    UNKNOWN = "unknown"
    """It hasn't been looked at for long enough, or the broker itself is late."""
    PAUSED = "paused"
    """Nothing is sent to it, so nothing can be said."""
    KEEPS_UP = "keeps up"
    """Nothing waits for it, or it comes nearer."""

    @property
    def rank(self) -> int:
        """Its place in the order of looking: 0 is the worst."""
        return _RANKS[self]


Bodies = Annotated[int, Meta(description="Bytes of their bodies.")]
_RANKS = {health: place for place, health in enumerate(Health)}


class DeliveryStats(Document, frozen=True, kw_only=True):
    """What a client's entry and a subscription's have both: how far it is behind, and what became of its messages."""

    delivery: Annotated[DeliveryState, Meta(description="What the broker does for it.")]
    health: Annotated[Health, Meta(description="What its client does with it.")]
    lag_messages: Annotated[
        int, Meta(description="Records it isn't sent yet: they wait, or a replay comes to them.")
    ]
    lag_at_most: Annotated[
        bool,
        Meta(
            description="Whether lag_messages counts all topics of the log that a replay has yet to come to: how many of them "
            "are for it is known when they are read. Otherwise it counts just what is for it."
        ),
    ]
    lag_bytes: Annotated[int, Meta(description="Bytes that wait for it.")]
    lag_ms: Annotated[
        int,
        Meta(description="Age of the oldest message that waits; a replayed one ages from when it is read."),
    ]
    seconds_behind: Annotated[
        float,
        Meta(
            description="Age of the oldest record it hasn't been sent; of a replay, of the record it is at."
        ),
    ]
    caught_up_in_s: Annotated[
        float | None,
        Meta(
            description="Seconds until nothing waits, as it has gone since most did; null: nothing waits, or see caught_up_why_none."
        ),
    ]
    caught_up_why_none: Annotated[
        str, Meta(description="Why there is no honest time; empty where there is one, or nothing waits.")
    ]
    matched_messages: Annotated[
        int, Meta(description="All that was for it: acknowledged, in flight, waiting and gone.")
    ]
    matched_bytes: Bodies
    acknowledged_messages: Annotated[
        int, Meta(description="What it has, by its own word, or else by its kernel's.")
    ]
    acknowledged_bytes: Bodies
    in_flight_messages: Annotated[int, Meta(description="Handed over and not acknowledged.")]
    in_flight_bytes: Bodies
    waiting_messages: Annotated[
        int, Meta(description="Not handed over yet, in memory, in the spool, or in the log only.")
    ]
    waiting_bytes: Bodies
    gone: Annotated[dict[str, int], Meta(description="Messages it will not get, by cause.")]
    gone_bytes: Annotated[int, Meta(description="Bytes of their bodies, of all causes.")]
    delivered_messages: Annotated[int, Meta(description="Handed over, whatever became of it then.")]
    lost_messages: Annotated[int, Meta(description="Of those in `gone`, the losses: discarded without a request of the client, and neither kept in the log for it nor given to another consumer.")]
    unacked_messages: Annotated[int, Meta(description="Sent, and not acknowledged by the application.")]


class SubscriptionEntry(DeliveryStats, frozen=True, kw_only=True):
    """One subscription of a client."""

    id: str
    topic: str
    filter: str | None
    bookmark: str | None
    rate: str | None
    ack: Annotated[str | None, Meta(description="auto, client, client-individual, or null without.")]
    prefetch: int | None
    durable: Annotated[str | None, Meta(description="Name of the durable subscription it is.")]
    lease_ms: int | None
    paused: Annotated[bool, Meta(description="By its client, an operator or a policy.")]
    unrecorded: Annotated[
        Literal["", "part", "all"],
        Meta(description="What of its topics the policy no longer journals, of one that reads the log."),
    ] = ""


class ForecastEntry(Document, frozen=True, kw_only=True):
    """How near a rule is to acting on a client; in its own entry, the rule that comes first."""

    rule: str
    setting: str
    action: str
    mode: str
    signal: str
    value: int
    limit: int
    percent: Annotated[float, Meta(description="Of the limit, used now.")]
    per_second: float
    fires_in_ms: Annotated[
        int | None, Meta(description="Until it acts, what is left of a hold included; null: see `why_none`.")
    ]
    why_none: Annotated[str, Meta(description="Why there is no honest time; empty where there is one.")]
    subscription: Annotated[str, Meta(description="Whose signal it is; empty: the client's or its pool's.")]


class VerdictEntry(Document, frozen=True, kw_only=True):
    """Why a client is slow: one verdict with its evidence."""

    cause: str
    sentence: str
    evidence: dict[str, int]


class DecisionSummary(Document, frozen=True, kw_only=True):
    """The newest decision about a client, in short."""

    id: str
    at: Moment
    action: str
    mode: str
    reason: str
    told: str
    sentence: str


class ClientEntry(DeliveryStats, frozen=True, kw_only=True):
    """A client as its broker sees it now. What it lags by is the greatest of its subscriptions'; other figures are of all."""

    name: str
    health: Annotated[Health, Meta(description="What it does: the worst of its subscriptions.")]
    member: Annotated[str, Meta(description="The member of the group that it is connected to.")] = ""
    transport: str
    protocol: str
    remote: str
    user: str
    connected_at: Moment
    lag_messages: Annotated[
        int, Meta(description="Records it isn't sent yet, of the subscription furthest behind.")
    ]
    lag_bytes: Annotated[int, Meta(description="Bytes that wait, of that subscription with most.")]
    outbox_bytes: Annotated[int, Meta(description="What its outbox takes of the pool's memory.")]
    outbox_messages: int
    spool_bytes: Annotated[int, Meta(description="What its spool takes on disk.")]
    spool_messages: int
    offlined_since: MomentOrNone
    delivered_bytes: Bodies
    published_messages: int
    published_topics: Annotated[
        dict[str, int],
        Meta(description="The same by topic; of one that publishes to many, also by pattern, as `prices.>`."),
    ]
    rate_out_messages: Annotated[float, Meta(description="Messages handed over in the last second.")]
    write_blocked_ms: Annotated[int, Meta(description="How long its socket has taken nothing.")]
    pool: str
    memory_percent: Annotated[float, Meta(description="Its share of the pool's memory limit.")]
    disk_percent: Annotated[float, Meta(description="Its share of the pool's disk limit.")]
    revision: Annotated[int, Meta(description="The policy revision the client is held to.")]
    window_full_ms: Annotated[int, Meta(description="How long a window of its subscriptions has been full.")]
    held_bytes: Annotated[int, Meta(description="Waiting for acknowledgements, or held by a policy.")]
    forecast: ForecastEntry | None
    why_slow: VerdictEntry | None
    last_decision: DecisionSummary | None
    subscriptions: list[SubscriptionEntry]


class ClientsPage(Document, frozen=True, kw_only=True):
    """A page of clients, and how many there are of those that fit."""

    total: int
    clients: list[ClientEntry]


class EffectiveSetting(Document, frozen=True, kw_only=True):
    """A setting in force for a client or one of its subscriptions, and where it is set."""

    setting: Annotated[str, Meta(description="As policies name it: its group, a dot, its field.")]
    value: Annotated[Setting, Meta(description="Null: without a limit, or as the broker chooses.")]
    unit: Annotated[str, Meta(description="bytes, ms, messages, percent, …; empty for what isn't measured.")]
    origin: Annotated[
        str, Meta(description="default, instance, or the transport, rule or topic policy that sets it.")
    ]
    subscription: Annotated[str, Meta(description="The subscription it is about; empty: the client.")]


class DisconnectReply(Document, frozen=True, kw_only=True):
    """A client was disconnected and told why. Of what it was owed `kept` messages are in the log, behind `bookmark`, and `lost`
    nothing brings back."""

    name: str
    reason: str
    kept: int = 0
    lost: int = 0
    bookmark: str = ""


class OfflineReply(Document, frozen=True, kw_only=True):
    """A client was offlined."""

    name: str
    state: DeliveryState


class PauseReply(Document, frozen=True, kw_only=True):
    """Subscriptions of a client were paused or resumed."""

    name: str
    subscriptions: list[str]
