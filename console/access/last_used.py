"""Last use of sessions and tokens, without a database write on every request.

A use is recorded in this process's memory immediately. Redis gets it at most a few times a minute, for
other processes and for the time after a restart:

    sluice:session:DIGEST   second of the session's last use, with its idle time as expiry; SHA-256 of its key
    sluice:tokens           hash of token id → second of the last use; the worker stores it in the database

Both may be lost. A session then counts as last used at its login, so losing Redis never extends a session.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from contextlib import suppress

import redis

from console.live.redis_link import redis_connection

TOKENS = "sluice:tokens"
"""Redis key of the tokens' last uses."""
REPORT_INTERVAL_S = 10
"""Minimum seconds between two writes to Redis about one session."""
TOKENS_INTERVAL_S = 60
"""Minimum seconds between two writes to Redis about one token."""
MAX_REMEMBERED = 10_000
"""Maximum sessions, and maximum tokens, that a process remembers."""


class _LastUseCache:
    """Last use of each key, and the time at which Redis last got it."""

    def __init__(self) -> None:
        self.used: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def record(self, key: str, now: float, every: float) -> bool:
        """Record a use. Returns whether Redis should be updated, at most once in `every` seconds."""
        updated_at = self.used.get(key, (0.0, 0.0))[1]
        due = now - updated_at >= every
        self.used[key] = (now, now if due else updated_at)
        self.used.move_to_end(key)
        while len(self.used) > MAX_REMEMBERED:
            self.used.popitem(last=False)
        return due

    def last_use(self, key: str) -> float:
        return self.used.get(key, (0.0, 0.0))[0]


_sessions, _tokens = _LastUseCache(), _LastUseCache()


def record_session_use(session_key: str, now: float, idle_s: int) -> None:
    """Record a user's activity in a session."""
    key = _name(session_key)
    if _sessions.record(key, now, REPORT_INTERVAL_S):
        with suppress(redis.RedisError):
            redis_connection().set(key, int(now), ex=idle_s + REPORT_INTERVAL_S)


def is_session_idle(session_key: str, login_at: float, now: float, idle_s: int) -> bool:
    """Return whether a session has had no activity for more than `idle_s` seconds.

    `login_at` and `now` are in seconds since 1970. While Redis is unavailable, only this process's memory
    counts.
    """
    key = _name(session_key)
    if now - max(_sessions.last_use(key), login_at) <= idle_s:
        return False
    try:
        elsewhere = float(redis_connection().get(key) or 0)
    except redis.RedisError:
        return True
    return now - elsewhere > idle_s + REPORT_INTERVAL_S


def record_token_use(token_id: int, now: float) -> None:
    """Record a request with a token."""
    if _tokens.record(str(token_id), now, TOKENS_INTERVAL_S):
        with suppress(redis.RedisError):
            redis_connection().hset(TOKENS, str(token_id), int(now))


def take_token_uses() -> dict[int, float]:
    """Return the last uses by token id since the previous call, and clear them. Raises redis.RedisError."""
    with redis_connection().pipeline(transaction=True) as pipe:
        pipe.hgetall(TOKENS)
        pipe.delete(TOKENS)
        found, _ = pipe.execute()
    return {int(token): float(second) for token, second in found.items()}


def clear_cache() -> None:
    """Clear this process's memory."""
    _sessions.used.clear()
    _tokens.used.clear()


def _name(session_key: str) -> str:
    """Return the Redis key of a session."""
    # The key itself gives access to the session, so only the database contains it.
    return f"sluice:session:{hashlib.sha256(session_key.encode()).hexdigest()}"
