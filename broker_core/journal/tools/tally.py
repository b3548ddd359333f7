"""Records and bytes of a log by topic, publisher and hour, counted by numpy a few thousand batches at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from broker_core.errors import OperatorError
from broker_core.journal.tools.search import Found

COLUMNS = ("topic", "publisher", "hour")
MAX_GROUPS = 1_000_000
BATCHES_AT_ONCE = 4_096
RECORDS_AT_ONCE = 1_000_000
_HOUR_NS = 3_600 * 10**9

Ints = npt.NDArray[np.int64]


class Count(NamedTuple):
    """What belongs together: the values of the columns counted by, records, and bytes of their headers and bodies."""

    values: tuple[str, ...]
    records: int
    nbytes: int


class Tally:
    """Counts of one combination of COLUMNS. Raises OperatorError too_many_groups above a million."""

    def __init__(self, by: Sequence[str]) -> None:
        self.by = tuple(by)
        self._at = [COLUMNS.index(column) for column in by]
        self._sums: dict[tuple[int, ...], list[int]] = {}

    def add(self, columns: Sequence[Ints], lengths: Ints) -> None:
        """Take records: the numbers of their values in each of COLUMNS, and their lengths."""
        chosen = [columns[at] for at in self._at]
        values, key = [], np.zeros(len(lengths), np.int64)
        for column in chosen:
            distinct, codes = np.unique(column, return_inverse=True)
            key = key * len(distinct) + codes
            values.append(distinct)
        groups, first, members = np.unique(key, return_index=True, return_inverse=True)
        records = np.bincount(members, minlength=len(groups))
        nbytes = np.bincount(members, weights=lengths, minlength=len(groups))
        names = np.stack([column[first] for column in chosen], axis=1).tolist()
        for name, count, size in zip(names, records.tolist(), nbytes.tolist(), strict=True):
            known = self._sums.setdefault(tuple(name), [0, 0])
            known[0] += count
            known[1] += int(size)
        if len(self._sums) > MAX_GROUPS:
            raise OperatorError(
                "too_many_groups",
                f"There are more than {MAX_GROUPS:,} combinations of {', '.join(self.by)}.",
                "Count by fewer columns, or narrow what is counted.",
            )

    def counts(self, names: _Names) -> list[Count]:
        """The groups: by time when counted by the hour alone, else the largest first."""
        made = [
            Count(tuple(names.text(at, number) for at, number in zip(self._at, key, strict=True)), *sums)
            for key, sums in self._sums.items()
        ]
        return (
            sorted(made) if self.by == ("hour",) else sorted(made, key=lambda one: (-one.nbytes, one.values))
        )


class _Names:
    """Numbers for topics and publishers. Hours are their own."""

    def __init__(self) -> None:
        self._numbers: tuple[dict[str, int], dict[str, int]] = ({}, {})
        self._texts: tuple[list[str], list[str]] = ([], [])
        self._tables: dict[tuple[str, ...], Ints] = {}

    def number(self, column: int, text: str) -> int:
        numbers = self._numbers[column]
        known = numbers.get(text)
        if known is None:
            known = numbers[text] = len(numbers)
            self._texts[column].append(text)
        return known

    def topics(self, topics: tuple[str, ...]) -> Ints:
        """The numbers of a batch's topics, in the order of its dictionary."""
        table = self._tables.get(topics)
        if table is None:
            if len(self._tables) > BATCHES_AT_ONCE:
                self._tables.clear()
            table = self._tables[topics] = np.array([self.number(0, topic) for topic in topics], np.int64)
        return table

    def text(self, column: int, number: int) -> str:
        if column == 2:
            return datetime.fromtimestamp(number * 3_600, UTC).strftime("%Y-%m-%dT%H:00Z")
        return self._texts[column][number]


def tally(found: Iterable[Found], *bys: Sequence[str]) -> list[tuple[tuple[str, ...], list[Count]]]:
    """Count matches in one pass by each of these combinations of COLUMNS; (combination, its counts) of each."""
    tallies, names = [Tally(by) for by in bys], _Names()
    for group in _groups(found):
        columns, lengths = _columns(group, names)
        for one in tallies:
            one.add(columns, lengths)
    return [(one.by, one.counts(names)) for one in tallies]


def _groups(found: Iterable[Found]) -> Iterator[list[Found]]:
    group: list[Found] = []
    records = 0
    for one in found:
        group.append(one)
        records += one.batch.count
        if len(group) >= BATCHES_AT_ONCE or records >= RECORDS_AT_ONCE:
            yield group
            group, records = [], 0
    if group:
        yield group


def _columns(group: list[Found], names: _Names) -> tuple[tuple[Ints, Ints, Ints], Ints]:
    """The row tables of many batches as one: per record the topic, the publisher, the hour, and the length."""
    tables = [one.batch.rows if one.rows is None else one.batch.rows[one.rows] for one in group]
    rows = np.concatenate(tables)
    counts = np.array(list(map(len, tables)))
    topics = [names.topics(one.batch.topics) for one in group]
    bases = np.cumsum([0, *map(len, topics)])[:-1]
    # Row topics count from 1.
    topic = np.concatenate(topics)[np.repeat(bases, counts) + rows["topic"] - 1]
    publisher = np.repeat([names.number(1, one.batch.publisher_name) for one in group], counts)
    hour = np.repeat([one.batch.accepted_at // _HOUR_NS for one in group], counts)
    return (topic, publisher, hour), rows["headers"].astype(np.int64) + rows["body"]
