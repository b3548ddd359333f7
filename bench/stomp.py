"""STOMP beside RabbitMQ and ActiveMQ, if installed: `python -m bench.stomp [--runs 3] [--records 50000]`.

    receipts    SENDs to a topic, each with a receipt, up to UNANSWERED of them open, and one subscriber:
                messages a second from the first SEND to the last MESSAGE; all clients are raw sockets
    p99         2,000 messages a second, one subscriber: wall time from SEND to MESSAGE
    out         MESSAGE frames a second from one broker to raw readers of one stream of native batches
    idle        the broker's memory for each idle connection that is logged on

RabbitMQ and ActiveMQ don't write a topic's messages to disk; Sluice journals them, unless the topic is
`scratch`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Protocol

from rich.console import Console
from rich.table import Table

from bench.peers.peer import Server
from bench.peers.sluice import broker
from bench.peers.stomp import READ, ActiveMQ, RabbitMQ
from bench.processes import BIG, resident, spent

UNANSWERED = 1_000
BODY = b'{"symbol":"SLCE","side":"buy","price":101.25,"quantity":300,"venue":"XNAS","order":"A-0000000001"}'
SPAWN = multiprocessing.get_context("spawn")


class StompServer(Protocol):
    """A broker with STOMP. `login`: the header lines of its CONNECT."""

    name: str
    login: str
    destination: str

    def available(self) -> bool: ...

    def serve(self) -> contextlib.AbstractContextManager[Server]: ...


class Sluice:
    """This broker, over STOMP."""

    def __init__(self, name: str, destination: str) -> None:
        self.name, self.destination, self.login = name, destination, ""

    def available(self) -> bool:
        return True

    @contextlib.contextmanager
    def serve(self) -> Iterator[Server]:
        with broker(BIG) as (ports, pid):
            yield Server(ports["stomp"], pid)


def connect(port: int, login: str = "") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port))
    made.sendall(f"CONNECT\naccept-version:1.2\nhost:/\nheart-beat:0,0\n{login}\n\0".encode())
    assert made.recv(READ).startswith(b"CONNECTED")
    return made


def subscribe(port: int, login: str, destination: str) -> socket.socket:
    made = connect(port, login)
    made.sendall(f"SUBSCRIBE\nid:0\ndestination:{destination}\nack:auto\nreceipt:s\n\n\0".encode())
    assert b"RECEIPT" in made.recv(READ)
    return made


def reads(port: int, login: str, destination: str, number: int, out: Connection) -> None:
    """Count frames until there are `number` of them."""
    reading, frames = subscribe(port, login, destination), 0
    out.send("ready")
    buffer = memoryview(bytearray(1 << 20))
    while frames < number and (size := reading.recv_into(buffer)):
        frames += buffer[:size].tobytes().count(b"\0")
    out.send((time.monotonic(), frames))


def role(target: Callable[..., None], *words: object) -> Connection:
    """Start a process; return the connection to it."""
    ours, theirs = SPAWN.Pipe()
    SPAWN.Process(target=target, args=(*words, theirs), daemon=True).start()
    return ours


def receipts(port: int, login: str, destination: str, number: int) -> float:
    reader = role(reads, port, login, destination, number)
    reader.recv()
    sending, sent, answered = connect(port, login), 0, 0
    head = f"SEND\ndestination:{destination}\ncontent-length:{len(BODY)}\nreceipt:%d\n\n".encode()
    started = time.monotonic()
    while answered < number:
        part = range(sent, min(sent + 100, number)) if sent - answered < UNANSWERED else range(0)
        if part:
            sending.sendall(b"".join([head % at + BODY + b"\0" for at in part]))
            sent += len(part)
        if not part or sent - answered >= UNANSWERED:
            answered += sending.recv(READ).count(b"RECEIPT")
    last, _ = reader.recv()
    return number / float(last - started)


def latency(port: int, login: str, destination: str, seconds: float = 10) -> float:
    """Return the p99 of 2,000 messages a second, in ms."""
    reading, sending, latencies = subscribe(port, login, destination), connect(port, login), list[float]()
    number = int(2_000 * seconds)

    def read() -> None:
        incomplete = b""
        while len(latencies) < number and (data := reading.recv(READ)):
            *frames, incomplete = (incomplete + data).split(b"\0")
            now = time.monotonic()
            latencies.extend(
                now - float(frame.rpartition(b"\n\n")[2]) for frame in frames if b"MESSAGE" in frame[:9]
            )

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    began = time.monotonic()
    for at in range(number):
        if (wait := began + at / 2_000 - time.monotonic()) > 0:
            time.sleep(wait)
        sending.sendall(b"SEND\ndestination:%b\n\n%.9f\0" % (destination.encode(), time.monotonic()))
    thread.join(30)
    return sorted(latencies)[int(len(latencies) * 0.99)] * 1_000


def publishes(port: int, number: int, batch: int, out: Connection) -> None:
    from broker_core.client import AsyncClient

    async def run() -> None:
        async with AsyncClient(f"tcp://127.0.0.1:{port}", "publisher") as client:
            out.send("ready")
            out.recv()
            out.send(time.monotonic())
            for _ in range(number // batch):
                await client.publish_many("scratch.bench", [BODY] * batch)
            await client.flush()

    asyncio.run(run())


def frames_out(readers: int, number: int) -> float:
    """Return MESSAGE frames a second from one broker."""
    with broker(BIG) as (ports, _):
        reading = [role(reads, ports["stomp"], "", "/topic/scratch.bench", number) for _ in range(readers)]
        for one in reading:
            one.recv()
        writing = role(publishes, ports["tcp"], number, 1_000)
        writing.recv()
        writing.send("go")
        started = writing.recv()
        ended: float = max(one.recv()[0] for one in reading)
        return readers * number / (ended - float(started))


def idle(number: int) -> float:
    """Return KiB of memory for each idle connection."""
    with broker(BIG) as (ports, pid):
        connections = [connect(ports["stomp"]) for _ in range(20)]
        before = resident(pid)
        connections += [connect(ports["stomp"]) for _ in range(number)]
        time.sleep(2)
        grown = resident(pid) - before
        for one in connections:
            one.close()
        return grown / number / 1024


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.stomp", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--only", choices=("peers", "out", "idle"))
    arguments = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {}

    def note(broker_name: str, measurement: str, figure: float) -> None:
        found.setdefault(broker_name, {}).setdefault(measurement, []).append(figure)

    candidates: list[StompServer] = [
        Sluice("Sluice, journaled", "/topic/bench"),
        Sluice("Sluice, not journaled", "/topic/scratch.bench"),
        RabbitMQ(),
        ActiveMQ(),
    ]
    for _ in range(arguments.runs):
        for one in candidates if arguments.only in (None, "peers") else ():
            if not one.available():
                continue
            with one.serve() as server:
                before = spent(server.pid)
                note(
                    one.name,
                    "receipts, messages/s",
                    receipts(server.port, one.login, one.destination, arguments.records),
                )
                note(
                    one.name,
                    "receipts, broker's CPU µs a message",
                    (spent(server.pid) - before) / arguments.records * 1e6,
                )
                note(one.name, "p99 ms", latency(server.port, one.login, one.destination))
        if arguments.only in (None, "out"):
            for readers in (1, 4):
                note("Sluice", f"frames/s to {readers}", frames_out(readers, 20 * arguments.records))
        if arguments.only in (None, "idle"):
            note("Sluice", "KiB a connection", idle(1_000))
    medians = {
        broker_name: {measurement: statistics.median(all_) for measurement, all_ in of.items()}
        for broker_name, of in found.items()
    }
    table = Table("who", "what", "median")
    for broker_name, of in medians.items():
        for measurement, figure in of.items():
            table.add_row(broker_name, measurement, f"{figure:,.1f}")
    Console(stderr=True).print(table)
    print(json.dumps(medians))


if __name__ == "__main__":
    main()
