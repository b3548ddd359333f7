"""What one subscription is given of one batch of the log, on its way to becoming a delivery."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from broker_core.batch import Batch, Rows
from broker_core.journal.segment import BatchPosition
from broker_core.subscriptions.subscription import Subscription


class Piece(NamedTuple):
    """What one subscription is given of one batch: where that stands, the rows of it (None: all), and these as a batch.

    `source` None: the records were conflated and stand nowhere as they are. `recorded_at` (ns) is their moment on the
    recorded timeline. A piece that a rate has cut goes on with its record number `start`.
    """

    subscription: Subscription[object]
    source: BatchPosition | None
    length: int
    rows: Rows | None
    batch: Batch
    recorded_at: int
    start: int = 0

    def sizes(self) -> npt.NDArray[np.int64]:
        """Bytes of headers and body of each record that is left."""
        rows = self.batch.rows[self.start :]
        sizes: npt.NDArray[np.int64] = rows["headers"].astype(np.int64) + rows["body"]
        return sizes

    def first(self, number: int) -> Piece:
        """The next so many records as a piece of their own."""
        if self.start == 0 and number == self.batch.count:
            return self
        chosen = np.arange(self.start, self.start + number)
        rows = chosen if self.rows is None else self.rows[chosen]
        return self._replace(rows=rows, batch=self.batch.select(chosen), start=0)

    def after(self, number: int) -> Piece:
        """What is left behind these. Nothing is copied, so that a large batch can be cut a thousand times."""
        return self._replace(start=self.start + number)

    @property
    def first_sequence(self) -> int:
        """Of the first record that is left."""
        return int(self.batch.sequences()[self.start]) if self.start else self.batch.first_sequence
