"""Records of logon attempts: failures that delay further attempts, verified passwords, and refused logons.

`FailedLogonTracker` slows down guessing per user and remote address, then blocks it for a minute.

`VerifiedPasswordCache` avoids the slow verification of a password that was correct before. It stores one
digest per user, under a key that never leaves the process. The digest includes the hash in the policy, so a
password that was changed there is verified again. A wrong guess is not in the cache, so it still costs a slow
verification.

`RefusedLogonLog` groups refused logons by remote address and minute, so that guessing cannot fill the audit
log.
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
"""Milliseconds without a failure after which earlier failures are forgotten."""
MAX_USER_FAILURES = 10
"""Number of failures of one user name from one remote address that blocks further attempts."""
MAX_REMOTE_FAILURES = 100
"""Number of failures from one remote address, with any names, that blocks further attempts."""
MAX_DELAY_MS = 2_000
"""Maximum milliseconds by which the answer to a failed logon is delayed."""
MAX_COUNTERS = 10_000
"""Maximum number of counters. The oldest ones are forgotten first."""


class _FailureCount(NamedTuple):
    number: int
    at: int


class FailedLogonTracker:
    """Counters of recent failed logons. Times are monotonic milliseconds."""

    def __init__(self) -> None:
        self._failures: OrderedDict[tuple[str, ...], _FailureCount] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def wait_ms(self, remote: str, user: str, now: int) -> int:
        """Return the milliseconds until this user may try again from this address; 0: now."""
        waits = [
            failures.at + WINDOW_MS - now
            for key, limit in (((remote, user), MAX_USER_FAILURES), ((remote,), MAX_REMOTE_FAILURES))
            if (failures := self._current_failures(key, now)).number >= limit
        ]
        return max(waits, default=0)

    def record_failure(self, remote: str, user: str, now: int) -> int:
        """Count a failure. Returns the milliseconds by which to delay the answer."""
        for key in ((remote, user), (remote,)):
            self._failures[key] = _FailureCount(self._current_failures(key, now).number + 1, now)
            self._failures.move_to_end(key)
        while len(self._failures) > MAX_COUNTERS:
            self._failures.popitem(last=False)
        return int(min(MAX_DELAY_MS, 100 * 2 ** min(self._failures[remote, user].number - 1, 10)))

    def record_success(self, remote: str, user: str) -> None:
        """Forget failures of a user who logged on.

        Failures under other names from the address still count.
        """
        self._failures.pop((remote, user), None)

    def _current_failures(self, key: tuple[str, ...], now: int) -> _FailureCount:
        failures = self._failures.get(key)
        return failures if failures is not None and now - failures.at < WINDOW_MS else _FailureCount(0, now)


MAX_VERIFIED_USERS: Final = 10_000
"""Maximum number of users in the cache. The least recently used ones are removed first."""


class VerifiedPasswordCache:
    """Cache of the passwords of one instance that were verified since the process started."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._digests: OrderedDict[str, bytes] = OrderedDict()

    def is_verified(self, user: str, password: str, hashed: str) -> bool:
        """Return whether this password was verified for the user, with the hash that the policy has now."""
        known = self._digests.get(user)
        if known is None or not hmac.compare_digest(known, self._digest(password, hashed)):
            return False
        self._digests.move_to_end(user)
        return True

    def add(self, user: str, password: str, hashed: str) -> None:
        """Record that a password was verified."""
        self._digests[user] = self._digest(password, hashed)
        self._digests.move_to_end(user)
        if len(self._digests) > MAX_VERIFIED_USERS:
            self._digests.popitem(last=False)

    def _digest(self, password: str, hashed: str) -> bytes:
        return blake2b(f"{hashed}\0{password}".encode("utf-8", "surrogatepass"), key=self._key).digest()


MAX_REMOTES = 20
"""Maximum number of remote addresses with an entry of their own per minute. Others share one entry."""
MAX_NAMES = 5
"""Maximum number of user names, and of client names, in an entry."""
MAX_PENDING_ENTRIES = 1_000
"""Maximum number of entries that wait to be taken. The oldest ones are dropped first."""
MAX_NAME_CHARACTERS = 64
"""Characters to which names are truncated."""
SHARED_ENTRY_REMOTE = ""
"""Remote address of the shared entry."""


@dataclass(slots=True)
class RefusedLogonEntry:
    """Refused logons of one remote address within one minute (counted since 1970).

    `remote` is "" for the entry that other addresses share.
    """

    minute: int
    remote: str
    codes: Counter[str] = field(default_factory=Counter)
    transports: set[str] = field(default_factory=set)
    users: list[str] = field(default_factory=list)
    clients: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Number of refused logons."""
        return self.codes.total()


class RefusedLogonLog:
    """Log of refused logons, for use on the event loop only. `dropped` counts entries that were lost."""

    def __init__(self) -> None:
        self._minute = 0
        self._current_entries: dict[str, RefusedLogonEntry] = {}
        self._pending: deque[RefusedLogonEntry] = deque(maxlen=MAX_PENDING_ENTRIES)
        self.dropped = 0

    def add(self, minute: int, remote: str, transport: str, code: str, user: str, client: str) -> None:
        """Add a refused logon. The names are claims of the peer and prove nothing."""
        self._start_minute(minute)
        if remote not in self._current_entries and len(self._current_entries) >= MAX_REMOTES:
            remote = SHARED_ENTRY_REMOTE
        entry = self._current_entries.setdefault(remote, RefusedLogonEntry(minute, remote))
        entry.codes[code] += 1
        entry.transports.add(transport)
        _add_name(entry.users, user)
        _add_name(entry.clients, client)

    def take(self, minute: int) -> list[RefusedLogonEntry]:
        """Return and remove the entries of earlier minutes, oldest first."""
        self._start_minute(minute)
        entries = list(self._pending)
        self._pending.clear()
        return entries

    def restore(self, entries: list[RefusedLogonEntry]) -> None:
        """Put back entries that could not be stored, before newer ones."""
        self._add_pending([*entries, *self.take(self._minute)])

    def _start_minute(self, minute: int) -> None:
        if minute != self._minute:
            self._add_pending(self._current_entries.values())
            self._minute, self._current_entries = minute, {}

    def _add_pending(self, entries: Iterable[RefusedLogonEntry]) -> None:
        for entry in entries:
            self.dropped += len(self._pending) == MAX_PENDING_ENTRIES
            self._pending.append(entry)


def _add_name(names: list[str], name: str) -> None:
    # Replace control characters: the database rejects NUL, and others could deceive readers.
    printable = "".join(letter if letter.isprintable() else "?" for letter in name[:MAX_NAME_CHARACTERS])
    if printable and printable not in names and len(names) < MAX_NAMES:
        names.append(printable)
