"""What of a delivered batch a link carries, and under which numbers. Pure.

At the other side a record's publisher is the link, and its publisher sequence is the sequence that it has here: so what is repeated
after a kill is known there and left out, and each record can be named there as here. What another site brought isn't
carried on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from broker_core.batch import Batch, Rows
from broker_core.errors import ClientError
from broker_core.names import publisher_origin


class Part(NamedTuple):
    """A batch to publish there: its records' first and last number, and its bytes."""

    first: int
    last: int
    batch: bytearray


def parts_of(batch: Batch, after: int, publisher: str) -> list[Part]:
    """What goes of a batch, without what the other side has up to the sequence `after`. One part nearly always; none of what
    another site brought."""
    if publisher_origin(batch.publisher_name):
        return []
    sequences = batch.sequences()
    rows = np.flatnonzero(sequences > np.uint64(after))
    return _parts(batch, rows, publisher) if len(rows) else []


def _parts(batch: Batch, rows: Rows, publisher: str) -> list[Part]:
    try:
        made = batch.republished(publisher, rows)
    except ClientError:
        # Its publisher's name was shorter, or its numbers lie far apart: a batch that was just within the limits isn't any more.
        if len(rows) == 1:
            raise
        half = len(rows) // 2
        return _parts(batch, rows[:half], publisher) + _parts(batch, rows[half:], publisher)
    numbers = batch.sequences()[rows]
    return [Part(int(numbers[0]), int(numbers[-1]), made)]
