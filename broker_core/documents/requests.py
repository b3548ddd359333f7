"""Requests to a running broker over its control socket, one struct each, with the type of its answer.

`Request[Answer]` names the answer. On the wire a request is one JSON object, whose field `do` is the struct's
tag. Unknown fields are rejected by name.
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
from broker_core.documents.replays import DeletedDurable, DurableEntry, ReplayEntry, ReplayName
from broker_core.documents.replication import GroupStatus, LinkList
from broker_core.documents.stalls import Stalls
from broker_core.documents.system_records import DecisionEntry, LossEntry

T = TypeVar("T", covariant=True)
MAX_CLIENTS = 100_000
"""Maximum number of entries of one page. A CSV of all clients is one page."""
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
    """Base class of requests. T is the type of the answer."""


def request_name(request: Request[Any] | type[Request[Any]]) -> str:
    """Return the name of a request on the wire."""
    return str(request.__struct_config__.tag)


def answer_type(request: type[Request[Any]]) -> Any:
    """Return the type of a request's answer, for a decoder."""
    (base,) = request.__orig_bases__  # type: ignore[attr-defined]
    return get_args(base)[0]


# Link between machines.

PROTOCOL = 1
"""Version of the control protocol. Increase it when the other side must know of a change."""


class Welcome(Struct, frozen=True, kw_only=True):
    """Answer to Hello: the broker's identity. `member` is "" for a standalone broker."""

    instance: str
    member: str
    protocol: int = PROTOCOL


class Hello(Request[Welcome], frozen=True, kw_only=True, tag="hello"):
    """First request over the link between machines. `token` authenticates the control plane."""

    token: Annotated[str, Meta(max_length=1_024)] = ""


# Instance.


class GetStatus(Request[InstanceStatus], frozen=True, kw_only=True, tag="status"):
    """Get the status of the broker as a whole."""


class GetSnapshot(Request[Snapshot], frozen=True, kw_only=True, tag="snapshot"):
    """Get the state of the broker and all its clients now."""


class GetStalls(Request[Stalls], frozen=True, kw_only=True, tag="stalls"):
    """Get the newest stalls of the event loop, with stacks of all threads."""


# Group and links, and whether publishers wait for members and destinations.


class GetGroup(Request[GroupStatus], frozen=True, kw_only=True, tag="group"):
    """Get the status of the group that the broker belongs to."""


class DowngradeMember(Request[GroupStatus], frozen=True, kw_only=True, tag="downgrade_member"):
    """Stop waiting for a member's confirmations until it is upgraded."""

    name: Name
    by: _Operator = "an operator"


class UpgradeMember(Request[GroupStatus], frozen=True, kw_only=True, tag="upgrade_member"):
    """Wait for a member's confirmations again."""

    name: Name
    by: _Operator = "an operator"


class ForgetMember(Request[GroupStatus], frozen=True, kw_only=True, tag="forget_member"):
    """Forget a member that was permanently removed from the group."""

    name: Name
    by: _Operator = "an operator"


class GetLinks(Request[LinkList], frozen=True, kw_only=True, tag="links"):
    """List the broker's links to other sites."""


class DowngradeLink(Request[LinkList], frozen=True, kw_only=True, tag="downgrade_link"):
    """Stop waiting for a sync destination until it is upgraded."""

    name: Name
    by: _Operator = "an operator"


class UpgradeLink(Request[LinkList], frozen=True, kw_only=True, tag="upgrade_link"):
    """Wait for a sync destination again."""

    name: Name
    by: _Operator = "an operator"


# Clients.


class ListClients(Request[list[ClientEntry]], frozen=True, kw_only=True, tag="clients"):
    """List all clients."""


class PageClients(Request[ClientsPage], frozen=True, kw_only=True, tag="clients_page"):
    """List one page of the matching clients."""

    delivery: _Word = ""
    """Delivery state of the clients; "": any."""
    health: _Word = ""
    """Health of the clients; "": any."""
    transport: _Word = ""
    """Name of a transport; "": any."""
    search: _Word = ""
    """Part of a client's name, transport, address or user; "": any."""
    patterns: Annotated[list[_Word], Meta(max_length=10_000)] | None = None
    """Patterns of client names that the caller may see. None: all."""
    sort: _Word = ""
    """Key of a column; a leading "-" sorts in descending order."""
    offset: Annotated[int, Meta(ge=0)] = 0
    limit: Annotated[int, Meta(ge=0, le=MAX_CLIENTS)] = 100


class GetClient(Request[ClientEntry], frozen=True, kw_only=True, tag="client"):
    """Get one client."""

    name: Name


class GetEffectiveSettings(Request[list[EffectiveSetting]], frozen=True, kw_only=True, tag="effective"):
    """List every setting in force for a client and its subscriptions, and where it is set."""

    name: Name


class GetForecasts(Request[list[ForecastEntry]], frozen=True, kw_only=True, tag="forecasts"):
    """List the forecast of each rule for a client, its subscriptions and its pool."""

    name: Name


class DisconnectClient(Request[DisconnectReply], frozen=True, kw_only=True, tag="disconnect"):
    """Disconnect a client and send it the reason."""

    name: Name
    reason: Text


class OfflineClient(Request[OfflineReply], frozen=True, kw_only=True, tag="offline"):
    """Move a client's waiting messages to its spool, as a policy would."""

    name: Name


class PauseClient(Request[PauseReply], frozen=True, kw_only=True, tag="pause"):
    """Pause a client's subscription until it is resumed; "": all subscriptions."""

    name: Name
    subscription: Annotated[str, Meta(max_length=128)] = ""


class ResumeClient(Request[PauseReply], frozen=True, kw_only=True, tag="resume"):
    """Resume subscriptions that an operator or a policy paused."""

    name: Name
    subscription: Annotated[str, Meta(max_length=128)] = ""


class ListDecisions(Request[list[DecisionEntry]], frozen=True, kw_only=True, tag="decisions"):
    """List the newest decisions since a time."""

    since: Annotated[int, Meta(ge=0)] = 0
    """Time in ms UTC."""


class ListLosses(Request[list[LossEntry]], frozen=True, kw_only=True, tag="ledger"):
    """List the newest intervals of the loss ledger, of one client or of all."""

    client: Name | None = None


class ListDurables(Request[list[DurableEntry]], frozen=True, kw_only=True, tag="durables"):
    """List all durable subscriptions."""


class DeleteDurable(Request[DeletedDurable], frozen=True, kw_only=True, tag="durable_delete"):
    """Delete a durable subscription and its position."""

    client: Name
    name: Text


# Managed replays. Changes are answered after they are stored.


class ListReplays(Request[list[ReplayEntry]], frozen=True, kw_only=True, tag="replays"):
    """List all managed replays, newest first."""


class CreateReplay(Request[ReplayEntry], frozen=True, kw_only=True, tag="replay_create"):
    """Create a managed replay for a client that will connect for it.

    "" and null are equivalent.
    """

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
    """Pause a managed replay at its position."""

    name: Name


class ResumeReplay(Request[ReplayEntry], frozen=True, kw_only=True, tag="replay_resume"):
    """Resume a managed replay."""

    name: Name


class SetReplayRate(Request[ReplayEntry], frozen=True, kw_only=True, tag="replay_rate"):
    """Change the rate of a managed replay; null removes the limit."""

    name: Name
    rate: _Word | None = None
    rate_max_gap: _Word | None = None


class CancelReplay(Request[ReplayEntry], frozen=True, kw_only=True, tag="replay_cancel"):
    """Cancel a managed replay."""

    name: Name


class ForgetReplay(Request[ReplayName], frozen=True, kw_only=True, tag="replay_forget"):
    """Remove a finished managed replay from the list."""

    name: Name


# Policies. A policy is raw JSON here: `PolicyDocument.from_dict` parses it and reports all its problems.


class StagedPolicy(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Staged revision: a policy for some clients first, by a pattern of their names or a share in percent."""

    policy: Raw
    client: _Word | None = None
    share: Annotated[int, Meta(ge=0, le=100)] | None = None
    allowances: dict[_Word, Annotated[int, Meta(ge=0)]] | None = None
    """Number of decisions that each member may carry out under this revision.

    The key is the member's name, or "" for a standalone broker.
    """
    made: dict[_Word, Annotated[int, Meta(ge=0)]] | None = None
    """Number of decisions that each member has reported to have carried out under it."""


class ApplyPolicy(Request[RunningRevision], frozen=True, kw_only=True, tag="apply"):
    """Apply a policy for all clients, or with a staged revision for some clients first."""

    policy: Raw
    staged: StagedPolicy | None = None
    decided: bool = False
    """Whether an operator chose this policy over one that the database lacked."""


class GetPolicy(Request[PolicyInForce], frozen=True, kw_only=True, tag="policy"):
    """Get the policy in force, including hashes of passwords."""


class PreviewPolicy(Request[PolicyEffect], frozen=True, kw_only=True, tag="preview"):
    """Compute the effect of a policy without applying it, for all clients or with a staged revision."""

    policy: Raw
    staged: StagedPolicy | None = None


class CheckSpools(Request[RunningRevision], frozen=True, kw_only=True, tag="check_spools"):
    """Check that spools can be written to directories, before a policy names them."""

    paths: Annotated[list[_Long], Meta(max_length=64)]


# Journals and their messages.


class ListJournals(Request[list[SegmentEntry]], frozen=True, kw_only=True, tag="journals"):
    """List all segments, oldest first."""


class PlanJournals(Request[JournalPlan], frozen=True, kw_only=True, tag="journal_plan"):
    """Plan a journal action on segments that are older than `age_s` seconds."""

    action: JournalAction
    age_s: _Age


class SwapJournal(Request[SwapReply], frozen=True, kw_only=True, tag="journal_swap"):
    """Replace a segment by a prepared file."""

    action: SwapAction
    name: Text
    prepared: Text


class RemoveJournals(Request[RemovalReply], frozen=True, kw_only=True, tag="journal_remove"):
    """Remove segments that a plan selected, if the same plan would still select them."""

    names: _Segments
    age_s: _Age


class BrowseMessages(Request[BrowsedPage], frozen=True, kw_only=True, tag="browse"):
    """List messages of a topic or pattern, starting from a bookmark or a time."""

    topic: _Topic
    filter: _Long = ""
    bookmark: _Long = ""
    from_ns: _Moment | None = None
    to_ns: _Moment | None = None
    limit: Annotated[int, Meta(ge=1)] = 100


# Requests of automation actions.


class PublishMessage(Request[PublishReply], frozen=True, kw_only=True, tag="publish"):
    """Publish one JSON message."""

    topic: _Topic
    data: Json = None


class PublishRawMessage(Request[PublishBytesReply], frozen=True, kw_only=True, tag="publish_bytes"):
    """Publish one message of arbitrary bytes, given in base64."""

    topic: _Topic
    body: str


class ShutDown(Request[ShutdownReply], frozen=True, kw_only=True, tag="shut_down"):
    """Stop the broker's process."""

    reason: _Long = ""
