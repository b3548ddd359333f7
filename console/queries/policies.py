"""Policies: revisions, drafts and rollouts as stored, and the revisions that brokers report to run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypedDict

from django.db.models import Count, F, Max, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.utils import timezone

from broker_core.config.instance import GROUP_DEFAULTS
from broker_core.config.preset_settings import AMPS_CLIENT, AMPS_POOL
from broker_core.config.rule_terms import DecisionReason, EnforcementMode
from broker_core.config.transports import TRANSPORT_FIELDS
from broker_core.errors import OperatorError
from console import current_instance
from console.broker_link import members_of
from console.choices import PolicyEntryKind, RolloutState
from console.models import (
    Decision,
    Instance,
    PolicyDraft,
    PolicyRevision,
    RevisionReport,
    StagedRollout,
    Transport,
)

# A broker reports every second. After 15 missed reports it counts as unavailable.
REPORT_FRESH = timedelta(seconds=15)

POOL_FIELDS, CLIENT_FIELDS = tuple(AMPS_POOL), tuple(AMPS_CLIENT)
"""Settings of a pool, and of a client policy."""
INSTANCE_FIELDS = (
    "journaled_topics",
    "unjournaled_topics",
    "journal_size",
    "preallocated_files",
    "journal_directory",
    "archive_directory",
    *GROUP_DEFAULTS,
)
"""Fields of an instance in a policy document."""
TRANSPORT_COLUMNS = ("name", "kind", "host", "port", "enabled", *TRANSPORT_FIELDS)
"""Fields of a transport in a policy document."""


class PolicyStatus(TypedDict):
    """Whether a broker runs the newest revision.

    `member` names the member of a group; "" means a broker without a group, or all members combined.
    """

    instance: str
    member: str
    wanted: int
    running: int | None
    converged: bool
    set_back: bool
    """Whether the broker retains a policy that this database lacks, until an operator decides."""
    staged: str
    """Sentence during a rollout: which revision applies to which clients."""
    staged_client: str
    """Client, or pattern of clients, of that rollout; "" if it is a share of the clients."""
    withdrawn: StagedRollout | None
    """Rollout whose automatic withdrawal created the newest revision."""
    reported_at: datetime | None
    why: str


def instance_named(name: str | None = None) -> Instance:
    """Return the instance of that name, or this installation's own.

    Raises OperatorError `unknown_instance`.
    """
    requested = name or current_instance.instance_name()
    found = Instance.objects.filter(name=requested).first()
    if found is None:
        raise OperatorError(
            "unknown_instance", f"The instance {requested!r} doesn't exist.", "Start its broker once."
        )
    return found


def newest_revision(instance: Instance) -> PolicyRevision | None:
    """Return the newest revision, which should be in force; None before the first."""
    return PolicyRevision.objects.filter(instance=instance).order_by("-number").first()


def running_rollout(instance: Instance) -> StagedRollout | None:
    """Return the running staged rollout, or None."""
    rows = StagedRollout.objects.select_related("revision", "base", "instance")
    return rows.filter(instance=instance, state=RolloutState.RUNNING).first()


def decisions_by_member(rollout: StagedRollout) -> dict[str, int]:
    """Return the number of carried-out decisions of a staged revision that each member reported."""
    rows = Decision.objects.filter(
        instance=rollout.instance, revision=rollout.revision.number, at__gte=rollout.started_at
    )
    counted = _carried_out(rows).order_by().values("member").annotate(number=Count("pk"))
    return {row["member"]: row["number"] for row in counted}


def exceeding_decision(rollout: StagedRollout) -> Decision | None:
    """Return the first decision that exceeded the rollout's allowance, or None."""
    rows = Decision.objects.filter(
        instance=rollout.instance, revision=rollout.revision.number, at__gte=rollout.started_at
    )
    exceeding = rows.filter(mode=EnforcementMode.SHADOW, details__has_key="held_at").exclude(
        details__held_at=None
    )
    return exceeding.order_by("at", "pk").first()


def _carried_out(rows: QuerySet[Decision]) -> QuerySet[Decision]:
    """Return the decisions that a revision caused and the broker carried out.

    Shadow decisions are excluded, and those on clients whose spool failed, which no revision causes.
    """
    return rows.exclude(mode=EnforcementMode.SHADOW).exclude(reason=DecisionReason.SPOOL_FAILED)


def rollouts(instance: Instance) -> QuerySet[StagedRollout]:
    """Return staged rollouts, newest first. `decisions` is the number of decisions each has carried out."""
    made = _carried_out(
        Decision.objects.filter(
            instance=OuterRef("instance"),
            revision=OuterRef("revision__number"),
            at__gte=OuterRef("started_at"),
        )
    )
    counted = made.order_by().values("revision").annotate(number=Count("pk")).values("number")
    rows = StagedRollout.objects.filter(instance=instance).select_related("revision", "base", "instance")
    return rows.annotate(decisions=Coalesce(Subquery(counted), 0))


def reachable_members(instance: Instance) -> tuple[str, ...]:
    """Return the members that commands are sent to: the configured ones, or those that reported recently."""
    listed = members_of(instance.name)
    if any(listed):
        return listed
    fresh = RevisionReport.objects.filter(instance=instance, seen_at__gte=timezone.now() - REPORT_FRESH)
    return tuple(sorted(set(fresh.order_by().values_list("member", flat=True)))) or ("",)


def drafts(instance: Instance) -> QuerySet[PolicyDraft]:
    """Return an instance's drafts, most recently changed first."""
    return PolicyDraft.objects.filter(instance=instance)


def revision_numbered(instance: Instance, number: int) -> PolicyRevision:
    """Return a revision by number. Raises OperatorError `unknown_revision`."""
    revisions = PolicyRevision.objects.select_related("rollout")
    found: PolicyRevision | None = revisions.filter(instance=instance, number=number).first()
    if found is None:
        raise OperatorError(
            "unknown_revision", f"{instance.name} has no revision {number}.", "Check the list."
        )
    return found


def desired_document(instance: Instance, number: int) -> dict[str, Any]:
    """Return the policy document built from the editable rows, as revision `number`."""
    pools = {pool.transport_id: _fields(pool, POOL_FIELDS) for pool in instance.pool_policies.all()}
    clients = {
        policy.transport_id: _fields(policy, CLIENT_FIELDS) for policy in instance.client_policies.all()
    }
    no_pool, no_client = dict.fromkeys(POOL_FIELDS), dict.fromkeys(CLIENT_FIELDS)
    return {
        "revision": number,
        "instance": {"name": instance.name, **_fields(instance, INSTANCE_FIELDS)},
        "pool": pools.get(None, no_pool),
        "client_policy": clients.get(None, no_client),
        "transports": [
            {
                **_fields(transport, TRANSPORT_COLUMNS),
                "pool": pools.get(transport.pk, no_pool),
                "client_policy": clients.get(transport.pk, no_client),
            }
            for transport in Transport.objects.filter(instance=instance).order_by("pk")
        ],
        **_entries(instance),
        "access": {
            "users": [user.to_entry() for user in instance.users.all()],
            "entitlements": [entitlement.to_entry() for entitlement in instance.entitlements.all()],
        },
    }


def _entries(instance: Instance) -> dict[str, Any]:
    """Return the document's lists of entries."""
    found: dict[str, Any] = {kind: [] for kind in PolicyEntryKind.values}
    for entry in instance.entries.all():
        found[entry.kind].append(entry.settings)
    if not found[PolicyEntryKind.DESTINATION]:
        del found[PolicyEntryKind.DESTINATION]  # documents without destinations keep their old form
    return found


def policy_status(
    instance: Instance, now: datetime | None = None, *, without: Collection[str] = ()
) -> PolicyStatus:
    """Return whether the newest revision is in force, and the reason if it is not.

    In a group the members' states are combined, without those in `without`.
    """
    found = _states(Instance.objects.filter(pk=instance.pk), now)
    if len(found) == 1:
        return found[0]
    states = [state for state in found if state["member"] not in without] or found
    running = [state["running"] for state in states if state["running"] is not None]
    report_times = [state["reported_at"] for state in states if state["reported_at"] is not None]
    return {
        **states[0],
        "member": "",
        "running": min(running, default=None),
        "converged": all(state["converged"] for state in states),
        "set_back": any(state["set_back"] for state in states),
        "reported_at": min(report_times, default=None),
        "why": " ".join(f"{state['member']}: {state['why']}" for state in states if state["why"]),
    }


def running_revisions(instance: Instance, now: datetime | None = None) -> dict[int, list[str]]:
    """Return the revisions that brokers run, by their last reports.

    If the members of a group run different ones, each revision has the names of its members. Only members
    that reported recently count.
    """
    states, least = (
        _states(Instance.objects.filter(pk=instance.pk), now),
        (now or timezone.now()) - REPORT_FRESH,
    )
    known = {
        state["member"]: state["running"]
        for state in states
        if state["running"] is not None and not state["set_back"]
    }
    recent = {state["member"] for state in states if state["reported_at"] and state["reported_at"] >= least}
    numbers = {known[one] for one in recent if one in known} or set(known.values())
    if len(numbers) == 1:
        return {number: [] for number in numbers}
    return {number: [one for one in known if known[one] == number and one in recent] for number in numbers}


def installation_policy_status(now: datetime | None = None) -> list[PolicyStatus]:
    """Return the policy status of every broker of the installation.

    Needs three queries, for any number of brokers.
    """
    return _states(Instance.objects.all(), now)


def _states(instances: QuerySet[Instance], now: datetime | None) -> list[PolicyStatus]:
    """Return the policy status of each expected member of the instances."""
    revisions = PolicyRevision.objects.filter(instance=OuterRef("pk")).order_by("-number")
    rows = list(
        instances.annotate(newest=Subquery(revisions.values("number")[:1])).values("pk", "name", "newest")
    )
    newest = PolicyRevision.objects.filter(instance=OuterRef("instance")).order_by("-number").values("number")
    rollouts = StagedRollout.objects.select_related("revision", "base").annotate(newest=Subquery(newest[:1]))
    made_the_newest = Q(state=RolloutState.RETURNED, newest=F("revision__number") + 1)
    rollouts_of = {
        (one.instance_id, one.state): one
        for one in rollouts.filter(Q(state=RolloutState.RUNNING) | made_the_newest)
    }
    reports, moment = _load_reports([row["pk"] for row in rows]), now or timezone.now()
    return [
        _state(
            row,
            member,
            reports[row["pk"]].get(member),
            rollouts_of.get((row["pk"], RolloutState.RUNNING)),
            rollouts_of.get((row["pk"], RolloutState.RETURNED)),
            moment,
        )
        for row in rows
        for member in _expected(row["name"], reports[row["pk"]])
    ]


class _BrokerReport(NamedTuple):
    """Newest report of a broker."""

    running: int
    seen_at: datetime
    set_back: bool


def _load_reports(instances: list[int]) -> dict[int, dict[str, _BrokerReport]]:
    """Return the newest report of each member, by instance."""
    same = RevisionReport.objects.filter(instance=OuterRef("instance"), member=OuterRef("member"))
    numbers, set_backs = (
        same.order_by("-seen_at", "-id").values(field)[:1] for field in ("number", "set_back")
    )
    rows = RevisionReport.objects.filter(instance__in=instances).order_by().values("instance", "member")
    found: dict[int, dict[str, _BrokerReport]] = {pk: {} for pk in instances}
    newest = rows.annotate(newest=Max("seen_at"), running=Subquery(numbers), set_back=Subquery(set_backs))
    for row in newest:
        found[row["instance"]][row["member"]] = _BrokerReport(row["running"], row["newest"], row["set_back"])
    return found


def _expected(instance_name: str, reports: Mapping[str, _BrokerReport]) -> tuple[str, ...]:
    """Return the members that should run the policy: the configured ones, else the one that reported last."""
    listed = members_of(instance_name)
    if any(listed) or not reports:
        return listed
    return (max(reports, key=lambda name: reports[name].seen_at),)


def _state(
    row: Mapping[str, Any],
    member: str,
    report: _BrokerReport | None,
    rollout: StagedRollout | None,
    withdrawn: StagedRollout | None,
    moment: datetime,
) -> PolicyStatus:
    """Return the policy status of one member, with the reason if it runs another revision."""
    newest, (running, seen_at, set_back) = row["newest"] or 0, report or (None, None, False)
    fresh = seen_at is not None and moment - seen_at <= REPORT_FRESH
    reason = ""
    if seen_at is None:
        reason = "The broker has never reported."
    elif not fresh:
        reason = (
            f"The broker last reported at {seen_at:%Y-%m-%d %H:%M:%S} UTC; it loads the policy "
            "when it starts."
        )
    elif set_back:
        reason = (
            f"The broker retains its own revision {running}, which this database doesn't have, "
            "until an operator decides."
        )
    elif running != newest:
        reason = f"The broker runs revision {running}; the console repeats the request each minute."
    return {
        "instance": row["name"],
        "member": member,
        "wanted": newest,
        "running": running,
        "converged": fresh and running == newest and not set_back,
        "set_back": fresh and set_back,
        "staged": _staged(rollout),
        "staged_client": rollout.client if rollout is not None else "",
        "withdrawn": withdrawn,
        "reported_at": seen_at,
        "why": reason,
    }


def _staged(rollout: StagedRollout | None) -> str:
    if rollout is None:
        return ""
    first = rollout.client or f"{rollout.share} % of the clients"
    return f"Revision {rollout.revision.number} for {first} first, {rollout.base.number} for the others."


def revisions(instance: Instance, limit: int = 100) -> list[PolicyRevision]:
    """Return the newest revisions, newest first."""
    rows = PolicyRevision.objects.filter(instance=instance).select_related("instance", "rollout")
    return list(rows[:limit])


def _fields(row: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in names}
