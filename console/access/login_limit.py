"""How many logins may fail from one address, whatever names they are for, and how many passwords are hashed at once.

A name at an address is locked by django-axes. Whoever goes through a list of names, one password each, meets this here.
Held in memory, of so many addresses and no more; a restart forgets it.
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
"""Of one address, or of one IPv6 network of 64 bits, before it has to wait."""
FORGIVEN_INTERVAL_S = 10.0
"""One failure is forgotten after so long."""
MAX_ADDRESSES = 10_000
HASHED_AT_ONCE = 2
MAX_WAITING = 16
"""Logins that wait for their password to be hashed; the next is told to come again."""
LONGEST_WAIT_S = 20.0
LOCK_S = int(settings.AXES_COOLOFF_TIME * 3600)
"""How long django-axes locks a name at an address."""
LOCKED_NAME = f"Too many wrong passwords for this name. Try again in {LOCK_S // 60} minutes."
LOCK_FIX = "Wait, or ask another operator for `manage.py axes_reset`."
REPORT_ADDRESSES = 20
"""Addresses of a minute whose refusals have an audit event of their own."""


class LoginThrottle:
    """Failures of each address lately. Times are seconds since 1970."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._failures: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._minute, self._told = 0, set[str]()

    def wait_s(self, address: str, now: float) -> float:
        """Seconds until the next login from there is looked at; 0 is now."""
        with self._lock:
            return (
                max(self._level(rate_limit_prefix(address), now) - MAX_FAILURES + 1, 0.0)
                * FORGIVEN_INTERVAL_S
            )

    def record_failure(self, address: str, now: float) -> None:
        """A login from there was refused."""
        key = rate_limit_prefix(address)
        with self._lock:
            self._failures[key] = (min(self._level(key, now) + 1, MAX_FAILURES), now)
            self._failures.move_to_end(key)
            while len(self._failures) > MAX_ADDRESSES:
                self._failures.popitem(last=False)

    def should_report(self, address: str, now: float) -> bool:
        """Whether a refusal is the audit's: the first of an address and minute, of so many addresses."""
        minute, key = int(now // 60), rate_limit_prefix(address)
        with self._lock:
            if minute != self._minute:
                self._minute, self._told = minute, set()
            new = key not in self._told and len(self._told) < REPORT_ADDRESSES
            if new:
                self._told.add(key)
            return new

    def clear(self) -> None:
        """Everything."""
        with self._lock:
            self._failures.clear()
            self._told.clear()

    def _level(self, key: str, now: float) -> float:
        level, at = self._failures.get(key, (0.0, now))
        return max(level - max(now - at, 0.0) / FORGIVEN_INTERVAL_S, 0.0)


LIMIT = LoginThrottle()
_turns = BoundedSemaphore(HASHED_AT_ONCE)
_waiting = BoundedSemaphore(HASHED_AT_ONCE + MAX_WAITING)


@contextmanager
def hashing_slot() -> Iterator[None]:
    """A turn at hashing a password, so that many logins at once leave processors to everybody else. Raises login_busy."""
    if not _waiting.acquire(blocking=False):
        raise _busy()
    try:
        if not _turns.acquire(timeout=LONGEST_WAIT_S):
            raise _busy()
        try:
            yield
        finally:
            _turns.release()
    finally:
        _waiting.release()


def _busy() -> OperatorError:
    return OperatorError(
        "login_busy", "Too many people are logging in at present.", "Try again in a few seconds."
    )
