"""Status of the group of brokers that carries an instance, as its members report it."""

from __future__ import annotations

from typing import NamedTuple

from broker_core.documents.replication import GroupStatus, MemberEntry
from broker_core.documents.requests import GetGroup
from broker_core.errors import SluiceError
from console.broker_link import BrokerAnswer, ask_all_brokers, link_to

PATIENCE_S = 2.0
"""Seconds to wait for a member's answer."""
TAKING_PART = "taking part"
"""Value of `GroupStatus.state` of a member that takes part."""


class MemberView(NamedTuple):
    """Member of a group.

    `entry`: the member as the first answering member sees it. `report`: the member's own report. `problem`:
    the error if it could not be asked.
    """

    name: str
    entry: MemberEntry | None
    report: GroupStatus | None
    problem: SluiceError | None

    @property
    def is_reachable(self) -> bool:
        """Whether the member ever reported its position.

        Otherwise nothing is known of it, and its figures are meaningless.
        """
        return self.entry is not None and (
            self.entry.there or self.entry.applied > 0 or bool(self.entry.chain)
        )

    @property
    def is_unreachable(self) -> bool:
        """Whether the member has stopped reporting, so that its figures are old."""
        return self.is_reachable and self.entry is not None and not self.entry.there

    @property
    def is_healthy(self) -> bool:
        """Whether the member is present, takes part and agrees with the others, as far as known."""
        entry, report = self.entry, self.report
        agrees = entry is not None and entry.there and entry.alike is not False
        return agrees and self.problem is None and (report is None or report.state == TAKING_PART)


class GroupView(NamedTuple):
    """Group and its members.

    `status` is the report of the first member that answered. Without it `problem` gives the reason: no
    member answered, or there is no group.
    """

    status: GroupStatus | None
    members: list[MemberView]
    problem: SluiceError | None

    @property
    def is_healthy(self) -> bool:
        """Whether every member answers, takes part and agrees, and every log service is up to date."""
        return self.status is not None and is_group_healthy(self.status) and not self.unhealthy_members

    @property
    def unhealthy_members(self) -> list[str]:
        """Names of the members that cause an unhealthy state."""
        return [one.name for one in self.members if not one.is_healthy]


def current_group(instance_name: str) -> GroupStatus:
    """Return the group's status from the first member that answers.

    Raises OperatorError `no_group` for a broker without a group, or BrokerUnavailable.
    """
    return link_to(instance_name).call(GetGroup())


def is_group_healthy(status: GroupStatus) -> bool:
    """Return whether every member takes part and agrees, and every log service is up to date."""
    members = all(one.there and one.alike is not False for one in status.members)
    return status.state == TAKING_PART and members and status.engines_current == status.engines


def group_view(instance_name: str) -> GroupView:
    """Request the status of every member that this console reaches, in parallel."""
    replies = ask_all_brokers(instance_name, GetGroup(), timeout_s=PATIENCE_S)
    status = next((one.answer for one in replies if one.answer is not None), None)
    if status is None:
        members = [MemberView(one.member, None, None, one.error) for one in replies if one.member]
        return GroupView(None, members, replies[0].error)
    by_member = {_member_name(one): one for one in replies}
    entries = {one.name: one for one in status.members}
    return GroupView(
        status,
        [
            _member_view(name, entries.get(name), by_member.get(name))
            for name in dict.fromkeys([*entries, *by_member])
        ],
        None,
    )


def _member_name(reply: BrokerAnswer[GroupStatus]) -> str:
    """Return a member's name from its own report.

    The broker on this machine may be configured without a member's name.
    """
    return reply.answer.member if reply.answer is not None else reply.member


def _member_view(name: str, entry: MemberEntry | None, reply: BrokerAnswer[GroupStatus] | None) -> MemberView:
    """Return a member's view from the first report and its own answer."""
    if reply is None:
        return MemberView(name, entry, None, None)
    return MemberView(name, entry, reply.answer, reply.error)
