"""Limits on failed logins per address, across all user names, and on concurrent password hashing.

django-axes locks a user name at an address. This limit stops an attacker that tries one password on each of
many names. The state is in memory, for a bounded number of addresses, and is lost at a restart.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from threading import BoundedSemaphore, Lock

from django.conf import settings

from broker_core.errors import OperatorError
from console.access.networks import rate_limit_prefix

MAX_FAILURES = 30
"""Failed logins of one address, or of one IPv6 /64 network, after which it must wait."""
FORGIVEN_INTERVAL_S = 10.0
"""Seconds after which one failure is forgiven."""
MAX_ADDRESSES = 10_000
"""Maximum addresses remembered."""
HASHED_AT_ONCE = 2
"""Maximum passwords hashed at the same time."""
MAX_WAITING = 16
"""Maximum logins that wait for a hashing slot. A further login is refused with `login_busy`."""
LONGEST_WAIT_S = 20.0
"""Maximum seconds that a login waits for a hashing slot."""
LOCK_S = int(settings.AXES_COOLOFF_TIME * 3600)
"""Seconds for which django-axes locks a name at an address."""
LOCKED_NAME = f"Too many wrong passwords for this name. Try again in {LOCK_S // 60} minutes."
LOCK_FIX = "Wait, or ask another operator to run `manage.py axes_reset`."
REPORT_ADDRESSES = 20
"""Maximum addresses per minute whose refusals get their own audit event."""


class LoginThrottle:
    """Failed logins by address, as a leaky bucket. Times are seconds since 1970."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._failures: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._minute, self._reported = 0, set[str]()

    def wait_s(self, address: str, now: float) -> float:
        """Return the seconds until a login from this address is accepted; 0 means now."""
        with self._lock:
            return (
                max(self._level(rate_limit_prefix(address), now) - MAX_FAILURES + 1, 0.0)
                * FORGIVEN_INTERVAL_S
            )

    def record_failure(self, address: str, now: float) -> None:
        """Record a failed login."""
        key = rate_limit_prefix(address)
        with self._lock:
            self._failures[key] = (min(self._level(key, now) + 1, MAX_FAILURES), now)
            self._failures.move_to_end(key)
            while len(self._failures) > MAX_ADDRESSES:
                self._failures.popitem(last=False)

    def should_report(self, address: str, now: float) -> bool:
        """Return whether a refusal should get an audit event.

        The first refusal of an address in a minute does, for at most `REPORT_ADDRESSES` addresses.
        """
        minute, key = int(now // 60), rate_limit_prefix(address)
        with self._lock:
            if minute != self._minute:
                self._minute, self._reported = minute, set()
            new = key not in self._reported and len(self._reported) < REPORT_ADDRESSES
            if new:
                self._reported.add(key)
            return new

    def clear(self) -> None:
        """Forget all failures."""
        with self._lock:
            self._failures.clear()
            self._reported.clear()

    def _level(self, key: str, now: float) -> float:
        """Return the failures of an address that are not forgiven yet."""
        level, at = self._failures.get(key, (0.0, now))
        return max(level - max(now - at, 0.0) / FORGIVEN_INTERVAL_S, 0.0)


LIMIT = LoginThrottle()
"""Throttle of this process."""
_hashing_slots = BoundedSemaphore(HASHED_AT_ONCE)
_waiting = BoundedSemaphore(HASHED_AT_ONCE + MAX_WAITING)


@contextmanager
def hashing_slot() -> Iterator[None]:
    """Hold a slot for hashing a password, so that many simultaneous logins leave CPU time for other requests.

    Raises OperatorError `login_busy`.
    """
    if not _waiting.acquire(blocking=False):
        raise _busy()
    try:
        if not _hashing_slots.acquire(timeout=LONGEST_WAIT_S):
            raise _busy()
        try:
            yield
        finally:
            _hashing_slots.release()
    finally:
        _waiting.release()


def _busy() -> OperatorError:
    return OperatorError(
        "login_busy", "The console is processing too many logins.", "Try again in a few seconds."
    )
