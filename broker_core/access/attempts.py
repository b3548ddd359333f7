"""How often logons failed of late, by who tried and from where: guessing gets slow, and then it waits."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

WINDOW_MS = 60_000
"""After so long without a failure the past is forgotten."""
BY_USER = 10
"""Failures of one user name from one remote address."""
BY_REMOTE = 100
"""Failures from one remote address, whatever the names."""
LONGEST_DELAY_MS = 2_000
MAX_REMEMBERED = 10_000


class _Failures(NamedTuple):
    number: int
    at: int


class Attempts:
    """The failures that are remembered. Times are in milliseconds of a monotonic clock."""

    def __init__(self) -> None:
        self._failures: OrderedDict[tuple[str, ...], _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def wait_ms(self, remote: str, user: str, now: int) -> int:
        """How long until this user may try again from there; 0 is now."""
        waits = [
            failures.at + WINDOW_MS - now
            for key, limit in (((remote, user), BY_USER), ((remote,), BY_REMOTE))
            if (failures := self._of(key, now)).number >= limit
        ]
        return max(waits, default=0)

    def failed(self, remote: str, user: str, now: int) -> int:
        """One more failure; how many milliseconds to let the answer wait."""
        for key in ((remote, user), (remote,)):
            self._failures[key] = _Failures(self._of(key, now).number + 1, now)
            self._failures.move_to_end(key)
        while len(self._failures) > MAX_REMEMBERED:
            self._failures.popitem(last=False)
        return int(min(LONGEST_DELAY_MS, 100 * 2 ** min(self._failures[remote, user].number - 1, 10)))

    def succeeded(self, remote: str, user: str) -> None:
        """This user knows the secret: what failed before were slips. What failed under other names still counts."""
        self._failures.pop((remote, user), None)

    def _of(self, key: tuple[str, ...], now: int) -> _Failures:
        failures = self._failures.get(key)
        return failures if failures is not None and now - failures.at < WINDOW_MS else _Failures(0, now)
