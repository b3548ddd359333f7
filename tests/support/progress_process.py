"""Transports without a broker: each client that sends data receives as much as its socket accepts.

`python -m tests.support.progress_process LOOP TRANSPORTS`: LOOP is asyncio or uvloop, TRANSPORTS the JSON of
a list of TransportSettings' fields. It prints a line of JSON with the ports by name. Then it prints samples
of the sinks four times a second: {"at": monotonic seconds, "peers": {remote address: [written, acked, window
step, network limited]}}. A line on its input ends the sending; data already sent stays readable.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from broker_core import batch as batches
from broker_core.batch import Batch
from broker_core.clock import SystemClock
from broker_core.config import TlsSettings, TransportSettings
from broker_core.connections.admission import PendingConnections, PreLogonReadQueue
from broker_core.delivery.entries import OutboxEntry

ROOT = Path(__file__).parents[2]
SAMPLE_INTERVAL_S = 0.25
BATCHES = (100, 3_000, 40_000)
"""Bytes of one record's body, in turn: kernels hold small and large writes differently."""


class SinkSample(NamedTuple):
    """Figures of a sink at one time."""

    at: float
    written: int
    acked: int
    window_step: int
    network_limited: bool


class TransportsProcess:
    """The process as a test sees it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._process = process
        self.ports: dict[str, int] = json.loads(process.stdout.readline())
        self.samples: dict[str, list[SinkSample]] = {}
        """Samples by the client's local address."""
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            for remote, said in told["peers"].items():
                self.samples.setdefault(remote, []).append(SinkSample(told["at"], *said))

    def stop_sending(self) -> None:
        """Stop sending; data not yet written to the sinks is never sent."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reading.join()


@contextmanager
def transports_process(loop: str, *transports: TransportSettings) -> Iterator[TransportsProcess]:
    """Run transports in a process until the block ends, and collect the samples of their sinks."""
    described = json.dumps([asdict(transport) for transport in transports])
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.progress_process", loop, described],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        made = TransportsProcess(process)
        try:
            yield made
        finally:
            made.end()


class FeedingConnection:
    """A connection that sends without end, as a Connection's outbox does."""

    logged_on = True

    def __init__(self, sink: Any) -> None:
        self.sink = sink
        self._entries: list[OutboxEntry] = []
        for nbytes in BATCHES:
            made = Batch.parse(batches.build_single_topic_batch("p", "a", [b"x" * nbytes]))
            self._entries.append(OutboxEntry(1, made, None, None, 0, 1, made.nbytes, 0))
        self._going = False

    def receive(self, _: Any) -> None:
        self._going = True
        self.on_writable()

    def on_writable(self) -> None:
        while self._going and self.sink.is_writable:
            self._entries.append(self._entries.pop(0))
            self.sink.send_entries(self._entries[:1])

    def on_closed(self) -> None: ...

    def stop(self) -> None:
        self._going = False


class FeedingHost:
    """The part of a Host that listeners need."""

    instance = "test-1"

    def __init__(self) -> None:
        self.feeders: list[FeedingConnection] = []
        self.pending_connections = PendingConnections()
        self.pre_logon_reads = PreLogonReadQueue(SystemClock())

    def add_connection(self, _: str, sink: Any) -> FeedingConnection:
        self.feeders.append(FeedingConnection(sink))
        return self.feeders[-1]

    def sample(self) -> dict[str, Any]:
        sinks = [feeder.sink for feeder in self.feeders]
        taken = [sink.acked_bytes() for sink in sinks]
        return {
            "at": time.monotonic(),
            "peers": {
                sink.remote: [sink.written_bytes, now, sink.window_step_bytes, sink.is_network_limited]
                for sink, now in zip(sinks, taken, strict=True)
            },
        }


async def _run(transports: list[TransportSettings]) -> None:
    from broker_core.transports.tcp import TcpListener

    host: Any = FeedingHost()
    ports = {}
    for settings in transports:
        if settings.kind == "tcp":
            listener: Any = TcpListener(host, settings)
        else:
            from api.broker_websocket.listener import WebSocketListener

            listener = WebSocketListener(host, settings)
        _, ports[settings.name] = await listener.listen()
    print(json.dumps(ports), flush=True)
    asyncio.get_running_loop().add_reader(sys.stdin, lambda: [feeder.stop() for feeder in host.feeders])
    while True:
        await asyncio.sleep(SAMPLE_INTERVAL_S)
        print(json.dumps(host.sample()), flush=True)


def _main(kind: str, described: str) -> None:
    transports = [
        TransportSettings(**fields | {"tls": TlsSettings(**fields["tls"]) if fields["tls"] else None})
        for fields in json.loads(described)
    ]
    if kind == "uvloop":
        import uvloop

        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    else:
        loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    # As in runbroker: Twisted uses the loop that is current when its reactor is installed.
    from api.broker_websocket import reactor

    reactor.install(loop)
    loop.run_until_complete(_run(transports))


if __name__ == "__main__":
    _main(*sys.argv[1:])
