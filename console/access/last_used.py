"""When sessions and tokens were last used, without a write to the database on every request.

In this process's memory at once, and in Redis a few times a minute at most, for other processes and for after a restart:

    sluice:session:DIGEST   the second a session was last used; expires with its idle time. The digest is SHA-256 of its key.
    sluice:tokens           hash: a token's id → the second it was last used; the worker's tick takes it into the database

Both may be lost. A session then counts as used at its login, so that losing Redis never makes one live longer.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from contextlib import suppress

import redis

from console.live.redis_link import redis_connection

TOKENS = "sluice:tokens"
REPORT_INTERVAL_S = 10
"""Redis is told of a use when the one before that it knows of is so old."""
TOKENS_INTERVAL_S = 60
MOST = 10_000
"""Sessions and tokens that a process remembers."""


class _LastUseCache:
    """The newest uses of things, and when Redis was last told of each."""

    def __init__(self) -> None:
        self.used: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def record(self, key: str, now: float, every: float) -> bool:
        """Remember a use; whether Redis should be told."""
        told = self.used.get(key, (0.0, 0.0))[1]
        due = now - told >= every
        self.used[key] = (now, now if due else told)
        self.used.move_to_end(key)
        while len(self.used) > MOST:
            self.used.popitem(last=False)
        return due

    def last_use(self, key: str) -> float:
        return self.used.get(key, (0.0, 0.0))[0]


_sessions, _tokens = _LastUseCache(), _LastUseCache()


def record_session_use(session_key: str, now: float, idle_s: int) -> None:
    """A person did something in this session."""
    key = _name(session_key)
    if _sessions.record(key, now, REPORT_INTERVAL_S):
        with suppress(redis.RedisError):
            redis_connection().set(key, int(now), ex=idle_s + REPORT_INTERVAL_S)


def is_session_idle(session_key: str, login_at: float, now: float, idle_s: int) -> bool:
    """Whether nobody has done anything in this session for longer than `idle_s` seconds. Times are seconds since 1970."""
    key = _name(session_key)
    if now - max(_sessions.last_use(key), login_at) <= idle_s:
        return False
    try:
        elsewhere = float(redis_connection().get(key) or 0)
    except redis.RedisError:
        return True
    return now - elsewhere > idle_s + REPORT_INTERVAL_S


def record_token_use(token_id: int, now: float) -> None:
    """A request came with this token."""
    if _tokens.record(str(token_id), now, TOKENS_INTERVAL_S):
        with suppress(redis.RedisError):
            redis_connection().hset(TOKENS, str(token_id), int(now))


def take_token_uses() -> dict[int, float]:
    """When tokens were used, by id, since this was last asked. Raises redis.RedisError."""
    with redis_connection().pipeline(transaction=True) as pipe:
        pipe.hgetall(TOKENS)
        pipe.delete(TOKENS)
        found, _ = pipe.execute()
    return {int(token): float(second) for token, second in found.items()}


def clear_cache() -> None:
    """Of this process's memory: everything."""
    _sessions.used.clear()
    _tokens.used.clear()


def _name(session_key: str) -> str:
    # A session's key lets its reader in, so it stands nowhere but in the database.
    return f"sluice:session:{hashlib.sha256(session_key.encode()).hexdigest()}"
