"""The broker as a whole."""

from __future__ import annotations

from broker_core.control.status import Statistics
from broker_core.documents import requests
from broker_core.documents.instance import InstanceStatus, Snapshot


class InstanceRequests:
    """Answers of what the broker says of itself."""

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics

    async def status(self, asked: requests.GetStatus) -> InstanceStatus:
        """Without its clients."""
        return self._statistics.status()

    async def snapshot(self, asked: requests.GetSnapshot) -> Snapshot:
        """With them."""
        return self._statistics.snapshot()
