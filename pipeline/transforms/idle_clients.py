"""What those who rest hold of the pools in a window of a back-test, and their moves to a step in which a pool may pass its limit. Pure.

At each step clients move one after the other, in the order of their traces, and a pool is looked at whenever one of them takes
more of it. Where everybody rests that is a running sum: only who passes the limit by it is moved by the guard.

Pools have numbers here, moments are the step before a window (0) and its steps.
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
    """What one client holds at each moment."""

    number: int
    """Of its trace."""
    pool: int
    memory: Ints
    disk: Ints
    until: int
    """From this step on it rests no more."""


class IdleUsages(NamedTuple):
    """The same of several who rest through the window."""

    numbers: Ints
    pools: Ints
    held: tuple[Ints, Ints]
    """By kind, row and moment."""


def stack_usages(rows: Sequence[IdleUsage], moments: int) -> IdleUsages:
    """Nothing from where one rests no more."""
    memory, disk = np.zeros((2, len(rows), moments), np.int64)
    for place, row in enumerate(rows):
        memory[place, : row.until] = row.memory[: row.until]
        disk[place, : row.until] = row.disk[: row.until]
    numbers = np.array([row.number for row in rows], np.int64)
    return IdleUsages(numbers, np.array([row.pool for row in rows], np.int64), (memory, disk))


class IdleTotals:
    """The sums over those who rest in a window."""

    def __init__(self, rows: Sequence[IdleUsages], pools: int, moments: int) -> None:
        self.rows = [one for one in rows if len(one.numbers)]
        self.used: Ints = np.zeros((2, pools, moments), np.int64)
        """By kind, pool and moment."""
        most: Ints = np.zeros((2, pools, moments), np.int64)
        for one in self.rows:
            for kind in KINDS:
                for pool in range(pools if one.held[kind].any() else 0):
                    table = _of(pool, one.pools, one.held[kind])
                    self.used[kind, pool] += table.sum(axis=0)
                    most[kind, pool, 1:] += np.maximum(table[:, 1:], table[:, :-1]).sum(axis=0)
        self.most: Ints = most.max(axis=2)
        """The most that can come together on the way to any of the steps, by kind and pool, in whatever order they move."""


class IdleClients:
    """Those who rest in a window, in the order of their moves from one step to the next. A place is one's in it."""

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
        """By kind, place and moment."""
        self.step = 0
        self.moved = 0
        """How many have moved to the step already."""
        self._growth: list[list[Ints]] = []
        """By kind and pool: of each who takes more of it in this step, how much; of the others how much less, or 0."""
        self._sums: list[list[Ints]] = []
        """By kind and pool: how much more is used when so many have moved."""
        self._rises: list[list[int]] = []
        """By kind and pool: how much more they take who take more."""

    def may_exceed(self, step: int, spare: Ints) -> bool:
        """Whether more of a pool is used on the way to a step than there is to spare by kind and pool, if nobody else uses any."""
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
        """Nobody has moved to it yet."""
        self.step, self.moved = step, 0
        self._sum_up()

    def _sum_up(self) -> None:
        pools, step = range(self._held.used.shape[1]), self.step
        changes = [table[:, step] - table[:, step - 1] for table in self._held_by]
        self._growth = [[np.where(self._whose == pool, one, 0) for pool in pools] for one in changes]
        self._sums = [[np.append(0, np.cumsum(one)) for one in of] for of in self._growth]
        self._rises = [[int(one.sum(where=one > 0)) for one in of] for of in self._growth]

    def index_of(self, number: int) -> int:
        """How many come before a trace."""
        return bisect_left(self.numbers, number)

    def first_exceeding(self, stop: int, room: Sequence[tuple[int, int]]) -> int:
        """Of those up to a place, the first whose growth takes a pool over what it has room for by kind; `stop` if nobody does."""
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
        """They have moved up to a place: by how much memory and disk each pool's use changes."""
        start, self.moved = self.moved, stop
        if start == stop:
            return []
        memory, disk = ([int(one[stop] - one[start]) for one in of] for of in self._sums)
        return list(zip(memory, disk, strict=True))

    def largest(self, pool: int, kind: int, wanted: int) -> list[int]:
        """The places of so many that hold most by now; all that hold as much as the last of them, too."""
        mine = np.where(self._whose == pool, self._now(kind), 0)
        least = int(np.partition(mine, -wanted)[-wanted]) if wanted < len(mine) else 0
        return _places(mine >= max(least, 1))

    def all_holders(self, pool: int) -> list[int]:
        """The places of all who hold anything."""
        return _places((self._whose == pool) & (self._now(MEMORY) + self._now(DISK) > 0))

    def _now(self, kind: int) -> Ints:
        table = self._held_by[kind]
        return np.concatenate((table[: self.moved, self.step], table[self.moved :, self.step - 1]))

    def step_of(self, place: int) -> int:
        """At which moment one is by now."""
        return self.step if place < self.moved else self.step - 1

    def remove(self, place: int) -> tuple[int, int, int]:
        """It rests no more from this step on: its pool, and what it holds of memory and disk by now."""
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
