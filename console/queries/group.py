"""The group of brokers that carries an instance, as its member on this machine sees it."""

from __future__ import annotations

from broker_core.documents.group import GroupStatus
from broker_core.documents.requests import GetGroup
from console.broker_link import link_to


def group_now(instance_name: str) -> GroupStatus:
    """OperatorError no_group for a broker by itself; BrokerAway."""
    return link_to(instance_name).call(GetGroup())


def is_well(status: GroupStatus) -> bool:
    """Whether everybody takes part, agrees, and every engine is up to date."""
    members = all(one.there and one.alike is not False for one in status.members)
    return status.state == "taking part" and members and status.engines_current == status.engines
