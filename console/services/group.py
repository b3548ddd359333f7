"""Who is waited for, by hand: members of a group, and sync destinations, which are called `link.` and their name."""

from __future__ import annotations

from collections.abc import Mapping

from broker_core.documents.group import GroupStatus, MemberEntry
from broker_core.documents.links import LinkEntry, Links
from broker_core.documents.requests import DowngradeLink, DowngradeMember, UpgradeLink, UpgradeMember
from broker_core.errors import OperatorError
from broker_core.names import LINK_PREFIX
from console.broker_link import Link
from console.queries.group import group_now
from console.queries.links import links_now

CHANGES: Mapping[str, type[DowngradeMember | UpgradeMember]] = {
    "downgrade": DowngradeMember,
    "upgrade": UpgradeMember,
}
LINK_CHANGES: Mapping[str, type[DowngradeLink | UpgradeLink]] = {
    "downgrade": DowngradeLink,
    "upgrade": UpgradeLink,
}


def is_link(name: str) -> bool:
    """Whether that is a destination's link, and no member."""
    return name.startswith(LINK_PREFIX)


def named(instance_name: str, name: str) -> str:
    """Whom an operator means at a terminal: a member by its name, else a link, with or without `link.` before it. BrokerAway."""
    try:
        members = [one.name for one in group_now(instance_name).members]
    except OperatorError as problem:
        if problem.code != "no_group":
            raise
        members = []
    links = [one.entry.name for one in links_now(instance_name).links]
    is_destination = name not in members and (name in links or not members)
    return f"{LINK_PREFIX}{name}" if is_destination and not is_link(name) else name


def change_member(brokers: Link, change: str, name: str, by: str) -> GroupStatus:
    """Of a group. OperatorError no_group, unknown_member; BrokerAway."""
    return brokers.call(CHANGES[change](name=name, by=by))


def change_link(brokers: Link, change: str, name: str, by: str) -> Links:
    """Of `link.NAME`. OperatorError unknown_member; BrokerAway."""
    return brokers.call(LINK_CHANGES[change](name=name.removeprefix(LINK_PREFIX), by=by))


def changed(brokers: Link, change: str, name: str, by: str) -> MemberEntry | LinkEntry:
    """Either, as it stands then. Raises as both."""
    if is_link(name):
        links = change_link(brokers, change, name, by).links
        return next(one for one in links if one.client == name)
    members = change_member(brokers, change, name, by).members
    return next(one for one in members if one.name == name)
