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
    until: int
    """Step from which on it isn't idle."""


class IdleUsages(NamedTuple):
    """Usage of several clients that are idle during the window."""

    numbers: Ints
    pools: Ints
    held: tuple[Ints, Ints]
    """Bytes held, by kind, row and moment."""


def stack_usages(rows: Sequence[IdleUsage], moments: int) -> IdleUsages:
    """Combine usages. They are 0 from the step at which a client isn't idle."""
    memory, disk = np.zeros((2, len(rows), moments), np.int64)
    for place, row in enumerate(rows):
        memory[place, : row.until] = row.memory[: row.until]
        disk[place, : row.until] = row.disk[: row.until]
    numbers = np.array([row.number for row in rows], np.int64)
    return IdleUsages(numbers, np.array([row.pool for row in rows], np.int64), (memory, disk))


class IdleTotals:
    """Sums over the idle clients of a window."""

    def __init__(self, rows: Sequence[IdleUsages], pools: int, moments: int) -> None:
        self.rows = [one for one in rows if len(one.numbers)]
        self.used: Ints = np.zeros((2, pools, moments), np.int64)
        """Bytes used, by kind, pool and moment."""
        most: Ints = np.zeros((2, pools, moments), np.int64)
        for one in self.rows:
            for kind in KINDS:
                for pool in range(pools if one.held[kind].any() else 0):
                    table = _of(pool, one.pools, one.held[kind])
                    self.used[kind, pool] += table.sum(axis=0)
                    most[kind, pool, 1:] += np.maximum(table[:, 1:], table[:, :-1]).sum(axis=0)
        self.most: Ints = most.max(axis=2)
        """Maximum usage on the way to any step, in any order of moves; by kind and pool."""


class IdleClients:
    """Idle clients of a window in the order of their moves.

    An index in this class is a position in that order.
    """

    def __init__(self, held: IdleTotals) -> None:
        self._held = held
        numbers = np.concatenate([_NOBODY, *(rows.numbers for rows in held.rows)])
        order = np.argsort(numbers)
        self.numbers: list[int] = numbers[order].tolist()
        self._whose: Ints = np.concatenate([_NOBODY, *(rows.pools for rows in held.rows)])[order]
        moments = held.used.shape[2]
        self._held_by: list[Ints] = [
            np.concatenate([np.zeros((0, moments), np.int64), *(rows.held[kind] for rows in held.rows)])[
                order
            ]
            for kind in KINDS
        ]
        """Bytes held, by kind, index and moment."""
        self.step = 0
        self.moved = 0
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
        return bool((self._highest[:, :, step] > spare).any())

    @cached_property
    def _highest(self) -> Ints:
        found: Ints = self._held.used.copy()
        for kind in KINDS:
            for pool in range(found.shape[1]):
                table = _of(pool, self._whose, self._held_by[kind])
                rise = np.cumsum(np.diff(table, axis=1), axis=0).max(axis=0, initial=0)
                found[kind, pool, 1:] = self._held.used[kind, pool, :-1] + rise
        return found

    def start_step(self, step: int) -> None:
        """Begin a step: no client has moved to it."""
        self.step, self.moved = step, 0
        self._sum_up()

    def _sum_up(self) -> None:
        pools, step = range(self._held.used.shape[1]), self.step
        changes = [table[:, step] - table[:, step - 1] for table in self._held_by]
        self._growth = [[np.where(self._whose == pool, one, 0) for pool in pools] for one in changes]
        self._sums = [[np.append(0, np.cumsum(one)) for one in of] for of in self._growth]
        self._rises = [[int(one.sum(where=one > 0)) for one in of] for of in self._growth]

    def index_of(self, number: int) -> int:
        """Return the number of clients before a trace."""
        return bisect_left(self.numbers, number)

    def first_exceeding(self, stop: int, room: Sequence[tuple[int, int]]) -> int:
        """Return the first client before `stop` whose growth exceeds the room of a pool; else `stop`.

        `room`: memory and disk left in each pool.
        """
        for pool, kinds in enumerate(room):
            for kind, limit in enumerate(kinds):
                if self._rises[kind][pool] <= limit:
                    continue
                start, sums = self.moved, self._sums[kind][pool]
                over = sums[start + 1 : stop + 1] > limit + sums[start]
                over &= self._growth[kind][pool][start:stop] > 0
                if over.any():
                    stop = start + int(np.argmax(over))
        return stop

    def move(self, stop: int) -> list[tuple[int, int]]:
        """Move the clients before `stop` to the step; return the change of memory and disk of each pool."""
        start, self.moved = self.moved, stop
        if start == stop:
            return []
        memory, disk = ([int(one[stop] - one[start]) for one in of] for of in self._sums)
        return list(zip(memory, disk, strict=True))

    def largest(self, pool: int, kind: int, wanted: int) -> list[int]:
        """Return the `wanted` clients with most usage, and those equal to the last of them."""
        mine = np.where(self._whose == pool, self._now(kind), 0)
        least = int(np.partition(mine, -wanted)[-wanted]) if wanted < len(mine) else 0
        return _places(mine >= max(least, 1))

    def all_holders(self, pool: int) -> list[int]:
        """Return the clients with any usage of a pool."""
        return _places((self._whose == pool) & (self._now(MEMORY) + self._now(DISK) > 0))

    def _now(self, kind: int) -> Ints:
        table = self._held_by[kind]
        return np.concatenate((table[: self.moved, self.step], table[self.moved :, self.step - 1]))

    def step_of(self, place: int) -> int:
        """Return the moment at which a client is."""
        return self.step if place < self.moved else self.step - 1

    def remove(self, place: int) -> tuple[int, int, int]:
        """Remove a client that isn't idle from this step on; return its pool, memory and disk."""
        pool, moment, step = int(self._whose[place]), self.step_of(place), self.step
        memory, disk = (table[place] for table in self._held_by)
        found = pool, int(memory[moment]), int(disk[moment])
        for kind, held in enumerate((memory, disk)):
            self._held.used[kind, pool, step:] -= held[step:]
            held[step - 1 :] = 0
        self._sum_up()
        return found


_NOBODY: Final[Ints] = np.zeros(0, np.int64)


def _of(pool: int, whose: Ints, table: Ints) -> Ints:
    mine = whose == pool
    return table if mine.all() else table[mine]


def _places(chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[int]:
    found: list[int] = np.flatnonzero(chosen).tolist()
    return found
