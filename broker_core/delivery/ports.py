"""What delivery needs of those above it, and what the rooms of one instance share.

Who gets what matches: subscriptions of clients, and whoever listens inside the broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from broker_core.batch import Rows
from broker_core.clock import Clock
from broker_core.delivery.account import DeliveryAccount
from broker_core.delivery.entries import SharedDelivery
from broker_core.delivery.latency import LatencyTracker
from broker_core.delivery.loss_ledger import LossLedger
from broker_core.delivery.scheduling import ReplayFairShare, WorkScheduler
from broker_core.errors import SluiceError
from broker_core.journal.journal import Journal
from broker_core.journal.log_reader import ReaderThread


class DeliveryTarget(Protocol):
    """A subscription, as far as its deliveries go."""

    account: DeliveryAccount

    @property
    def id(self) -> str:
        """The client's word for it."""

    @property
    def topic(self) -> str:
        """What it asked for."""

    @property
    def stream(self) -> int:
        """Its number on the connection."""

    @property
    def is_shared(self) -> bool:
        """Whether what its client doesn't acknowledge goes to another."""

    @property
    def can_fall_back(self) -> bool:
        """Whether what its client doesn't take is read from the log when it does."""

    @property
    def is_paused(self) -> bool:
        """Whether its client has it wait where it is in the log."""

    def first_needed(self, waiting: int) -> int:
        """Sequence of the record it would go on with, if the first that waits or is in flight is `waiting` (0: none)."""


class BacklogOwner(Protocol):
    """The client whose deliveries these are."""

    @property
    def name(self) -> str:
        """Its unique name."""

    def mark_changed(self) -> None:
        """What waits for it has changed: it is measured, and judged, at the end of the turn."""

    def on_live(self) -> None:
        """Its spool is empty."""

    def fail(self, error: SluiceError) -> None:
        """It can't be served: tell it, and end the connection."""

    def close(self, code: str, message: str) -> None:
        """End the connection with a last word."""

    def on_spool_failed(self, error: SluiceError) -> None:
        """What waits for it can't be written to disk: that is decided, told and recorded, and the connection ended."""


class TaskSpawner(Protocol):
    """Starts a task that ends with the instance."""

    def __call__(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...


@dataclass(frozen=True, slots=True)
class InstanceResources:
    """What the rooms of one instance share: the log and the thread that reads it, the time, the loop's fair share."""

    instance: str
    clock: Clock
    journal: Journal
    reader: ReaderThread
    share: ReplayFairShare
    turns: WorkScheduler
    ledger: LossLedger
    spawn: TaskSpawner
    delays: LatencyTracker = field(default_factory=LatencyTracker)


class MatchReceiver(Protocol):
    """What the registry holds."""

    @property
    def gets_unjournaled(self) -> bool:
        """Whether records of the log and records that no journal keeps are for it alike, in the order of
        their publishers."""

    def receive(self, shared: SharedDelivery, rows: Rows | None) -> None:
        """A batch has come of which these rows (None: all) fit the pattern and the filter."""

    def on_gap(self) -> None:
        """A batch couldn't be taken: there is a gap from here on, and that mustn't be passed over in silence."""
