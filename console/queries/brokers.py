"""Status of every broker that this console reaches."""

from __future__ import annotations

import time
from typing import Annotated, Any

from django.conf import settings
from msgspec import Meta

from broker_core.documents.base import Document, MomentOrNone
from broker_core.documents.instance import InstanceStatus, ThroughputRates
from broker_core.documents.problems import ProblemEntry
from broker_core.documents.requests import GetStatus
from console.access.rights import EffectiveAccess
from console.broker_addresses import BrokerAddress
from console.broker_link import BrokerAnswer, addresses_of, ask_brokers, certificate_expiry, expires_soon
from console.choices import Permission

PATIENCE_S = 2.0
"""Seconds to wait for a broker's answer."""


class BrokerEntry(Document, frozen=True, kw_only=True):
    """Current status of one broker."""

    name: Annotated[str, Meta(description="INSTANCE, or INSTANCE/MEMBER.")]
    instance: str
    member: Annotated[str, Meta(description="Name of the member of a group; empty for a standalone broker.")]
    place: Annotated[str, Meta(description="Address: HOST:PORT, or the path of a socket on this machine.")]
    answers: bool
    code: Annotated[
        str,
        Meta(
            description="Error code (docs/api.md): the broker doesn't answer, can't apply the newest policy, "
            "or can't use the database."
        ),
    ] = ""
    problem: str = ""
    fix: str = ""
    since: MomentOrNone = None
    """Moment at which the problem in `code` began, where known."""
    problems: Annotated[
        list[ProblemEntry],
        Meta(description="Problems of its policy, its group and its links, as this broker reports them."),
    ] = []
    revision: Annotated[int, Meta(description="Revision of the policy that the broker runs.")] = 0
    refused_revision: Annotated[
        int,
        Meta(
            description="Newest revision that the broker received and can't apply; 0: it runs the newest "
            "revision."
        ),
    ] = 0
    clients: int = 0
    rates: ThroughputRates = ThroughputRates()
    durable_sequence: int = 0
    uptime_s: int = 0
    certificate_ends_at: MomentOrNone = None
    """Moment at which the control link's certificate expires."""
    certificate_ends_soon: Annotated[
        bool, Meta(description="Whether the certificate expires within 14 days.")
    ] = False

    @property
    def is_listed(self) -> bool:
        """Whether `code` is the code of one of `problems`."""
        return any(one.code == self.code for one in self.problems)


def instances() -> tuple[str, ...]:
    """Return the instances whose brokers this console reaches, its own first."""
    return tuple(
        dict.fromkeys([settings.SLUICE_INSTANCE, *(one.instance for one in settings.SLUICE_BROKERS)])
    )


def visible_instances(access: EffectiveAccess) -> list[str]:
    """Return the names of the instances that the account may view."""
    return [name for name in instances() if access.allows(Permission.VIEW, instance=name)]


def brokers(access: EffectiveAccess, instance: str | None = None) -> list[BrokerEntry]:
    """Return the status of the brokers of all visible instances, or of `instance`.

    Requests run in parallel.
    """
    names = [name for name in visible_instances(access) if instance in (None, name)]
    addresses = [one for name in names for one in addresses_of(name)]
    return [_entry(one) for one in ask_brokers(addresses, GetStatus(), timeout_s=PATIENCE_S)]


def _entry(reply: BrokerAnswer[InstanceStatus]) -> BrokerEntry:
    """Return the entry of a broker, from its answer or the error."""
    at, status = reply.address, reply.answer
    if status is None:
        error = reply.error
        assert error is not None
        code = str(error.details.get("ended", error.code))
        return BrokerEntry(
            **_identity_fields(at), answers=False, code=code, problem=error.sentence, fix=error.fix
        )
    return BrokerEntry(
        **_identity_fields(at),
        **_problem_fields(status),
        problems=status.problems,
        answers=True,
        revision=status.revision,
        clients=sum(status.clients_by_state.values()),
        rates=status.rates,
        durable_sequence=status.durable_sequence,
        uptime_s=status.uptime_s,
        **_certificate_fields(at),
    )


def _problem_fields(status: InstanceStatus) -> dict[str, Any]:
    """Return the broker's own problem as fields of an entry: a refused policy, its database, or its first
    severe problem.
    """
    refused = status.refused
    if refused is not None:
        return {
            "refused_revision": refused.revision,
            "code": refused.code,
            "problem": refused.message,
            "fix": refused.fix,
        }
    database = _database_fields(status)
    severe = next((one for one in status.problems if one.severe), None)
    if database or severe is None:
        return database
    message = f"{severe.title}: {severe.message}"
    return {"code": severe.code, "problem": message, "fix": severe.fix, "since": severe.since}


def _database_fields(status: InstanceStatus) -> dict[str, Any]:
    """Return a problem of the broker's database as fields of an entry."""
    entry = status.database
    if entry is None or not entry.code:
        return {}
    return {"code": entry.code, "problem": entry.message, "fix": entry.fix, "since": entry.away_since}


def _certificate_fields(at: BrokerAddress) -> dict[str, Any]:
    """Return the expiry of the control link's certificate as fields of an entry."""
    ends = certificate_expiry(at)
    if ends is None:
        return {}
    return {"certificate_ends_at": ends * 1_000, "certificate_ends_soon": expires_soon(ends, time.time())}


def _identity_fields(at: BrokerAddress) -> dict[str, Any]:
    """Return the identity of a broker as fields of an entry."""
    return {"name": at.name, "instance": at.instance, "member": at.member, "place": at.endpoint}
