"""The group of brokers that carries an instance: what each of its members says, and who can't be asked."""

from __future__ import annotations

from typing import NamedTuple

from broker_core.documents.replication import GroupStatus, MemberEntry
from broker_core.documents.requests import GetGroup
from broker_core.errors import SluiceError
from console.broker_link import BrokerAnswer, ask_all_brokers, link_to

PATIENCE_S = 2.0
TAKING_PART = "taking part"


class MemberView(NamedTuple):
    """One member: as the first that answers sees it, what it says itself, and why it can't be asked."""

    name: str
    entry: MemberEntry | None
    own: GroupStatus | None
    problem: SluiceError | None

    @property
    def is_reachable(self) -> bool:
        """Whether it has ever said how far it is: else nothing of it is known, and no figure is one."""
        return self.entry is not None and (
            self.entry.there or self.entry.applied > 0 or bool(self.entry.chain)
        )

    @property
    def is_unreachable(self) -> bool:
        """Whether it says nothing any more: what is known of it is old."""
        return self.is_reachable and self.entry is not None and not self.entry.there

    @property
    def is_healthy(self) -> bool:
        """Whether it is there, takes part and agrees, as far as it is known."""
        entry, own = self.entry, self.own
        agrees = entry is not None and entry.there and entry.alike is not False
        return agrees and self.problem is None and (own is None or own.state == TAKING_PART)


class GroupView(NamedTuple):
    """`status` is what the first says that answers; without it `problem` says why nobody does, or that there
    is no group."""

    status: GroupStatus | None
    members: list[MemberView]
    problem: SluiceError | None

    @property
    def is_healthy(self) -> bool:
        """Whether everybody can be asked, takes part and agrees, and every engine is up to date."""
        return self.status is not None and is_group_healthy(self.status) and not self.unhealthy_members

    @property
    def unhealthy_members(self) -> list[str]:
        """The members that it is about when not all is well."""
        return [one.name for one in self.members if not one.is_healthy]


def current_group(instance_name: str) -> GroupStatus:
    """As the first member sees it that can be reached. OperatorError no_group for a broker by itself;
    BrokerUnavailable."""
    return link_to(instance_name).call(GetGroup())


def is_group_healthy(status: GroupStatus) -> bool:
    """Whether everybody takes part, agrees, and every engine is up to date."""
    members = all(one.there and one.alike is not False for one in status.members)
    return status.state == TAKING_PART and members and status.engines_current == status.engines


def group_view(instance_name: str) -> GroupView:
    """Asks every member that this console reaches, all at once."""
    told = ask_all_brokers(instance_name, GetGroup(), timeout_s=PATIENCE_S)
    status = next((one.answer for one in told if one.answer is not None), None)
    if status is None:
        members = [MemberView(one.member, None, None, one.error) for one in told if one.member]
        return GroupView(None, members, told[0].error)
    asked = {_name_of(one): one for one in told}
    entries = {one.name: one for one in status.members}
    return GroupView(
        status,
        [_seen(name, entries.get(name), asked.get(name)) for name in dict.fromkeys([*entries, *asked])],
        None,
    )


def _name_of(told: BrokerAnswer[GroupStatus]) -> str:
    """Its own word where it isn't listed by its member's name: it is the one on this machine."""
    return told.answer.member if told.answer is not None else told.member


def _seen(name: str, entry: MemberEntry | None, told: BrokerAnswer[GroupStatus] | None) -> MemberView:
    if told is None:
        return MemberView(name, entry, None, None)
    return MemberView(name, entry, told.answer, told.error)
