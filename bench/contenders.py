"""Brokers of `bench.beside`: their servers, which `bench.peers` starts, and their fastest clients in
Python.

A `Way` has a publisher and a subscriber. A publisher gets batches from an asynchronous iterator that sets the
pace. It keeps a limited number of messages unanswered, if the broker answers, and returns after the last
answer. A batch of one is a single message.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from bench.peers import mosquitto, nats, redis, stomp
from bench.peers.peer import Received, Server, installed
from bench.peers.sluice import broker
from broker_core.protocols.native import encode_command

HOST = "127.0.0.1"
READ = 256 * 1024
UNANSWERED = 16_384
"""Maximum messages of a publisher without an answer."""
PACKAGES = ".venv/bin/python -m pip install -r requirements-bench.in"
Batches = AsyncIterator[list[bytes]]
THROUGHPUT, FAN_OUT, REPLAY, LATENCY = "throughput", "fan-out", "replay", "latency"
ALL = (THROUGHPUT, FAN_OUT, REPLAY, LATENCY)


class Way(Protocol):
    """Client protocol or library for a server, and the tests in which it is measured."""

    @property
    def name(self) -> str: ...

    @property
    def measured(self) -> Sequence[str]: ...

    async def prepare(self, port: int, topic: str) -> None:
        """Create the topic, if the broker requires that."""
        ...

    async def publish(self, port: int, topic: str, batches: Batches) -> None: ...

    async def subscribe(
        self, port: int, topic: str, ready: Callable[[], None], received: Received, replay: bool
    ) -> None:
        """Deliver messages until cancelled. `replay`: from the start of the stored messages."""
        ...


@dataclass(frozen=True)
class Contender:
    """Configuration of a server. `disk`: what the server does with the disk before it acknowledges."""

    name: str
    disk: str
    install: str
    available: Callable[[], bool]
    serve: Callable[[], AbstractContextManager[Server]]
    ways: Sequence[Way]
    idle: Callable[[int, int], Awaitable[object]]
    """Connect one idle client (port, number), subscribed if the broker has subscriptions.

    The caller keeps the result.
    """


class Unanswered:
    """Counter of messages that the broker has not answered."""

    def __init__(self, limit: int = UNANSWERED) -> None:
        self._limit = limit
        self._open = 0
        self._changed = asyncio.Event()

    async def sent(self, number: int) -> None:
        """Count messages as sent; wait until fewer than the limit are unanswered."""
        self._open += number
        await self._until(self._limit)

    def answered(self, number: int = 1) -> None:
        self._open -= number
        self._changed.set()

    async def none(self) -> None:
        await self._until(0)

    async def _until(self, limit: int) -> None:
        while self._open > limit:
            self._changed.clear()
            await self._changed.wait()


async def ask(port: int, data: bytes) -> object:
    """Open a connection, send data, and wait for an answer."""
    reader, writer = await asyncio.open_connection(HOST, port, limit=1024)
    writer.write(data)
    await reader.read(1)
    return reader, writer


def packages(*names: str) -> bool:
    return all(importlib.util.find_spec(name) for name in names)


# Sluice


@dataclass(frozen=True)
class SluiceWay:
    name: str
    single: bool = False
    durability: str = "persisted"
    measured: Sequence[str] = ALL

    async def prepare(self, port: int, topic: str) -> None:
        pass

    async def publish(self, port: int, topic: str, batches: Batches) -> None:
        from broker_core.client import AsyncClient

        async with AsyncClient(f"tcp://{HOST}:{port}", "publisher") as client:
            async for bodies in batches:
                if self.single or len(bodies) == 1:
                    for body in bodies:
                        await client.publish(topic, body)
                else:
                    await client.publish_many(topic, bodies)
            await client.flush()

    async def subscribe(
        self, port: int, topic: str, ready: Callable[[], None], received: Received, replay: bool
    ) -> None:
        from broker_core.client import NOW, AsyncClient

        name = f"subscriber-{id(received):x}-{asyncio.get_running_loop().time()}"
        async with AsyncClient(f"tcp://{HOST}:{port}", name) as client:
            if replay:
                subscription = await client.subscribe(topic, bookmark="0")
            elif self.durability == "live":
                subscription = await client.subscribe(topic, bookmark=NOW, durability="live")
            else:
                subscription = await client.subscribe(topic)
            ready()
            async for batch in subscription.batches():
                received(batch.bodies())


@contextlib.contextmanager
def serve_sluice() -> Iterator[Server]:
    with broker(1 << 34) as (ports, pid):  # larger than any benchmark fills
        yield Server(ports["tcp"], pid)


async def idle_sluice(port: int, number: int) -> object:
    logon = encode_command({"c": "logon", "name": f"idle-{number}"})
    return await ask(port, logon + encode_command({"c": "subscribe", "id": "s", "topic": "idle"}))


# NATS

NATS = """
max_pending: 1073741824
write_deadline: "60s"
"""
JETSTREAM = "jetstream {{ store_dir: store, sync_interval: {sync} }}\n"


@dataclass(frozen=True)
class NatsWay:
    name: str = "nats-py"
    stream: bool = False
    unanswered: int = UNANSWERED
    measured: Sequence[str] = ALL

    async def _connect(self, port: int) -> Any:
        import nats

        return await nats.connect(f"nats://{HOST}:{port}", allow_reconnect=False)

    async def prepare(self, port: int, topic: str) -> None:
        if self.stream:
            client = await self._connect(port)
            await client.jetstream().add_stream(name=topic, subjects=[topic])
            await client.close()

    async def publish(self, port: int, topic: str, batches: Batches) -> None:
        """Publish to a stream, with one inbox for all answers.

        `publish_async` would need a future, a timer and a name for each message.
        """
        client = await self._connect(port)
        unanswered = Unanswered(self.unanswered)
        inbox = ""

        async def answered(_message: object) -> None:
            unanswered.answered()

        if self.stream:
            inbox = client.new_inbox()
            await client.subscribe(inbox, cb=answered, pending_msgs_limit=0, pending_bytes_limit=0)
        sent = 0
        async for bodies in batches:
            for body in bodies:
                await client.publish(topic, body, reply=inbox)
            sent += len(bodies)
            if self.stream:
                await unanswered.sent(len(bodies))
            elif sent > UNANSWERED:
                await client.flush()
                sent = 0
        await unanswered.none()
        await client.flush()
        await client.close()

    async def subscribe(
        self, port: int, topic: str, ready: Callable[[], None], received: Received, replay: bool
    ) -> None:
        client = await self._connect(port)

        async def arrived(message: Any) -> None:
            received([message.data])

        if self.stream:
            await client.jetstream().subscribe(
                topic,
                stream=topic,
                cb=arrived,
                ordered_consumer=True,
                pending_msgs_limit=0,
                pending_bytes_limit=0,
            )
        else:
            await client.subscribe(topic, cb=arrived, pending_msgs_limit=0, pending_bytes_limit=0)
        await client.flush()
        ready()
        await asyncio.Event().wait()


async def idle_nats(port: int, _number: int) -> object:
    return await ask(port, b'CONNECT {"verbose":false}\r\nSUB idle 1\r\nPING\r\n')


# Redis Streams


@dataclass(frozen=True)
class RedisWay:
    """redis-py as usually used: a pipeline of XADD, and XREAD."""

    name: str = "redis-py"
    measured: Sequence[str] = (THROUGHPUT,)

    async def prepare(self, port: int, topic: str) -> None:
        pass

    async def publish(self, port: int, topic: str, batches: Batches) -> None:
        import redis

        connection = redis.Redis(port=port)
        async for bodies in batches:
            pipeline = connection.pipeline(transaction=False)
            for body in bodies:
                pipeline.xadd(topic, {"b": body})
            pipeline.execute()

    async def subscribe(
        self, port: int, topic: str, ready: Callable[[], None], received: Received, replay: bool
    ) -> None:
        import redis

        connection = redis.Redis(port=port)
        ready()
        last: Any = "0-0"
        while True:
            await asyncio.sleep(0)  # lets the event loop deliver a cancellation
            found: Any = connection.xread({topic: last}, count=1_000, block=100)
            for _, entries in found or ():
                received([fields[b"b"] for _, fields in entries])
                last = entries[-1][0]


@dataclass(frozen=True)
class PackedRedisWay:
    """XADD commands packed once and written to the socket directly, and XREAD parsed by hiredis."""

    name: str = "packed once, hiredis"
    transactions: bool = False
    """Send each batch in MULTI and EXEC, so that it is synced once, not with each 16 KB that Redis reads."""
    measured: Sequence[str] = ALL

    async def prepare(self, port: int, topic: str) -> None:
        pass

    async def publish(self, port: int, topic: str, batches: Batches) -> None:
        reader, writer = await asyncio.open_connection(HOST, port)
        unanswered = Unanswered()

        async def read() -> None:
            before = b"\n"
            while data := await reader.read(READ):
                if b"\n-" in before + data:  # an error reply: the number of replies would stay too small
                    raise RuntimeError(data[:100])
                unanswered.answered(data.count(b"$"))
                before = data[-1:]

        packed: tuple[list[bytes], bytes] = ([], b"")
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(read())
            async for bodies in batches:
                if packed[0] is not bodies:
                    packed = (bodies, self._pack(topic.encode(), bodies))
                writer.write(packed[1])
                await unanswered.sent(len(bodies))
            await unanswered.none()
            reading.cancel()

    def _pack(self, topic: bytes, bodies: list[bytes]) -> bytes:
        commands = b"".join(pack(b"XADD", topic, b"*", b"b", body) for body in bodies)
        if self.transactions and len(bodies) > 1:
            return pack(b"MULTI") + commands + pack(b"EXEC")
        return commands

    async def subscribe(
        self, port: int, topic: str, ready: Callable[[], None], received: Received, replay: bool
    ) -> None:
        import hiredis

        reader, writer = await asyncio.open_connection(HOST, port)
        parser: Any = hiredis.Reader()
        ready()
        last = b"0-0"
        while True:
            words = (b"XREAD", b"COUNT", b"1000", b"BLOCK", b"0", b"STREAMS", topic.encode(), last)
            writer.write(pack(*words))
            while (found := parser.gets()) is False:
                parser.feed(await reader.read(READ))
            if isinstance(found, Exception):
                raise found
            entries = found[0][1]
            received([fields[1] for _, fields in entries])
            last = entries[-1][0]


def pack(*words: bytes) -> bytes:
    """Encode a command in Redis' protocol."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


async def idle_redis(port: int, _number: int) -> object:
    return await ask(port, pack(b"PING"))


# RabbitMQ streams

STREAM_LISTENER = """stream.listeners.tcp.1 = 127.0.0.1:{port}
stream.advertised_host = 127.0.0.1
stream.advertised_port = {port}"""
CREDENTIALS: dict[str, Any] = {"username": "guest", "password": "guest"}


@dataclass(frozen=True)
class RabbitWay:
    name: str
    sub_entries: bool = False
    measured: Sequence[str] = ALL

    async def prepare(self, port: int, topic: str) -> None:
        import rstream

        async with rstream.Producer(HOST, port, **CREDENTIALS) as producer:
            await producer.create_stream(topic)

    async def publish(self, port: int, topic: str, batches: Batches) -> None:
        import rstream

        unanswered = Unanswered()

        def answer(number: int, _status: object) -> None:
            unanswered.answered(number)

        one = partial(answer, 1)
        async with rstream.Producer(HOST, port, **CREDENTIALS) as producer:
            async for bodies in batches:
                if self.sub_entries:
                    answered = partial(answer, len(bodies))
                    await producer.send_sub_entry(topic, bodies, on_publish_confirm=answered)
                    # Flush explicitly; else the measured time is that of the producer's timer, half a second.
                    await producer._publish_buffered_messages(topic)
                else:
                    await producer.send_batch(topic, bodies, on_publish_confirm=one)
                await unanswered.sent(len(bodies))
            await unanswered.none()

    async def subscribe(
        self, port: int, topic: str, ready: Callable[[], None], received: Received, replay: bool
    ) -> None:
        import rstream

        consumer = rstream.Consumer(HOST, port, **CREDENTIALS)
        await consumer.start()
        await consumer.subscribe(
            topic,
            lambda message, _context: received([message]),
            decoder=bytes,
            offset_specification=rstream.ConsumerOffsetSpecification(rstream.OffsetType.FIRST, None),
            initial_credit=50,
        )
        ready()
        await asyncio.Event().wait()


async def idle_rabbitmq(port: int, _number: int) -> object:
    import rstream

    consumer = rstream.Consumer(HOST, port, **CREDENTIALS)
    await consumer.start()
    await consumer.stream_exists("idle")  # the first request opens the connection
    return consumer


# Mosquitto

MOSQUITTO = """
max_queued_messages 0
max_queued_bytes 0
max_inflight_messages 1000
queue_qos0_messages true
set_tcp_nodelay true
"""


@dataclass(frozen=True)
class MosquittoWay:
    name: str
    qos: int
    measured: Sequence[str] = (THROUGHPUT, FAN_OUT, LATENCY)

    async def prepare(self, port: int, topic: str) -> None:
        pass

    async def publish(self, port: int, topic: str, batches: Batches) -> None:
        import gmqtt
        from gmqtt.storage import PersistentStorage

        store = PersistentStorage()
        client = gmqtt.Client("publisher", persistent_storage=store)
        await client.connect(HOST, port)
        async for bodies in batches:
            for body in bodies:
                client.publish(topic, body, qos=self.qos)
            if len(bodies) > 1:
                await store.wait_empty()
        client.publish("flush", b"", qos=1)  # its reply means that all data was read
        await store.wait_empty()

    async def subscribe(
        self, port: int, topic: str, ready: Callable[[], None], received: Received, replay: bool
    ) -> None:
        import gmqtt

        client = gmqtt.Client(f"subscriber-{id(received):x}-{asyncio.get_running_loop().time()}")

        def arrived(_client: object, _topic: str, body: bytes, _qos: int, _properties: object) -> int:
            received([body])
            return 0

        client.on_message = arrived
        client.on_subscribe = lambda *_: ready()
        await client.connect(HOST, port)
        client.subscribe(topic, qos=self.qos)
        await asyncio.Event().wait()


async def idle_mosquitto(port: int, number: int) -> object:
    name = b"idle-%06d" % number
    connect = b"\x00\x04MQTT\x04\x02\x00\x00" + len(name).to_bytes(2, "big") + name
    subscribe = b"\x00\x01\x00\x04idle\x00"
    packed = (b"\x10", connect), (b"\x82", subscribe)
    return await ask(port, b"".join(kind + bytes((len(body),)) + body for kind, body in packed))


DEBIAN = "apt-get install {}"
CONTENDERS: dict[str, Contender] = {
    "sluice": Contender(
        "Sluice",
        "fdatasync before it delivers and acknowledges",
        "",
        lambda: True,
        serve_sluice,
        (
            SluiceWay("512 a call"),
            SluiceWay("publish()", single=True, measured=(THROUGHPUT,)),
        ),
        idle_sluice,
    ),
    "sluice-live": Contender(
        "Sluice, live",
        "fdatasync before it acknowledges; delivered meanwhile",
        "",
        lambda: True,
        serve_sluice,
        (
            SluiceWay("512 a call", durability="live", measured=(THROUGHPUT, FAN_OUT, LATENCY)),
            SluiceWay("publish()", single=True, durability="live", measured=(THROUGHPUT,)),
        ),
        idle_sluice,
    ),
    "nats": Contender(
        "NATS core",
        "nothing is kept",
        PACKAGES,
        lambda: installed("nats-server") is not None and packages("nats"),
        partial(nats.serve, NATS),
        (NatsWay(measured=(THROUGHPUT, FAN_OUT, LATENCY)),),
        idle_nats,
    ),
    "jetstream": Contender(
        "JetStream",
        "written to a file; synced every two minutes",
        PACKAGES,
        lambda: installed("nats-server") is not None and packages("nats"),
        partial(nats.serve, NATS + JETSTREAM.format(sync='"2m"')),
        (NatsWay(stream=True),),
        idle_nats,
    ),
    "jetstream-sync": Contender(
        "JetStream, sync always",
        "synced before it acknowledges",
        PACKAGES,
        lambda: installed("nats-server") is not None and packages("nats"),
        partial(nats.serve, NATS + JETSTREAM.format(sync="always")),
        (NatsWay(stream=True, unanswered=512, measured=(THROUGHPUT,)),),
        idle_nats,
    ),
    "redis": Contender(
        "Redis Streams, everysec",
        "written before it acknowledges; synced every second",
        DEBIAN.format("redis-server"),
        lambda: redis.program() is not None and packages("redis", "hiredis"),
        partial(redis.serve, "--appendonly", "yes", "--appendfsync", "everysec"),
        (PackedRedisWay(), RedisWay()),
        idle_redis,
    ),
    "redis-always": Contender(
        "Redis Streams, always",
        "synced before it acknowledges and delivers",
        DEBIAN.format("redis-server"),
        lambda: redis.program() is not None and packages("redis", "hiredis"),
        partial(redis.serve, "--appendonly", "yes", "--appendfsync", "always"),
        (PackedRedisWay("packed once, MULTI, hiredis", transactions=True), RedisWay()),
        idle_redis,
    ),
    "rabbitmq": Contender(
        "RabbitMQ streams",
        "written to a file; never synced by itself",
        f"{DEBIAN.format('rabbitmq-server')}; {PACKAGES}",
        lambda: installed("rabbitmq-server") is not None and packages("rstream"),
        partial(stomp.serve_rabbitmq, "rabbitmq_stream", STREAM_LISTENER),
        (
            RabbitWay("rstream, plain"),
            # Sub-entries are flushed every half second, so their latency would be that of the timer.
            RabbitWay(
                "rstream, sub-entries of 512", sub_entries=True, measured=(THROUGHPUT, FAN_OUT, REPLAY)
            ),
        ),
        idle_rabbitmq,
    ),
    "mosquitto": Contender(
        "Mosquitto",
        "nothing is kept",
        f"{DEBIAN.format('mosquitto')}; {PACKAGES}",
        lambda: installed("mosquitto") is not None and packages("gmqtt"),
        partial(mosquitto.serve, MOSQUITTO),
        (MosquittoWay("gmqtt, QoS 0", 0), MosquittoWay("gmqtt, QoS 1", 1)),
        idle_mosquitto,
    ),
}
