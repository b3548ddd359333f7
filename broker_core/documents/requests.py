"""What may be asked of a running broker over its control socket: one struct for each request, its name, the bounds of its
fields, and what it is answered (`Request[Answer]`).

On the wire a request is one JSON object, whose `do` is the struct's tag. Fields that aren't known are refused by name.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar, get_args

from msgspec import Meta, Raw, Struct

from broker_core.documents.base import Json, Name, Text
from broker_core.documents.clients import (
    ClientEntry,
    ClientsPage,
    DisconnectReply,
    EffectiveSetting,
    ForecastEntry,
    OfflineReply,
    PauseReply,
)
from broker_core.documents.instance import (
    InstanceStatus,
    PolicyEffect,
    PolicyInForce,
    RunningRevision,
    Snapshot,
)
from broker_core.documents.journals import (
    BrowsedPage,
    JournalAction,
    JournalPlan,
    PublishBytesReply,
    PublishReply,
    RemovalReply,
    SegmentEntry,
    ShutdownReply,
    SwapAction,
    SwapReply,
)
from broker_core.documents.replays import DurableEntry, DurableName, ReplayEntry, ReplayName
from broker_core.documents.replication import GroupStatus, LinkList
from broker_core.documents.stalls import Stalls
from broker_core.documents.system_records import DecisionEntry, LossEntry

T = TypeVar("T", covariant=True)
MAX_CLIENTS = 100_000
"""Entries of one page at most (a CSV of everybody)."""
_Operator = Annotated[str, Meta(max_length=150)]
_Word = Annotated[str, Meta(max_length=64)]
_Long = Annotated[str, Meta(max_length=4_096)]
_Topic = Annotated[str, Meta(min_length=1, max_length=1_024)]
_Age = Annotated[float, Meta(ge=0, le=1e10, description="s")]
_Moment = Annotated[int, Meta(ge=0, description="ns UTC")]
_Segments = Annotated[list[Annotated[str, Meta(max_length=255)]], Meta(max_length=100_000)]


class Request(
    Struct,
    Generic[T],
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="do",
):
    """A request that is answered with a T."""


def request_name(request: Request[Any] | type[Request[Any]]) -> str:
    """What it is called on the wire."""
    return str(request.__struct_config__.tag)


def answer_type(request: type[Request[Any]]) -> Any:
    """The type of its answer, for a decoder."""
    (base,) = request.__orig_bases__  # type: ignore[attr-defined]
    return get_args(base)[0]


# The link.

PROTOCOL = 1
"""Raised when the other side must know of a change."""


class Welcome(Struct, frozen=True, kw_only=True):
    """Who answers. `member` is "" for a broker by itself."""

    instance: str
    member: str
    protocol: int = PROTOCOL


class Hello(Request[Welcome], frozen=True, kw_only=True, tag="hello"):
    """The first line over the link between machines. `token` proves the control plane."""

    token: Annotated[str, Meta(max_length=1_024)] = ""


# The instance.


class GetStatus(Request[InstanceStatus], frozen=True, kw_only=True, tag="status"):
    """The broker as a whole."""


class GetSnapshot(Request[Snapshot], frozen=True, kw_only=True, tag="snapshot"):
    """The broker and all its clients now."""


class GetStalls(Request[Stalls], frozen=True, kw_only=True, tag="stalls"):
    """The newest stalls of the event loop, with stacks of all threads."""


# Its group, its links, and who of them is waited for.


class GetGroup(Request[GroupStatus], frozen=True, kw_only=True, tag="group"):
    """The group that the broker is a member of."""


class DowngradeMember(Request[GroupStatus], frozen=True, kw_only=True, tag="downgrade_member"):
    """Wait for a member no more, until it is upgraded."""

    name: Name
    by: _Operator = "an operator"


class UpgradeMember(Request[GroupStatus], frozen=True, kw_only=True, tag="upgrade_member"):
    """Wait for a member again."""

    name: Name
    by: _Operator = "an operator"


class ForgetMember(Request[GroupStatus], frozen=True, kw_only=True, tag="forget_member"):
    """Forget a member that was removed from the group for good."""

    name: Name
    by: _Operator = "an operator"


class GetLinks(Request[LinkList], frozen=True, kw_only=True, tag="links"):
    """Its links to other sites."""


class DowngradeLink(Request[LinkList], frozen=True, kw_only=True, tag="downgrade_link"):
    """Wait for a sync destination no more, until it is upgraded."""

    name: Name
    by: _Operator = "an operator"


class UpgradeLink(Request[LinkList], frozen=True, kw_only=True, tag="upgrade_link"):
    """Wait for a sync destination again."""

    name: Name
    by: _Operator = "an operator"


# Clients.


class ListClients(Request[list[ClientEntry]], frozen=True, kw_only=True, tag="clients"):
    """All clients."""


class PageClients(Request[ClientsPage], frozen=True, kw_only=True, tag="clients_page"):
    """A page of the clients that fit. `search` is a part of name, transport, address or user; `patterns` are those of the names that may be seen
    (null: all); `sort` is a column's key, downwards after "-"."""

    delivery: _Word = ""
    health: _Word = ""
    transport: _Word = ""
    search: _Word = ""
    patterns: Annotated[list[_Word], Meta(max_length=10_000)] | None = None
    sort: _Word = ""
    offset: Annotated[int, Meta(ge=0)] = 0
    limit: Annotated[int, Meta(ge=0, le=MAX_CLIENTS)] = 100


class GetClient(Request[ClientEntry], frozen=True, kw_only=True, tag="client"):
    """One client."""

    name: Name


class GetEffectiveSettings(Request[list[EffectiveSetting]], frozen=True, kw_only=True, tag="effective"):
    """Every setting in force for a client and its subscriptions, with where it is set."""

    name: Name


class GetForecasts(Request[list[ForecastEntry]], frozen=True, kw_only=True, tag="forecasts"):
    """How near each rule is to acting on a client: its own rules, its subscriptions', its pool's."""

    name: Name


class DisconnectClient(Request[DisconnectReply], frozen=True, kw_only=True, tag="disconnect"):
    """Disconnect a client, which is told the reason."""

    name: Name
    reason: Text


class OfflineClient(Request[OfflineReply], frozen=True, kw_only=True, tag="offline"):
    """Move what waits for a client to its spool, as policy would."""

    name: Name


class PauseClient(Request[PauseReply], frozen=True, kw_only=True, tag="pause"):
    """Send nothing of a client's subscription ("": of none of them) until it is resumed."""

    name: Name
    subscription: Annotated[str, Meta(max_length=128)] = ""


class ResumeClient(Request[PauseReply], frozen=True, kw_only=True, tag="resume"):
    """End a pause by an operator or by policy."""

    name: Name
    subscription: Annotated[str, Meta(max_length=128)] = ""


class ListDecisions(Request[list[DecisionEntry]], frozen=True, kw_only=True, tag="decisions"):
    """The newest decisions, from a moment on (ms UTC)."""

    since: Annotated[int, Meta(ge=0)] = 0


class ListLosses(Request[list[LossEntry]], frozen=True, kw_only=True, tag="ledger"):
    """The newest intervals of the loss ledger, of one client or of all."""

    client: Name | None = None


class ListDurables(Request[list[DurableEntry]], frozen=True, kw_only=True, tag="durables"):
    """All durable subscriptions."""


class DeleteDurable(Request[DurableName], frozen=True, kw_only=True, tag="durable_delete"):
    """Delete one: nothing is kept for it any more."""

    client: Name
    name: Text


# Managed replays. Each that changes something is answered when the change is stored.


class ListReplays(Request[list[ReplayEntry]], frozen=True, kw_only=True, tag="replays"):
    """All managed replays, the newest first."""


class CreateReplay(Request[ReplayEntry], frozen=True, kw_only=True, tag="replay_create"):
    """Make one for a client that will come for it. "" and null are the same."""

    name: Name
    client: Name
    topic: Annotated[str, Meta(max_length=1_024)] = ""
    filter: _Long | None = None
    bookmark: _Long | None = None
    rate: _Word | None = None
    rate_max_gap: _Word | None = None
    paused: bool = False
    conflation: _Word | None = None
    conflation_key: Annotated[str, Meta(max_length=1_024)] | None = None


class PauseReplay(Request[ReplayEntry], frozen=True, kw_only=True, tag="replay_pause"):
    """Hold one where it is."""

    name: Name


class ResumeReplay(Request[ReplayEntry], frozen=True, kw_only=True, tag="replay_resume"):
    """Let one go on."""

    name: Name


class SetReplayRate(Request[ReplayEntry], frozen=True, kw_only=True, tag="replay_rate"):
    """Another rate; null lifts it."""

    name: Name
    rate: _Word | None = None
    rate_max_gap: _Word | None = None


class CancelReplay(Request[ReplayEntry], frozen=True, kw_only=True, tag="replay_cancel"):
    """End one."""

    name: Name


class ForgetReplay(Request[ReplayName], frozen=True, kw_only=True, tag="replay_forget"):
    """Take an ended one off the list."""

    name: Name


# Policy. A policy is JSON with a reader of its own, which names everything that is wrong with it.


class StagedPolicy(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A revision for some clients first: by a pattern of their names, or a share in percent."""

    policy: Raw
    client: _Word | None = None
    share: Annotated[int, Meta(ge=0, le=100)] | None = None
    allowances: dict[_Word, Annotated[int, Meta(ge=0)]] | None = None
    """Decisions that each member may carry out by this revision, by its name ("" for a broker by itself)."""
    made: dict[_Word, Annotated[int, Meta(ge=0)]] | None = None
    """Decisions that each member has carried out by it, as far as they were reported."""


class ApplyPolicy(Request[RunningRevision], frozen=True, kw_only=True, tag="apply"):
    """Put a policy in force, for everybody or with another one for some first."""

    policy: Raw
    staged: StagedPolicy | None = None
    decided: bool = False
    """Whether an operator has decided for this policy against one that the database lacked."""


class GetPolicy(Request[PolicyInForce], frozen=True, kw_only=True, tag="policy"):
    """The policy in force, with the hashes of passwords."""


class PreviewPolicy(Request[PolicyEffect], frozen=True, kw_only=True, tag="preview"):
    """What a policy would do, for everybody or with another one for some first; nothing changes."""

    policy: Raw
    staged: StagedPolicy | None = None


# Journals, and the messages in them.


class ListJournals(Request[list[SegmentEntry]], frozen=True, kw_only=True, tag="journals"):
    """All segments, oldest first."""


class PlanJournals(Request[JournalPlan], frozen=True, kw_only=True, tag="journal_plan"):
    """What an action would take of segments older than so many seconds."""

    action: JournalAction
    age_s: _Age


class SwapJournal(Request[SwapReply], frozen=True, kw_only=True, tag="journal_swap"):
    """Put a prepared file in a segment's place."""

    action: SwapAction
    name: Text
    prepared: Text


class RemoveJournals(Request[RemovalReply], frozen=True, kw_only=True, tag="journal_remove"):
    """Remove segments that a plan chose and would still choose."""

    names: _Segments
    age_s: _Age


class BrowseMessages(Request[BrowsedPage], frozen=True, kw_only=True, tag="browse"):
    """Messages of a topic or pattern, from a bookmark or a moment on."""

    topic: _Topic
    filter: _Long = ""
    bookmark: _Long = ""
    from_ns: _Moment | None = None
    to_ns: _Moment | None = None
    limit: Annotated[int, Meta(ge=1)] = 100


# What actions do.


class PublishMessage(Request[PublishReply], frozen=True, kw_only=True, tag="publish"):
    """Publish one JSON message."""

    topic: _Topic
    data: Json = None


class PublishRawMessage(Request[PublishBytesReply], frozen=True, kw_only=True, tag="publish_bytes"):
    """Publish one message of any bytes, in base64."""

    topic: _Topic
    body: str


class ShutDown(Request[ShutdownReply], frozen=True, kw_only=True, tag="shut_down"):
    """End the broker's process."""

    reason: _Long = ""
