"""Readiness checks of the children. Each takes a bounded time, and returns False instead of raising."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path

ANSWER_S = 2.0
"""Seconds that a check waits for an answer."""


async def is_redis_ready(socket: Path) -> bool:
    """Whether Redis answers PING on its Unix socket."""
    return (await _request_unix(socket, b"PING\r\n")).startswith(b"+PONG")


async def is_broker_ready(socket: Path) -> bool:
    """Whether the broker's control socket answers `status`."""
    answer = await _request_unix(socket, b'{"do":"status"}\n')
    try:
        return bool(json.loads(answer).get("ok"))
    except (ValueError, AttributeError):
        return False


async def is_nats_ready(host: str, port: int) -> bool:
    """Whether the NATS server sends its greeting."""
    try:
        async with asyncio.timeout(ANSWER_S):
            return (await _request(*await asyncio.open_connection(host, port), b"")).startswith(b"INFO ")
    except (OSError, TimeoutError, ValueError):
        return False


async def is_http_ready(host: str, port: int, path: str, *, tls: bool = False) -> bool:
    """Whether the web process answers 200, over TLS if `tls`."""
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode("ascii")
    try:
        async with asyncio.timeout(ANSWER_S):
            answer = await _request(
                *await asyncio.open_connection(local, port, ssl=_unverified_context() if tls else None),
                request,
            )
    except (OSError, TimeoutError):
        return False
    return answer.startswith(b"HTTP/1.1 200")


def _unverified_context() -> ssl.SSLContext:
    """Return a TLS context without verification.

    The server is a child on this machine; its certificate has the name for browsers.
    """
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def is_worker_ready(redis_url: str, node: str) -> bool:
    """Whether the Celery worker of this name answers a ping.

    Runs in a thread, because Celery's call blocks.
    """
    return await asyncio.to_thread(_ping_worker, redis_url, node)


async def is_beat_ready(schedule: Path, started_at: float) -> bool:
    """Whether Celery's beat has written its schedule since `started_at`.

    The file's suffix depends on the system's dbm.
    """
    try:
        return any(
            file.stat().st_mtime >= started_at - 1 for file in schedule.parent.glob(schedule.name + "*")
        )
    except OSError:
        return False


def external_redis_problem(url: str) -> str | None:
    """Return why the Redis of REDIS_URL can't be used, or None if it answers."""
    import redis

    try:
        with redis.Redis.from_url(url, socket_timeout=ANSWER_S, socket_connect_timeout=ANSWER_S) as client:
            client.ping()
    except (redis.RedisError, OSError, ValueError) as error:
        return str(error)
    return None


def _ping_worker(redis_url: str, node: str) -> bool:
    from celery import Celery

    url = redis_url.replace("unix://", "redis+socket://", 1)
    app = Celery("supervisor", broker=url, set_as_current=False)
    app.conf.broker_transport_options = {"socket_timeout": ANSWER_S, "socket_connect_timeout": ANSWER_S}
    try:
        return bool(app.control.ping(destination=[node], timeout=1.0))
    except Exception:  # kombu's transports raise various errors while Redis is away
        return False
    finally:
        app.close()


async def _request_unix(socket: Path, request: bytes) -> bytes:
    try:
        async with asyncio.timeout(ANSWER_S):
            return await _request(*await asyncio.open_unix_connection(str(socket), limit=4 << 20), request)
    except (OSError, TimeoutError, ValueError):
        return b""


async def _request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bytes:
    """Send a request, and return the first line of the answer. Closes the connection."""
    try:
        writer.write(request)
        return await reader.readline()
    finally:
        writer.close()
