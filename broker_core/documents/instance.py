"""Broker as a whole, its snapshot of one second, and the effect of a policy on clients."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from broker_core.documents.base import Document, Json, Moment, MomentOrNone, Setting
from broker_core.documents.clients import ClientEntry
from broker_core.documents.problems import ProblemEntry
from broker_core.documents.replays import ReplayEntry
from broker_core.documents.stalls import StallTotals
from broker_core.documents.system_records import DecisionEntry


class TransportEntry(Document, frozen=True, kw_only=True):
    """Transport of an instance, with its number of connected clients."""

    name: str
    kind: str
    host: str
    port: int
    enabled: bool
    clients: int
    pool: str


class PoolEntry(Document, frozen=True, kw_only=True):
    """Memory and disk usage of a pool, and its limits."""

    name: str
    transports: list[str]
    memory_used: Annotated[int, Meta(description="bytes.")]
    memory_limit: Annotated[int, Meta(description="bytes.")]
    disk_used: Annotated[int, Meta(description="bytes.")]
    disk_limit: Annotated[int, Meta(description="bytes.")]
    disk_path: str
    member: Annotated[str, Meta(description="Member that has this entry, in lists of a group.")] = ""


class ThroughputRates(Document, frozen=True, kw_only=True):
    """Throughput of the last second, per second."""

    messages_in: float = 0.0
    bytes_in: float = 0.0
    messages_out: float = 0.0
    bytes_out: float = 0.0


class LatencyEntry(Document, frozen=True, kw_only=True):
    """Latency from accepting a record to passing it to a client's socket, over the last ten seconds.

    Records that replays read from the log are not counted.
    """

    p50_ms: Annotated[float, Meta(description="Median, in ms.")]
    p99_ms: Annotated[float, Meta(description="99th percentile, in ms.")]
    messages: Annotated[int, Meta(description="Number of delivered messages.")]


class InstanceTotals(Document, frozen=True, kw_only=True):
    """Totals since the start of the broker: throughput, and decisions about slow clients."""

    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    decisions: int = 0
    standstills: Annotated[
        int,
        Meta(
            description="Times that a client could read but received nothing: a defect of the "
            "broker, see its "
            "log."
        ),
    ] = 0


class StagedPolicyStatus(Document, frozen=True, kw_only=True):
    """Staged revision: a policy revision in force for some clients first."""

    base: Annotated[int, Meta(description="Revision in force for the other clients.")]
    client: Annotated[str, Meta(description="Pattern of the first clients' names; empty for a share.")]
    share: Annotated[int, Meta(description="Percent of the clients.")]


class MissingRangeEntry(Document, frozen=True, kw_only=True):
    """Range of records that should be in the log and cannot be read."""

    segment: int
    offset: int
    length: int
    first_sequence: int
    last_sequence: int
    why: str


class RecoveryEntry(Document, frozen=True, kw_only=True):
    """Report of opening the journal: what was found, repaired, skipped and ignored."""

    opened_at: Annotated[int, Meta(description="ns UTC.")] = 0
    kept_records: int = 0
    truncated_bytes: int = 0
    quarantined: list[MissingRangeEntry] = []
    skipped: Annotated[
        list[int],
        Meta(description="First and last of the skipped numbers, which may have been shown before a crash."),
    ] = []
    reason: str = ""
    set_aside: list[str] = []
    ignored: list[str] = []
    scanned_segments: int = 0
    seconds: float = 0.0
    clean: bool = True


class ExitReport(Document, frozen=True, kw_only=True):
    """Reason why a broker stopped without being asked, or could not start."""

    at: Moment
    code: str
    message: str
    fix: str = ""


class RefusedRevision(Document, frozen=True, kw_only=True):
    """Policy revision that this broker received and cannot apply. The previous revision stays in force."""

    revision: int
    code: str
    message: str
    fix: str = ""


class DatabaseEntry(Document, frozen=True, kw_only=True):
    """State of the control plane's database, as the broker sees it."""

    away_since: Annotated[
        MomentOrNone,
        Meta(
            description="Time since which the broker can't read or write the database, ms "
            "UTC; null: available."
        ),
    ] = None
    code: Annotated[
        str,
        Meta(
            description="`policy_from_disk`, `database_away` or `policy_not_stored`; empty without a problem."
        ),
    ] = ""
    message: str = ""
    fix: str = ""
    policy: Annotated[
        Literal["database", "disk"],
        Meta(description="Source of the policy in force. `disk`: the copy that the broker stores."),
    ] = "database"
    policy_stored_at: Annotated[
        MomentOrNone, Meta(description="When the broker last stored its policy on its disk, ms UTC.")
    ] = None
    waiting: Annotated[
        int,
        Meta(description="Decisions, losses and events in the broker's memory that aren't in the database."),
    ] = 0
    dropped: Annotated[
        int,
        Meta(
            description="Decisions, losses and events discarded since the start, because the buffer was full."
        ),
    ] = 0
    dropped_at: Annotated[
        MomentOrNone, Meta(description="When the last of them was discarded, ms UTC; null: never.")
    ] = None


class JournalTotals(Document, frozen=True, kw_only=True):
    """Number and size of the journal's files."""

    segments: int = 0
    bytes: int = 0


class InstanceStatus(Document, frozen=True, kw_only=True):
    """Status of a broker as a whole.

    `durable_sequence` is the newest record that is on disk and dispatched.
    """

    instance: str
    member: Annotated[
        str, Meta(description="Member of a group; empty for a standalone broker, and for all members.")
    ] = ""
    pid: int = 0
    started_at: Moment = 0
    uptime_s: int = 0
    revision: int = 0
    staged: StagedPolicyStatus | None = None
    next_sequence: int = 1
    durable_sequence: int = 0
    transports: list[TransportEntry] = []
    pools: list[PoolEntry] = []
    rates: ThroughputRates = ThroughputRates()
    totals: InstanceTotals = InstanceTotals()
    delay: Annotated[
        LatencyEntry | None, Meta(description="Null: no message was delivered in the last ten seconds.")
    ] = None
    clients_by_state: Annotated[dict[str, int], Meta(description="Clients by `delivery`.")] = {}
    connections: int = 0
    recovery: RecoveryEntry = RecoveryEntry()
    journal: JournalTotals = JournalTotals()
    log: Annotated[str, Meta(description="The log's identity, a UUID.")] = ""
    refused: Annotated[
        RefusedRevision | None,
        Meta(description="Newest policy that the broker received and can't apply."),
    ] = None
    ended: Annotated[
        ExitReport | None,
        Meta(description="Reason why the previous process ended, if it stopped unexpectedly."),
    ] = None
    stalls: StallTotals = StallTotals()
    problems: Annotated[
        list[ProblemEntry],
        Meta(description="Current problems of its policy, its group and its links."),
    ] = []
    database: Annotated[
        DatabaseEntry | None,
        Meta(description="The control plane's database; null if the broker reports to none."),
    ] = None


class Snapshot(Document, frozen=True, kw_only=True):
    """State of a broker and all its clients at one moment."""

    at: Moment
    status: InstanceStatus
    clients: list[ClientEntry] = []
    replays: list[ReplayEntry] | None = None
    """None: the broker did not report replays."""


class RunningRevision(Document, frozen=True, kw_only=True):
    """Answer to ApplyPolicy: the revision that a broker runs now.

    `withdrawn` is the staged revision that the broker put in force and withdrew, because it has used up its
    allowance there; 0 if there is none.
    """

    revision: int
    withdrawn: int = 0


class PolicyInForce(Document, frozen=True, kw_only=True):
    """Policy that a broker runs. `staged` is the revision in force for some clients first."""

    policy: Json
    staged: Json = None
    is_set_back: Annotated[
        bool,
        Meta(
            description="Whether the database lacks the policy, so that the broker retains it until an "
            "operator decides."
        ),
    ] = False


class SettingValue(Document, frozen=True, kw_only=True):
    """Value of a setting, and where it is set."""

    value: Setting
    origin: str


class SettingChange(Document, frozen=True, kw_only=True):
    """Setting whose value a policy would change."""

    setting: str
    before: SettingValue
    after: SettingValue


class AffectedEntry(Document, frozen=True, kw_only=True):
    """Client, or one of its subscriptions, for which a policy would change settings."""

    client: str
    transport: str
    subscription: str
    changes: list[SettingChange]


class ClosedConnectionEntry(Document, frozen=True, kw_only=True):
    """Client whose connection a policy would close, regardless of its backlog."""

    client: str
    transport: str
    code: Annotated[
        str,
        Meta(
            description="Code sent to the client: transport_closed (removed, disabled or moved), or "
            "access_changed."
        ),
    ]


SubscriberKind = Literal["bookmark", "durable", "replay", "queue", "shared"]


class LogSubscriberEntry(Document, frozen=True, kw_only=True):
    """Subscription of the log whose topics a policy would no longer journal.

    It would receive no more of their records.
    """

    client: Annotated[
        str, Meta(description="Name of a queue or another shared subscription without consumers.")
    ]
    subscription: Annotated[str, Meta(description="Id; name if its client is disconnected.")]
    topic: str
    subscription_kind: SubscriberKind
    connected: bool
    extent: Annotated[
        Literal["part", "all"], Meta(description="Extent of its topics that the policy no longer journals.")
    ]


class PolicyEffect(Document, frozen=True, kw_only=True):
    """Effect that a policy would have now.

    It has the clients whose settings change, the decisions that would follow immediately, the connections
    that would be closed, and the log subscribers whose topics would no longer be journaled. A client whose
    connection would be closed has no decision. The lists may be truncated; the counts (`…_in_all`) are
    complete.
    """

    clients: int
    touched: list[AffectedEntry]
    touched_in_all: int
    acted_on: list[DecisionEntry]
    acted_on_in_all: int
    enforced_in_all: Annotated[
        int,
        Meta(description="Part of acted_on_in_all that is carried out. Other decisions are only recorded."),
    ] = 0
    held_in_all: Annotated[
        int,
        Meta(description="Part of acted_on_in_all beyond the rollout's allowance, which isn't carried out."),
    ] = 0
    cut_off: list[ClosedConnectionEntry]
    cut_off_in_all: int
    unrecorded: list[LogSubscriberEntry] = []
    unrecorded_in_all: int = 0
