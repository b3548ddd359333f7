"""A publisher or a subscriber as a process: `python -m bench.peers.role publish|subscribe PEER PORT ...`

A body starts with the monotonic nanosecond it was made and its number, so that a subscriber knows latency, order and
loss. It prints one JSON line each second and when it is stopped by SIGTERM.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from types import FrameType

from bench.peers import PEERS

BATCHES_A_SECOND = 50
SIZE = 1_000


def paced(seconds: float, rate: int) -> Iterator[list[bytes]]:
    """Batches of messages at a steady rate; a late one isn't made up for by skipping."""
    started, sent = time.monotonic(), 0
    each = rate // BATCHES_A_SECOND
    while sent < rate * seconds:
        time.sleep(max(0.0, started + sent / rate - time.monotonic()))
        now = time.monotonic_ns()
        yield [b"%020d%012d" % (now, sent + n) + b"x" * (SIZE - 32) for n in range(each)]
        sent += each


def publish(peer: str, port: int, seconds: float, rate: int) -> None:
    print(json.dumps({"started": time.monotonic()}), flush=True)
    PEERS[peer].publish(port, paced(seconds, rate))
    print(json.dumps({"ended": time.monotonic()}), flush=True)


class Tally:
    """What a subscriber has seen."""

    def __init__(self) -> None:
        self.latencies: list[int] = []
        self.count = self.lost = self.disorder = 0
        self.next = 0
        self.first = self.last = 0.0
        self.busiest = 0.0
        """The most messages a second over any half second: how fast a returning client drains."""
        self._window: tuple[float, int] = (0.0, 0)

    def add(self, bodies: Sequence[bytes]) -> None:
        now = time.monotonic_ns()
        self.last = now / 1e9
        self.first = self.first or self.last
        for body in bodies:
            number = int(body[20:32])
            if number < self.next:
                self.disorder += 1
            else:
                self.lost += number - self.next
                self.next = number + 1
        self.latencies.append(now - int(bodies[0][:20]))
        self.count += len(bodies)
        if self.last - self._window[0] >= 0.5:
            if self._window[0]:
                self.busiest = max(self.busiest, (self.count - self._window[1]) / (self.last - self._window[0]))
            self._window = (self.last, self.count)

    def say(self) -> None:
        import numpy as np

        p50, p99 = np.percentile(self.latencies, [50, 99]) / 1_000 if self.latencies else (0, 0)
        print(json.dumps({
            "received": self.count, "lost": self.lost, "disorder": self.disorder, "first": self.first, "last": self.last,
            "p50_us": round(float(p50)), "p99_us": round(float(p99)), "busiest": round(self.busiest),
        }), flush=True)


def subscribe(peer: str, port: int, name: str) -> None:
    tally = Tally()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        tally.say()
        sys.stdout.flush()
        import os
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    PEERS[peer].subscribe(port, name, lambda: print('{"ready": true}', flush=True), tally.add)
    tally.say()  # its broker has closed the connection
    signal.pause()


def main(role: str, peer: str, port: str, *rest: str) -> None:
    if role == "publish":
        publish(peer, int(port), float(rest[0]), int(rest[1]))
    else:
        subscribe(peer, int(port), rest[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
