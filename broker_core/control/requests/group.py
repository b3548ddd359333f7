"""The group that the broker is a member of."""

from __future__ import annotations

import structlog

from broker_core.documents import requests
from broker_core.documents.replication import GroupStatus
from broker_core.errors import OperatorError
from broker_core.group.member import GroupMember
from broker_core.sync_replication.sync_replication import SyncReplication

log = structlog.get_logger("sluice.group")


class GroupRequests:
    """Answers about the group; None is a broker by itself."""

    def __init__(self, member: GroupMember | None, confirmations: SyncReplication) -> None:
        self._member, self._confirmations = member, confirmations

    async def group(self, asked: requests.GetGroup) -> GroupStatus:
        """OperatorError no_group."""
        return self._there().status()

    async def downgrade_member(self, asked: requests.DowngradeMember) -> GroupStatus:
        """OperatorError no_group, unknown_member; JournalError not_kept."""
        member = self._there()
        await self._confirmations.downgrade(asked.name, asked.by)
        return member.status()

    async def upgrade_member(self, asked: requests.UpgradeMember) -> GroupStatus:
        """OperatorError no_group, unknown_member; JournalError not_kept."""
        member = self._there()
        await self._confirmations.upgrade(asked.name, asked.by)
        return member.status()

    async def forget_member(self, asked: requests.ForgetMember) -> GroupStatus:
        """Forget a removed member. Raises OperatorError no_group, unknown_member, member_in_use."""
        member = self._there()
        member.forget(asked.name)
        log.warning("member_forgotten", member=asked.name, by=asked.by)
        return member.status()

    def _there(self) -> GroupMember:
        if self._member is None:
            raise OperatorError(
                "no_group",
                "This broker isn't in a group.",
                "See docs/group.md for brokers that share a log. A sync destination is named link.NAME.",
            )
        return self._member
