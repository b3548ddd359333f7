"""How often logons failed of late, by who tried and from where: guessing gets slow, and then it waits.

Passwords that were right since the process began: who comes back with the same needn't be checked slowly again.

Kept are digests under a key that never leaves the process, one a user, and bound to the hash of the policy: a password that
was changed there is checked anew. What isn't found here is checked as ever, so a guess costs what it did.

Logons that were refused, gathered by remote address and minute, so that guessing can't fill whoever keeps them.
"""

from __future__ import annotations

import hmac
import secrets
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple

WINDOW_MS = 60_000
"""After so long without a failure the past is forgotten."""
BY_USER = 10
"""Failures of one user name from one remote address."""
BY_REMOTE = 100
"""Failures from one remote address, whatever the names."""
LONGEST_DELAY_MS = 2_000
MAX_REMEMBERED = 10_000


class _FailureCount(NamedTuple):
    number: int
    at: int


class FailedLogonTracker:
    """The failures that are remembered. Times are in milliseconds of a monotonic clock."""

    def __init__(self) -> None:
        self._failures: OrderedDict[tuple[str, ...], _FailureCount] = OrderedDict()

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

    def record_failure(self, remote: str, user: str, now: int) -> int:
        """One more failure; how many milliseconds to let the answer wait."""
        for key in ((remote, user), (remote,)):
            self._failures[key] = _FailureCount(self._of(key, now).number + 1, now)
            self._failures.move_to_end(key)
        while len(self._failures) > MAX_REMEMBERED:
            self._failures.popitem(last=False)
        return int(min(LONGEST_DELAY_MS, 100 * 2 ** min(self._failures[remote, user].number - 1, 10)))

    def record_success(self, remote: str, user: str) -> None:
        """This user knows the secret: what failed before were slips. What failed under other names still counts."""
        self._failures.pop((remote, user), None)

    def _of(self, key: tuple[str, ...], now: int) -> _FailureCount:
        failures = self._failures.get(key)
        return failures if failures is not None and now - failures.at < WINDOW_MS else _FailureCount(0, now)


MAX_PROVEN: Final = 10_000
"""Users; those who haven't come for the longest time go first."""


class VerifiedPasswordCache:
    """One instance's."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._digests: OrderedDict[str, bytes] = OrderedDict()

    def is_verified(self, user: str, password: str, hashed: str) -> bool:
        """Whether this password was right for the user's hash, as it is now in the policy."""
        known = self._digests.get(user)
        if known is None or not hmac.compare_digest(known, self._digest(password, hashed)):
            return False
        self._digests.move_to_end(user)
        return True

    def add(self, user: str, password: str, hashed: str) -> None:
        """It was right."""
        self._digests[user] = self._digest(password, hashed)
        self._digests.move_to_end(user)
        if len(self._digests) > MAX_PROVEN:
            self._digests.popitem(last=False)

    def _digest(self, password: str, hashed: str) -> bytes:
        return blake2b(f"{hashed}\0{password}".encode("utf-8", "surrogatepass"), key=self._key).digest()


REMOTES = 20
"""Addresses of one minute with an entry of their own; what the others tried is counted in one more."""
NAMES = 5
"""User and client names that an entry keeps."""
MAX_WAITING = 1_000
"""Entries kept while nobody takes them; with more the oldest go."""
LONGEST_NAME = 64
OTHERS = ""


@dataclass(slots=True)
class RefusedLogonEntry:
    """What was refused to one remote address within one minute (minutes since 1970). `remote` is "" for the others."""

    minute: int
    remote: str
    codes: Counter[str] = field(default_factory=Counter)
    transports: set[str] = field(default_factory=set)
    users: list[str] = field(default_factory=list)
    clients: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Logons."""
        return self.codes.total()


class RefusedLogonLog:
    """Belongs to the loop. `dropped` counts entries that waited for too long."""

    def __init__(self) -> None:
        self._minute = 0
        self._now: dict[str, RefusedLogonEntry] = {}
        self._waiting: deque[RefusedLogonEntry] = deque(maxlen=MAX_WAITING)
        self.dropped = 0

    def add(self, minute: int, remote: str, transport: str, code: str, user: str, client: str) -> None:
        """One more. Names come from whoever tries, and prove nothing."""
        self._turn(minute)
        if remote not in self._now and len(self._now) >= REMOTES:
            remote = OTHERS
        entry = self._now.setdefault(remote, RefusedLogonEntry(minute, remote))
        entry.codes[code] += 1
        entry.transports.add(transport)
        _remember(entry.users, user)
        _remember(entry.clients, client)

    def take(self, minute: int) -> list[RefusedLogonEntry]:
        """The entries of minutes before this one, oldest first; they are forgotten here."""
        self._turn(minute)
        taken = list(self._waiting)
        self._waiting.clear()
        return taken

    def restore(self, entries: list[RefusedLogonEntry]) -> None:
        """They couldn't be stored; there may be newer ones meanwhile."""
        self._wait([*entries, *self.take(self._minute)])

    def _turn(self, minute: int) -> None:
        if minute != self._minute:
            self._wait(self._now.values())
            self._minute, self._now = minute, {}

    def _wait(self, entries: Iterable[RefusedLogonEntry]) -> None:
        for entry in entries:
            self.dropped += len(self._waiting) == MAX_WAITING
            self._waiting.append(entry)


def _remember(names: list[str], name: str) -> None:
    # A NUL would be refused by the database, and other control characters deceive whoever reads them.
    shown = "".join(letter if letter.isprintable() else "?" for letter in name[:LONGEST_NAME])
    if shown and shown not in names and len(names) < NAMES:
        names.append(shown)
