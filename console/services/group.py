"""Who of a group is waited for, by hand."""

from __future__ import annotations

from collections.abc import Mapping

from broker_core.documents.group import GroupStatus
from broker_core.documents.requests import DowngradeMember, UpgradeMember
from console.broker_link import link_to

CHANGES: Mapping[str, type[DowngradeMember | UpgradeMember]] = {
    "downgrade": DowngradeMember,
    "upgrade": UpgradeMember,
}


def change_member(instance_name: str, change: str, member: str, by: str) -> GroupStatus:
    """OperatorError no_group, unknown_member; BrokerAway."""
    return link_to(instance_name).call(CHANGES[change](name=member, by=by))
