"""One batch for several subscriptions of one client, in the journal's order across them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from broker_core.batch import Rows


def in_journal_order(count: int, wanted: Sequence[Rows | None]) -> list[tuple[int, Rows | None]]:
    """Cut what subscriptions want of a batch of `count` records into runs: (which subscription, its next rows).

    None is all rows. A record that several want comes once for each, in the order of the subscriptions, before the
    next record. Subscriptions that want nothing don't appear; one alone gets its rows uncut.
    """
    active = [number for number, rows in enumerate(wanted) if rows is None or len(rows)]
    if len(active) < 2:
        return [(number, wanted[number]) for number in active]
    every = np.arange(count)
    parts = [every if (rows := wanted[number]) is None else rows for number in active]
    rows = np.concatenate(parts)
    owners = np.repeat(np.array(active), [len(part) for part in parts])
    order = np.lexsort((owners, rows))
    rows, owners = rows[order], owners[order]
    cuts = np.flatnonzero(np.diff(owners)) + 1
    starts = [0, *cuts.tolist()]
    return [(int(owners[start]), part) for start, part in zip(starts, np.split(rows, cuts), strict=True)]
