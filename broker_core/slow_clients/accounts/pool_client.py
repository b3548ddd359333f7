"""A client as its pool sees it."""

from __future__ import annotations

from typing import Protocol

from broker_core.slow_clients.evaluate.signals import Backlog, ClientView
from broker_core.slow_clients.rules.rule import ClientLimits


class PoolClient(ClientView, Protocol):
    """What a client takes of its pool, and what the pool tells it: `PoolUse`. Compared by identity."""

    memory: int
    """Bytes."""
    memory_alarm: int
    """With more than this it is looked at again."""
    disk: int
    disk_alarm: int
    offlined: bool
    fresh: ClientLimits

    @property
    def backlog(self) -> Backlog: ...
