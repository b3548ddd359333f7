"""Who gets what matches: subscriptions of clients, and whoever listens inside the broker."""

from __future__ import annotations

from typing import Protocol

from broker_core.batch import Rows
from broker_core.delivery.shared import Shared


class Receiver(Protocol):
    """What the registry holds."""

    @property
    def takes_both(self) -> bool:
        """Whether records of the log and records that no journal keeps are for it alike, in the order of
        their publishers."""

    def receive(self, shared: Shared, rows: Rows | None) -> None:
        """A batch has come of which these rows (None: all) fit the pattern and the filter."""

    def missed(self) -> None:
        """A batch couldn't be taken: there is a gap from here on, and that mustn't be passed over in silence."""
