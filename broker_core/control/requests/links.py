"""Links to other sites."""

from __future__ import annotations

from typing import Protocol

from broker_core.documents import links as documents
from broker_core.documents import requests


class Links(Protocol):
    """Who has them."""

    def listed(self) -> list[documents.LinkEntry]: ...


class LinkRequests:
    """Answers about them."""

    def __init__(self, links: Links) -> None:
        self._links = links

    async def links(self, asked: requests.GetLinks) -> documents.Links:
        """How each stands."""
        return documents.Links(links=self._links.listed())
