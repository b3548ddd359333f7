"""Links to other sites."""

from __future__ import annotations

from typing import Protocol

from broker_core.documents import replication as documents
from broker_core.documents import requests
from broker_core.names import LINK_PREFIX
from broker_core.sync_replication.sync_replication import SyncReplication


class Links(Protocol):
    """Who has them."""

    def listed(self) -> list[documents.LinkEntry]: ...


class LinkRequests:
    """Answers about them."""

    def __init__(self, links: Links, confirmations: SyncReplication) -> None:
        self._links, self._confirmations = links, confirmations

    async def links(self, asked: requests.GetLinks) -> documents.LinkList:
        """How each stands."""
        return documents.LinkList(links=self._links.listed())

    async def downgrade_link(self, asked: requests.DowngradeLink) -> documents.LinkList:
        """OperatorError unknown_member; JournalError not_kept."""
        await self._confirmations.downgrade(f"{LINK_PREFIX}{asked.name}", asked.by)
        return documents.LinkList(links=self._links.listed())

    async def upgrade_link(self, asked: requests.UpgradeLink) -> documents.LinkList:
        """OperatorError unknown_member; JournalError not_kept."""
        await self._confirmations.upgrade(f"{LINK_PREFIX}{asked.name}", asked.by)
        return documents.LinkList(links=self._links.listed())
