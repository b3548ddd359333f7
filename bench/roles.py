"""Processes of a run: publishers and subscribers of Sluice and Redis Streams.

`python -m bench.roles ROLE ...`

A subscriber prints "ready" when it is subscribed. At the end it prints a JSON line with the times of the
first and last record, in seconds of the monotonic clock, which all processes of a machine share. Both sides
touch each record.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from typing import Any

import uvloop

BODY = (
    b'{"symbol":"SLCE","side":"buy","price":101.25,"quantity":300,"venue":"XNAS","order":"A-000000000001"}'[
        :100
    ]
)


def orders(number: int) -> list[bytes]:
    """Return different orders of 100 bytes each. A journal of one repeated body would compress too well."""
    pick = random.Random(1)
    return [
        b'{"symbol":"%s","side":"%s","price":%06.2f,"quantity":%03d,"venue":"XNAS","order":"A-%012d"}'
        % (
            pick.choice((b"SLCE", b"ACME", b"GLBX", b"NRTH")),
            pick.choice((b"buy", b"ask")),
            pick.uniform(90, 110),
            pick.randrange(100, 1_000),
            pick.randrange(10**12),
        )
        for _ in range(number)
    ]


def print_figures(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


async def sluice_publish(address: str, number: int, batch: int, how: str = "") -> None:
    """Publish batches to Sluice.

    `how`: "apart" flushes each batch, because the library joins batches that arrive faster than they are
    sent; "random" uses bodies of random bytes, which don't compress.
    """
    from broker_core.client import AsyncClient

    async with AsyncClient(address, "publisher") as client:
        started = time.monotonic()
        if batch == 1:
            publish = client.publish
            for _ in range(number):
                await publish("bench", BODY)
        else:
            bodies = orders(batch)
            size = len(bodies[0])
            for _ in range(number // batch):
                if how == "random":
                    drawn = os.urandom(batch * size)
                    bodies = [drawn[at : at + size] for at in range(0, len(drawn), size)]
                await client.publish_many("bench", bodies)
                if how == "apart":
                    await client.flush()
        await client.flush()
        print_figures(started=started, ended=time.monotonic())


async def sluice_subscribe(address: str, number: int, name: str, bookmark: str, durability: str = "") -> None:
    from broker_core.client import AsyncClient
    from broker_core.client.async_client import SubscribeOptions

    async with AsyncClient(address, name) as client:
        requested_at = time.monotonic()
        how: SubscribeOptions = {"durability": "fully_durable"} if durability else {}
        subscription = await client.subscribe("bench", bookmark=bookmark or None, **how)
        print_figures(ready=True)
        received = nbytes = 0
        first = 0.0
        async for found in subscription.batches():
            first = first or time.monotonic()
            for body in found.bodies():
                nbytes += len(body)
            received += found.count
            if received >= number:
                break
        print_figures(asked=requested_at, first=first, last=time.monotonic(), received=received, bytes=nbytes)


def redis_publish(address: str, number: int, batch: int) -> None:
    import redis

    connection = redis.Redis(unix_socket_path=address)
    started = time.monotonic()
    for _ in range(number // batch):
        pipeline = connection.pipeline(transaction=False)
        for _ in range(batch):
            pipeline.xadd("bench", {"b": BODY})
        pipeline.execute()
    print_figures(started=started, ended=time.monotonic())


def redis_subscribe(address: str, number: int) -> None:
    import redis

    connection = redis.Redis(unix_socket_path=address)
    print_figures(ready=True)
    received = nbytes = 0
    last: Any = "0-0"
    first = 0.0
    while received < number:
        found: Any = connection.xread({"bench": last}, count=1_000, block=1_000)
        for _, entries in found or ():
            first = first or time.monotonic()
            for _, fields in entries:
                nbytes += len(fields[b"b"])
            received += len(entries)
            last = entries[-1][0]
    print_figures(first=first, last=time.monotonic(), received=received, bytes=nbytes)


async def sluice_stalled(address: str, name: str) -> None:
    """Subscribe and then read nothing, until killed."""
    from broker_core.protocols.native import encode_command

    host, _, port = address.removeprefix("tcp://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    writer.write(encode_command({"c": "logon", "name": name}))
    writer.write(encode_command({"c": "subscribe", "id": "s", "topic": "bench"}))
    await reader.read(512)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    print_figures(ready=True)
    await asyncio.Event().wait()


async def paced_publish(address: str, seconds: float, rate: int, batch: int) -> None:
    """Publish at a rate. Each body starts with its send time, from which subscribers compute the latency."""
    from broker_core.client import AsyncClient

    async with AsyncClient(address, "publisher") as client:
        started = time.monotonic()
        pause, sent = batch / rate, 0
        while (now := time.monotonic()) - started < seconds:
            await client.publish_many("bench", [b"%020d" % time.monotonic_ns() + BODY[20:]] * batch)
            sent += batch
            await asyncio.sleep(max(0.0, started + sent / batch * pause - now))
        await client.publish_many("bench", [b"end"])
        await client.flush()
        print_figures(sent=sent, ended=time.monotonic())


async def latency_subscribe(address: str, name: str) -> None:
    """Read until "end"; print the records and percentiles of the latency in microseconds."""
    import numpy as np

    from broker_core.client import AsyncClient

    async with AsyncClient(address, name) as client:
        subscription = await client.subscribe("bench")
        print_figures(ready=True)
        received = 0
        latencies: list[int] = []
        first = 0.0
        async for found in subscription.batches():
            now = time.monotonic_ns()
            first = first or now / 1e9
            bodies = found.bodies()
            if bodies[-1] == b"end":
                break
            latencies.append(now - int(bodies[0][:20]))
            received += len(bodies)
        p50, p99 = np.percentile(latencies, [50, 99]) / 1_000
        print_figures(
            received=received, seconds=time.monotonic() - first, p50_us=round(p50), p99_us=round(p99)
        )


def main(role: str, *arguments: str) -> None:
    from bench import replay_roles, returning_roles

    words = list(arguments)
    match role:
        case "sluice-publish":
            uvloop.run(sluice_publish(words[0], int(words[1]), int(words[2]), *words[3:]))
        case "sluice-subscribe":
            uvloop.run(sluice_subscribe(words[0], int(words[1]), *words[2:]))
        case "redis-publish":
            redis_publish(words[0], int(words[1]), int(words[2]))
        case "redis-subscribe":
            redis_subscribe(words[0], int(words[1]))
        case "sluice-stalled":
            uvloop.run(sluice_stalled(words[0], words[1]))
        case "paced-publish":
            uvloop.run(paced_publish(words[0], float(words[1]), int(words[2]), int(words[3])))
        case "latency-subscribe":
            uvloop.run(latency_subscribe(words[0], words[1]))
        case "replay-drain":
            replay_roles.drain(words[0], int(words[1]), words[2], words[3], *words[4:])
        case "replay-plain-receive":
            replay_roles.plain_receive(words)
        case "replay-plain-send":
            replay_roles.plain_send(int(words[0]), words[1:])
        case "replay-many":
            replay_roles.many(words[0], int(words[1]), int(words[2]), words[3])
        case "returning-publish":
            uvloop.run(returning_roles.publish(words[0], words[1], *map(int, words[2:])))
        case "returning-library":
            uvloop.run(returning_roles.subscribe(words[0], words[1], words[2], int(words[3]), *words[4:]))
        case "returning-socket":
            returning_roles.drain(words[0], words[1], words[2], int(words[3]), *words[4:])
        case _:
            raise SystemExit(f"no role {role}")


if __name__ == "__main__":
    main(*sys.argv[1:])
