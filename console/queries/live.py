"""What a running broker says about itself and its journals."""

from __future__ import annotations

from broker_core.documents import requests
from broker_core.documents.instance import InstanceStatus, Snapshot
from broker_core.documents.journals import SegmentEntry
from console.broker_link import link_to
from console.queries.policies import instance_named


def status(instance_name: str | None = None) -> InstanceStatus:
    """The broker's status. Raises BrokerAway."""
    return link_to(instance_named(instance_name).name).call(requests.GetStatus())


def snapshot(instance_name: str | None = None) -> Snapshot:
    """The broker's status and all its clients at one moment. Raises BrokerAway."""
    return link_to(instance_named(instance_name).name).call(requests.GetSnapshot())


def journals(instance_name: str | None = None) -> list[SegmentEntry]:
    """The segments of the journal, oldest first. Raises BrokerAway."""
    return link_to(instance_named(instance_name).name).call(requests.ListJournals())
