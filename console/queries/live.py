"""Current state of a running broker and its journal."""

from __future__ import annotations

from broker_core.documents import requests
from broker_core.documents.instance import InstanceStatus, Snapshot
from broker_core.documents.journals import SegmentEntry
from console.broker_link import link_to, members_of
from console.queries.policies import instance_named


def instance_status(instance_name: str | None = None, member: str = "") -> InstanceStatus:
    """Return the broker's status; in a group that of all members, or of `member`.

    Raises BrokerUnavailable, or OperatorError `unknown_member`.
    """
    return link_to(instance_named(instance_name).name, member).call(requests.GetStatus())


def instance_snapshot(instance_name: str | None = None) -> Snapshot:
    """Return the broker's status and all its clients at one moment. Raises BrokerUnavailable."""
    return link_to(instance_named(instance_name).name).call(requests.GetSnapshot())


def journal_segments(instance_name: str | None = None, member: str = "") -> list[SegmentEntry]:
    """Return the journal's segments, oldest first; in a group those of `member`, or of the first member.

    Raises BrokerUnavailable.
    """
    name = instance_named(instance_name).name
    return link_to(name, member or members_of(name)[0]).call(requests.ListJournals())
