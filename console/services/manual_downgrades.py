"""Manual downgrades: operators decide which members and sync destinations acknowledgements wait for.

Targets are members of a group, by their names, and sync destinations, as `link.NAME`.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker_core.documents.replication import GroupStatus, LinkEntry, LinkList, MemberEntry
from broker_core.documents.requests import (
    DowngradeLink,
    DowngradeMember,
    ForgetMember,
    UpgradeLink,
    UpgradeMember,
)
from broker_core.errors import OperatorError
from broker_core.names import LINK_PREFIX
from console.broker_link import BrokerAnswer, RequestChannel, ask_all_brokers
from console.queries.group import current_group
from console.queries.links import current_links

CHANGES: Mapping[str, type[DowngradeMember | UpgradeMember]] = {
    "downgrade": DowngradeMember,
    "upgrade": UpgradeMember,
}
LINK_CHANGES: Mapping[str, type[DowngradeLink | UpgradeLink]] = {
    "downgrade": DowngradeLink,
    "upgrade": UpgradeLink,
}


def is_link(name: str) -> bool:
    """Whether the name is that of a link to a destination, and not of a member."""
    return name.startswith(LINK_PREFIX)


def resolve_name(instance_name: str, name: str) -> str:
    """Return the full name of a member or link as an operator typed it; the prefix `link.` may be missing.

    Raises:
        BrokerUnavailable: no broker answers.
    """
    try:
        members = [one.name for one in current_group(instance_name).members]
    except OperatorError as problem:
        if problem.code != "no_group":
            raise
        members = []
    links = [one.entry.name for one in current_links(instance_name).links]
    is_destination = name not in members and (name in links or not members)
    return f"{LINK_PREFIX}{name}" if is_destination and not is_link(name) else name


def change_member(brokers: RequestChannel, change: str, name: str, by: str) -> GroupStatus:
    """Downgrade or upgrade a member of a group, and return the group's new status.

    Raises:
        OperatorError: `no_group` or `unknown_member`.
        BrokerUnavailable: no broker answers.
    """
    return brokers.call(CHANGES[change](name=name, by=by))


def forget_member(instance_name: str, name: str, by: str) -> list[BrokerAnswer[GroupStatus]]:
    """Ask each broker to forget a member that was removed permanently, and return each broker's answer.

    Raises:
        OperatorError: when all brokers refuse: `unknown_member`, `member_in_use` or `no_group`.
    """
    replies = ask_all_brokers(instance_name, ForgetMember(name=name, by=by))
    refused = [one.error for one in replies if one.error is not None]
    if len(refused) == len(replies):
        raise refused[0]
    return replies


def change_link(brokers: RequestChannel, change: str, name: str, by: str) -> LinkList:
    """Downgrade or upgrade the link to a destination (`link.NAME`), and return all links.

    Raises:
        OperatorError: `unknown_member`.
        BrokerUnavailable: no broker answers.
    """
    return brokers.call(LINK_CHANGES[change](name=name.removeprefix(LINK_PREFIX), by=by))


def change_member_or_link(
    brokers: RequestChannel, change: str, name: str, by: str
) -> MemberEntry | LinkEntry:
    """Downgrade or upgrade a member or a link, and return its new state.

    Raises like the two functions above.
    """
    if is_link(name):
        links = change_link(brokers, change, name, by).links
        return next(one for one in links if one.client == name)
    members = change_member(brokers, change, name, by).members
    return next(one for one in members if one.name == name)
