"""Members of a group whose data is missing in an answer: unreachable, or without recent reports."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated

from django.db.models import Max
from msgspec import Meta

from broker_core.documents.base import Document, MomentOrNone
from broker_core.errors import SluiceError
from console.broker_addresses import BrokerAddress
from console.broker_link import members_of
from console.models import Instance, RevisionReport
from console.queries.policies import REPORT_FRESH


class MissingMember(Document, frozen=True, kw_only=True):
    """Member of a group whose data is missing in an answer."""

    member: str
    code: Annotated[str, Meta(description="Error code (docs/api.md).")]
    problem: str
    fix: str
    since: Annotated[
        MomentOrNone,
        Meta(description="Time from which its reports are missing; null: only its present state is missing."),
    ] = None


def unreachable_members(noted: Mapping[BrokerAddress, SluiceError]) -> list[MissingMember]:
    """Return the members that did not answer, as collected by `broker_link.collect_unreachable`, by name."""
    return [
        MissingMember(member=at.member, code=away.code, problem=away.sentence, fix=away.fix)
        for at, away in sorted(noted.items(), key=lambda one: one[0].name)
    ]


def members_without_reports(instance: Instance, now: datetime, member: str = "") -> list[MissingMember]:
    """Return the members that have not reported to the database recently, all or only `member`.

    Empty for a broker without a group.
    """
    listed = members_of(instance.name)
    if len(listed) == 1:
        return []
    rows = RevisionReport.objects.filter(instance=instance).order_by().values_list("member")
    last_reports = dict(rows.annotate(newest=Max("seen_at")))
    return [
        _silent(instance.name, name, last_reports.get(name))
        for name in listed
        if (not member or name == member)
        and (name not in last_reports or now - last_reports[name] > REPORT_FRESH)
    ]


def _silent(instance_name: str, member: str, reported_at: datetime | None) -> MissingMember:
    when = f"last reported at {reported_at:%Y-%m-%d %H:%M:%S} UTC" if reported_at else "has never reported"
    return MissingMember(
        member=member,
        code="broker_away",
        problem=f"The broker {instance_name}/{member} {when}.",
        fix="Its later reports arrive when it reaches the database again.",
        since=int(reported_at.timestamp() * 1_000) if reported_at else 0,
    )
