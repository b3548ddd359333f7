"""Records and bytes of a log by topic, publisher and hour, counted by numpy batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

from broker_core.errors import OperatorError
from broker_core.journal.tools.search import Found

COLUMNS = ("topic", "publisher", "hour")
MAX_GROUPS = 1_000_000
_HOUR_NS = 3_600 * 10**9


class Count(NamedTuple):
    """What belongs together: the values of the columns counted by, records, and bytes of their headers and bodies."""

    values: tuple[str, ...]
    records: int
    nbytes: int


_Sums = dict[tuple[str | int, ...], list[int]]
"""Records and bytes by the values of some columns; an hour is its number since 1970."""


def tally(found: Iterable[Found], *bys: Sequence[str]) -> list[tuple[tuple[str, ...], list[Count]]]:
    """Count matches in one pass by each of these combinations of COLUMNS; (combination, its counts) of each. Raises
    OperatorError too_many_groups above a million of one."""
    wanted: list[tuple[list[int], _Sums]] = [([COLUMNS.index(column) for column in by], {}) for by in bys]
    for one in found:
        batch = one.batch
        table = batch.rows if one.rows is None else batch.rows[one.rows]
        lengths = table["headers"].astype(np.int64) + table["body"]
        records = np.bincount(table["topic"]).tolist()
        nbytes = np.bincount(table["topic"], weights=lengths).tolist()
        for topic, count in enumerate(records):  # they are numbered from 1
            if not count:
                continue
            values = (batch.topics[topic - 1], batch.publisher_name, batch.accepted_at // _HOUR_NS)
            for columns, sums in wanted:
                known = sums.setdefault(tuple([values[column] for column in columns]), [0, 0])
                known[0] += count
                known[1] += int(nbytes[topic])
                if len(sums) > MAX_GROUPS:
                    raise OperatorError(
                        "too_many_groups",
                        f"There are more than {MAX_GROUPS:,} combinations of"
                        f" {', '.join(COLUMNS[column] for column in columns)}.",
                        "Count by fewer columns, or narrow what is counted.",
                    )
    return [(tuple(by), _counts(by, sums)) for by, (_, sums) in zip(bys, wanted, strict=True)]


def _counts(by: Sequence[str], sums: _Sums) -> list[Count]:
    """By time when counted by the hour alone, else the largest first."""
    made = [Count(tuple(map(_text, values)), records, nbytes) for values, (records, nbytes) in sums.items()]
    return sorted(made) if tuple(by) == ("hour",) else sorted(made, key=lambda one: (-one.nbytes, one.values))


def _text(value: str | int) -> str:
    if isinstance(value, str):
        return value
    return datetime.fromtimestamp(value * 3_600, UTC).strftime("%Y-%m-%dT%H:00Z")
