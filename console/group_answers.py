"""Merging of the answers of a group's members into one. Pure functions.

Clients, rates and resource usage belong to each member and are added. The log is shared, so the newest
sequence of any member counts. Requests about one client are answered by the members that have it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final, TypeVar, cast

from msgspec import structs

from broker_core.control.requests import clients
from broker_core.documents import client_columns, requests
from broker_core.documents.clients import ClientEntry, ClientsPage
from broker_core.documents.instance import (
    DatabaseEntry,
    InstanceStatus,
    InstanceTotals,
    LatencyEntry,
    PolicyEffect,
    RunningRevision,
    Snapshot,
    ThroughputRates,
    TransportEntry,
)
from broker_core.documents.problems import ProblemEntry
from broker_core.documents.replays import DurableEntry, ReplayEntry
from broker_core.documents.requests import Request
from broker_core.documents.stalls import Stalls, StallTotals
from broker_core.errors import OperatorError

T = TypeVar("T")
ANY_ONE: Final = (
    requests.GetGroup,
    requests.BrowseMessages,
    requests.PublishMessage,
    requests.PublishRawMessage,
    requests.CreateReplay,
    requests.ListJournals,
    requests.PlanJournals,
)
"""Requests that the first reachable member carries out.

Every member has the data, or the request must be carried out only once.
"""
COMBINED: Final = (
    requests.GetStatus,
    requests.GetSnapshot,
    requests.ListClients,
    requests.PageClients,
    requests.ListDecisions,
    requests.ListLosses,
    requests.GetStalls,
    requests.ListDurables,
    requests.ListReplays,
    requests.PreviewPolicy,
    requests.CheckSpools,
)
"""Requests whose answer combines all members. It is incomplete if a member can't be reached."""
ONE_BY_NAME: Final = (
    requests.SwapJournal,
    requests.RemoveJournals,
    requests.ShutDown,
)
"""Requests about one member's files or process. The caller must name the member."""


def request_for_member(request: Request[T]) -> Request[T]:
    """Return the request to send to each member of a group.

    A page of clients is requested from its start to the page's end. Raises OperatorError `unknown_member`.
    """
    if isinstance(request, ONE_BY_NAME):
        raise OperatorError(
            "unknown_member",
            f"`{requests.request_name(request)}` must be sent to one member of a group.",
            "Name the member in `member`.",
        )
    if isinstance(request, requests.PageClients):
        page_end = min(request.offset + request.limit, requests.MAX_CLIENTS)
        page = structs.replace(request, offset=0, limit=page_end)
        return cast("Request[T]", page)  # T is the answer's type of page requests
    return request


def merge_answers(request: Request[Any], answers: Sequence[Any]) -> Any:
    """Return one answer for the members' answers, of which there must be at least one."""
    if len(answers) == 1 and not isinstance(request, requests.PageClients):
        return answers[0]
    made = _MERGES.get(type(request))
    return answers[0] if made is None else made(request, answers)


def merge_status(_: object, parts: Sequence[InstanceStatus]) -> InstanceStatus:
    """Return the combined status of all members.

    `member` is "", and `revision` is the oldest that a member runs. Pools are not merged, because each
    member has its own.
    """
    first = parts[0]
    return structs.replace(
        first,
        member="",
        uptime_s=max(one.uptime_s for one in parts),
        revision=min(one.revision for one in parts),
        staged=next((one.staged for one in parts if one.staged is not None), None),
        next_sequence=max(one.next_sequence for one in parts),
        durable_sequence=max(one.durable_sequence for one in parts),
        transports=_transports(parts),
        pools=[structs.replace(pool, member=one.member) for one in parts for pool in one.pools],
        rates=ThroughputRates(**_summed(ThroughputRates, [one.rates for one in parts])),
        totals=InstanceTotals(**_summed(InstanceTotals, [one.totals for one in parts])),
        delay=_delay([one.delay for one in parts if one.delay is not None]),
        clients_by_state=dict(sum((Counter(one.clients_by_state) for one in parts), Counter())),
        connections=sum(one.connections for one in parts),
        refused=next(
            (
                structs.replace(one.refused, message=f"{one.member}: {one.refused.message}")
                for one in parts
                if one.refused is not None
            ),
            None,
        ),
        ended=next((one.ended for one in parts if one.ended is not None), None),
        problems=problems(parts),
        stalls=_stall_totals([one.stalls for one in parts]),
        database=_database(parts),
    )


def _database(parts: Sequence[InstanceStatus]) -> DatabaseEntry | None:
    """Return the entry of the first member with a problem, with the member's name and the sums of all
    members.
    """
    entries = [(one.member, one.database) for one in parts if one.database is not None]
    if not entries:
        return None
    member, shown = next(((name, one) for name, one in entries if one.code), entries[0])
    return structs.replace(
        shown,
        message=f"{member}: {shown.message}" if shown.message else "",
        waiting=sum(one.waiting for _, one in entries),
        dropped=sum(one.dropped for _, one in entries),
        dropped_at=max((one.dropped_at for _, one in entries if one.dropped_at is not None), default=None),
    )


def problems(parts: Sequence[InstanceStatus]) -> list[ProblemEntry]:
    """Merge the problems that the brokers of an instance report, severe ones first.

    A member's own report replaces what others report about it. A problem reported several times has the
    earliest start.
    """
    found: dict[tuple[str, str], ProblemEntry] = {}
    spoken = {part.member for part in parts if part.member and _has_own_problem(part)}
    for part in parts:
        for one in part.problems:
            if one.subject in spoken and one.subject != part.member:
                continue
            known = found.get((one.code, one.subject))
            if known is None or one.since < known.since:
                found[one.code, one.subject] = one
    return sorted(found.values(), key=lambda one: (not one.severe, one.since, one.code, one.subject))


def _has_own_problem(part: InstanceStatus) -> bool:
    return any(one.subject == part.member for one in part.problems)


def merge_snapshots(parts: Sequence[Snapshot]) -> Snapshot:
    """Return one snapshot for the snapshots of all members."""
    if len(parts) == 1:
        return parts[0]
    replays = [one.replays for one in parts if one.replays is not None]
    return Snapshot(
        at=max(one.at for one in parts),
        status=merge_status(None, [one.status for one in parts]),
        clients=_once([one.clients for one in parts]),
        replays=_replays(replays) if replays else None,
    )


def _once(parts: Sequence[Sequence[ClientEntry]]) -> list[ClientEntry]:
    """Return all clients once.

    A client that moved to another member may still be listed by the old one; the newer connection counts.
    """
    found: dict[str, ClientEntry] = {}
    for one in chain.from_iterable(parts):
        known = found.get(one.name)
        if known is None or one.connected_at > known.connected_at:
            found[one.name] = one
    return list(found.values())


def _page(request: requests.PageClients, parts: Sequence[ClientsPage]) -> ClientsPage:
    """Return the requested page. `parts` have each member's matching clients up to the page's end."""
    found = clients.sort_clients(
        _once([one.clients for one in parts]), request.sort or client_columns.DEFAULT_SORT
    )
    return ClientsPage(
        total=sum(one.total for one in parts), clients=found[request.offset : request.offset + request.limit]
    )


def _transports(parts: Sequence[InstanceStatus]) -> list[TransportEntry]:
    """Return the transports by name, with the addresses of the first member that has each."""
    found: dict[str, TransportEntry] = {}
    for one in chain.from_iterable(part.transports for part in parts):
        known = found.get(one.name)
        found[one.name] = (
            one if known is None else structs.replace(known, clients=known.clients + one.clients)
        )
    return list(found.values())


def _summed(kind: type[ThroughputRates | InstanceTotals], parts: Sequence[Any]) -> dict[str, Any]:
    return {name: sum(getattr(one, name) for one in parts) for name in kind.__struct_fields__}


def _stall_totals(parts: Sequence[StallTotals]) -> StallTotals:
    return StallTotals(
        count=dict(sum((Counter(one.count) for one in parts), Counter())),
        lasted_ms=dict(sum((Counter(one.lasted_ms) for one in parts), Counter())),
        last=max((one.last for one in parts if one.last is not None), key=lambda one: one.at, default=None),
    )


def _stalls(parts: Sequence[Stalls]) -> Stalls:
    return Stalls(stalls=sorted(chain.from_iterable(one.stalls for one in parts), key=lambda one: one.at))


def _delay(parts: Sequence[LatencyEntry]) -> LatencyEntry | None:
    """Return the worst member's latencies, since medians of several members can't be merged."""
    if not parts:
        return None
    return LatencyEntry(
        p50_ms=max(one.p50_ms for one in parts),
        p99_ms=max(one.p99_ms for one in parts),
        messages=sum(one.messages for one in parts),
    )


def _effect(_: object, parts: Sequence[PolicyEffect]) -> PolicyEffect:
    """Return the added effects of a policy preview."""
    lists, counts = (
        ("touched", "acted_on", "cut_off", "unrecorded"),
        (
            "clients",
            "touched_in_all",
            "acted_on_in_all",
            "enforced_in_all",
            "held_in_all",
            "cut_off_in_all",
            "unrecorded_in_all",
        ),
    )
    fields: dict[str, Any] = {
        name: list(chain.from_iterable(getattr(one, name) for one in parts)) for name in lists
    }
    fields |= {name: sum(getattr(one, name) for one in parts) for name in counts}
    return PolicyEffect(**fields)


def _concatenate(_: object, parts: Sequence[Sequence[Any]]) -> list[Any]:
    return list(chain.from_iterable(parts))


def _durables(_: object, parts: Sequence[Sequence[DurableEntry]]) -> list[DurableEntry]:
    """Return each durable subscription once, although every member knows all.

    The report of the member with the connected client counts, else the most recent one.
    """
    return _best(parts, lambda one: (one.client, one.name), lambda one: (one.connected, one.seen_at))


def _replays(parts: Sequence[Sequence[ReplayEntry]]) -> list[ReplayEntry]:
    """Return each managed replay once.

    The report of the member with the connected client counts, else that of an ended replay, else the
    greatest progress.
    """
    return _best(
        parts,
        lambda one: one.name,
        lambda one: (one.created_at, one.connected, one.ended_at or 0, one.progress),
    )


def _best(
    parts: Sequence[Sequence[T]], key: Callable[[T], Any], knowing: Callable[[T], tuple[Any, ...]]
) -> list[T]:
    """Return one entry per key: the one with the greatest value of `knowing`."""
    found: dict[Any, T] = {}
    for one in chain.from_iterable(parts):
        known = found.get(key(one))
        if known is None or knowing(one) > knowing(known):
            found[key(one)] = one
    return list(found.values())


_MERGES: Final[dict[type[Request[Any]], Callable[[Any, Any], Any]]] = {
    requests.GetStatus: merge_status,
    requests.GetSnapshot: lambda _, parts: merge_snapshots(parts),
    requests.ListClients: lambda _, parts: _once(parts),
    requests.PageClients: _page,
    requests.GetClient: lambda _, parts: max(parts, key=lambda one: one.connected_at),
    requests.ListDecisions: lambda _, parts: sorted(chain.from_iterable(parts), key=lambda one: one.at),
    requests.ListLosses: _concatenate,
    requests.GetStalls: lambda _, parts: _stalls(parts),
    requests.ListDurables: _durables,
    requests.ListReplays: lambda _, parts: _replays(parts),
    requests.PreviewPolicy: _effect,
    requests.ApplyPolicy: lambda _, parts: RunningRevision(
        revision=min(one.revision for one in parts), withdrawn=max(one.withdrawn for one in parts)
    ),
}
"""Functions that merge answers, by request.

Other requests concern one client, durable subscription or replay: the first answer counts.
"""
