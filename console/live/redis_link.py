"""This process's connections to Redis, for what is fast, small and may be lost: rings of seconds, and when something was used."""

from __future__ import annotations

import redis
from django.conf import settings

_link: redis.Redis | None = None


def redis_connection() -> redis.Redis:
    """One connection pool a process. Its calls raise redis.RedisError, after 2 s at most."""
    global _link
    if _link is None:
        _link = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2)
    return _link
