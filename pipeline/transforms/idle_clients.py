"""Pool usage of idle clients in a window of a back-test. Pure.

Also their moves to a step in which a pool may exceed its limit. At each step clients move one after the
other, in the order of their traces. The guard checks a pool when a client's usage of it grows. While all
clients are idle this is a running sum: the guard moves only the client that exceeds the limit.

Pools are numbered here. Moments are the step before a window (0) and the window's steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from pipeline.transforms.traces import Ints

MEMORY: Final = 0
DISK: Final = 1
KINDS: Final = (MEMORY, DISK)


class IdleUsage(NamedTuple):
    """Usage of one client at each moment."""

    number: int
    """Index of its trace."""
    pool: int
    memory: Ints
    disk: Ints
    active_from: int
    """Step from which on it isn't idle."""


class IdleUsages(NamedTuple):
    """Usage of several clients that are idle during the window."""

    numbers: Ints
    pools: Ints
    bytes_used: tuple[Ints, Ints]
    """Bytes held, by kind, row and moment."""


def stack_usages(rows: Sequence[IdleUsage], moments: int) -> IdleUsages:
    """Combine usages. They are 0 from the step at which a client isn't idle."""
    memory, disk = np.zeros((2, len(rows), moments), np.int64)
    for index, row in enumerate(rows):
        memory[index, : row.active_from] = row.memory[: row.active_from]
        disk[index, : row.active_from] = row.disk[: row.active_from]
    numbers = np.array([row.number for row in rows], np.int64)
    return IdleUsages(numbers, np.array([row.pool for row in rows], np.int64), (memory, disk))


class IdleTotals:
    """Sums over the idle clients of a window."""

    def __init__(self, rows: Sequence[IdleUsages], pools: int, moments: int) -> None:
        self.rows = [usages for usages in rows if len(usages.numbers)]
        self.used: Ints = np.zeros((2, pools, moments), np.int64)
        """Bytes used, by kind, pool and moment."""
        max_used: Ints = np.zeros((2, pools, moments), np.int64)
        for usages in self.rows:
            for kind in KINDS:
                for pool in range(pools if usages.bytes_used[kind].any() else 0):
                    table = _select_pool(pool, usages.pools, usages.bytes_used[kind])
                    self.used[kind, pool] += table.sum(axis=0)
                    max_used[kind, pool, 1:] += np.maximum(table[:, 1:], table[:, :-1]).sum(axis=0)
        self.max_used: Ints = max_used.max(axis=2)
        """Maximum usage on the way to any step, in any order of moves; by kind and pool."""


class IdleClients:
    """Idle clients of a window in the order of their moves.

    An index in this class is a position in that order.
    """

    def __init__(self, totals: IdleTotals) -> None:
        self._totals = totals
        numbers = np.concatenate([_NO_CLIENTS, *(rows.numbers for rows in totals.rows)])
        order = np.argsort(numbers)
        self.numbers: list[int] = numbers[order].tolist()
        self._client_pools: Ints = np.concatenate([_NO_CLIENTS, *(rows.pools for rows in totals.rows)])[order]
        moments = totals.used.shape[2]
        self._usage_tables: list[Ints] = [
            np.concatenate(
                [np.zeros((0, moments), np.int64), *(rows.bytes_used[kind] for rows in totals.rows)]
            )[order]
            for kind in KINDS
        ]
        """Bytes held, by kind, index and moment."""
        self.step = 0
        self.moved_count = 0
        """Number of clients that have moved to the step."""
        self._growth: list[list[Ints]] = []
        """By kind and pool: change of each client's usage in this step; 0 for clients of other pools."""
        self._sums: list[list[Ints]] = []
        """By kind and pool: change of the usage after the first n moves."""
        self._rises: list[list[int]] = []
        """By kind and pool: sum of all increases."""

    def may_exceed(self, step: int, spare: Ints) -> bool:
        """Whether a pool's usage exceeds `spare` on the way to a step, without other clients.

        `spare`: bytes by kind and pool.
        """
        return bool((self._peak_usage[:, :, step] > spare).any())

    @cached_property
    def _peak_usage(self) -> Ints:
        peaks: Ints = self._totals.used.copy()
        for kind in KINDS:
            for pool in range(peaks.shape[1]):
                table = _select_pool(pool, self._client_pools, self._usage_tables[kind])
                rise = np.cumsum(np.diff(table, axis=1), axis=0).max(axis=0, initial=0)
                peaks[kind, pool, 1:] = self._totals.used[kind, pool, :-1] + rise
        return peaks

    def start_step(self, step: int) -> None:
        """Begin a step: no client has moved to it."""
        self.step, self.moved_count = step, 0
        self._update_sums()

    def _update_sums(self) -> None:
        pools, step = range(self._totals.used.shape[1]), self.step
        changes = [table[:, step] - table[:, step - 1] for table in self._usage_tables]
        self._growth = [[np.where(self._client_pools == pool, one, 0) for pool in pools] for one in changes]
        self._sums = [[np.append(0, np.cumsum(one)) for one in of] for of in self._growth]
        self._rises = [[int(one.sum(where=one > 0)) for one in of] for of in self._growth]

    def index_of(self, number: int) -> int:
        """Return the number of clients before a trace."""
        return bisect_left(self.numbers, number)

    def find_first_exceeding(self, stop: int, free_bytes: Sequence[tuple[int, int]]) -> int:
        """Return the first client before `stop` whose growth exceeds the room of a pool; else `stop`.

        `free_bytes`: memory and disk left in each pool.
        """
        for pool, kinds in enumerate(free_bytes):
            for kind, limit in enumerate(kinds):
                if self._rises[kind][pool] <= limit:
                    continue
                start, sums = self.moved_count, self._sums[kind][pool]
                exceeds = sums[start + 1 : stop + 1] > limit + sums[start]
                exceeds &= self._growth[kind][pool][start:stop] > 0
                if exceeds.any():
                    stop = start + int(np.argmax(exceeds))
        return stop

    def move(self, stop: int) -> list[tuple[int, int]]:
        """Move the clients before `stop` to the step; return the change of memory and disk of each pool."""
        start, self.moved_count = self.moved_count, stop
        if start == stop:
            return []
        memory, disk = ([int(one[stop] - one[start]) for one in of] for of in self._sums)
        return list(zip(memory, disk, strict=True))

    def find_largest(self, pool: int, kind: int, number: int) -> list[int]:
        """Return the `number` clients with most usage, and those equal to the last of them."""
        usage = np.where(self._client_pools == pool, self._current_usage(kind), 0)
        minimum = int(np.partition(usage, -number)[-number]) if number < len(usage) else 0
        return _to_indices(usage >= max(minimum, 1))

    def find_holders(self, pool: int) -> list[int]:
        """Return the clients with any usage of a pool."""
        return _to_indices(
            (self._client_pools == pool) & (self._current_usage(MEMORY) + self._current_usage(DISK) > 0)
        )

    def _current_usage(self, kind: int) -> Ints:
        table = self._usage_tables[kind]
        return np.concatenate(
            (table[: self.moved_count, self.step], table[self.moved_count :, self.step - 1])
        )

    def get_step(self, index: int) -> int:
        """Return the moment at which a client is."""
        return self.step if index < self.moved_count else self.step - 1

    def remove(self, index: int) -> tuple[int, int, int]:
        """Remove a client that isn't idle from this step on; return its pool, memory and disk."""
        pool, moment, step = int(self._client_pools[index]), self.get_step(index), self.step
        memory, disk = (table[index] for table in self._usage_tables)
        removed = pool, int(memory[moment]), int(disk[moment])
        for kind, usage in enumerate((memory, disk)):
            self._totals.used[kind, pool, step:] -= usage[step:]
            usage[step - 1 :] = 0
        self._update_sums()
        return removed


_NO_CLIENTS: Final[Ints] = np.zeros(0, np.int64)


def _select_pool(pool: int, client_pools: Ints, table: Ints) -> Ints:
    is_in_pool = client_pools == pool
    return table if is_in_pool.all() else table[is_in_pool]


def _to_indices(is_chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[int]:
    indices: list[int] = np.flatnonzero(is_chosen).tolist()
    return indices
