"""Interfaces that delivery needs of higher packages, and the shared resources of one instance."""

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
    """Subscription that deliveries are made for."""

    account: DeliveryAccount

    @property
    def id(self) -> str:
        """Subscription id that the client chose."""

    @property
    def topic(self) -> str:
        """Topic or topic pattern that the client subscribed to."""

    @property
    def stream(self) -> int:
        """Number of the subscription on the connection."""

    @property
    def is_shared(self) -> bool:
        """Whether another consumer gets the messages that this client doesn't acknowledge."""

    @property
    def can_fall_back(self) -> bool:
        """Whether the subscription can fall back to reading the log.

        Then the broker reads the records that the client hasn't read yet from the log again.
        """

    @property
    def is_paused(self) -> bool:
        """Whether the client has paused the subscription at its position in the log."""

    def first_needed(self, waiting: int) -> int:
        """Return the sequence of the record that the subscription would resume with.

        `waiting` is the sequence of its first waiting or unacknowledged record; 0: there is none.
        """


class BacklogOwner(Protocol):
    """Client that owns a backlog."""

    @property
    def name(self) -> str:
        """Unique client name."""

    def mark_changed(self) -> None:
        """Schedule the client for measuring and judging at the end of the event-loop iteration."""

    def on_live(self) -> None:
        """Handle the return to live delivery: the client's spool is empty."""

    def fail(self, error: SluiceError) -> None:
        """Send an error to the client that can't be served any more, and end the connection."""

    def close(self, code: str, message: str) -> None:
        """Send a reason to the client and end the connection."""

    def on_spool_failed(self, error: SluiceError) -> None:
        """Close a client whose backlog can't be written to disk.

        The decision is sent to the client and recorded.
        """


class TaskSpawner(Protocol):
    """Starts a task that is cancelled when the instance stops."""

    def __call__(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...


@dataclass(frozen=True, slots=True)
class InstanceResources:
    """Objects that the packages of one instance share: log, reader thread, clock, schedulers."""

    instance: str
    clock: Clock
    journal: Journal
    reader: ReaderThread
    share: ReplayFairShare
    scheduler: WorkScheduler
    ledger: LossLedger
    spawn: TaskSpawner
    delays: LatencyTracker = field(default_factory=LatencyTracker)


class MatchReceiver(Protocol):
    """Receiver of matched batches: a client's subscription, or a listener inside the broker."""

    @property
    def gets_unjournaled(self) -> bool:
        """Whether the receiver takes journaled and unjournaled records, in the order of their publishers."""

    def receive(self, shared: SharedDelivery, rows: Rows | None) -> None:
        """Receive a batch of which these rows (None: all) match the pattern and the filter."""

    def on_gap(self) -> None:
        """Note that a batch couldn't be received. The receiver must report the gap that begins here."""
