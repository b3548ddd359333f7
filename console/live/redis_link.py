"""This process's connections to Redis for small data that may be lost: rings, times of last use."""

from __future__ import annotations

import redis
from django.conf import settings

_link: redis.Redis | None = None


def redis_connection() -> redis.Redis:
    """Return the process's Redis client, which has a connection pool.

    Calls raise redis.RedisError after 2 s.
    """
    global _link
    if _link is None:
        _link = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=2, socket_connect_timeout=2)
    return _link
