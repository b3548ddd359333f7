"""A publisher or a subscriber as a process: `python -m bench.peers.role publish|subscribe PEER PORT ...`

A body starts with its creation time in monotonic nanoseconds and its number, so that a subscriber knows
latency, order and loss. The first messages are a warm-up: a subscriber counts from number SKIP on. It
prints one JSON line when it receives SIGTERM, or when its broker closes the connection.
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
    """Yield batches at a steady rate. A late batch isn't skipped."""
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


AWAY_NS = 2_000_000_000
"""Silence after which the subscriber counts as having been away."""
CAUGHT_UP_NS = 200_000_000
"""Maximum age of a message that shows that the subscriber has caught up."""


class Tally:
    """Counts of a subscriber from message number `skip` on."""

    def __init__(self, skip: int) -> None:
        self._skip = skip
        self.latencies: list[int] = []
        self.count = self.lost = self.disorder = 0
        self.next = skip
        self.first = self.last = 0.0
        self.drained = 0.0
        """Messages a second from its return until it had caught up; 0 if it never did."""
        self._received_at = time.monotonic_ns()
        self._back: tuple[int, int] | None = None

    def add(self, bodies: Sequence[bytes]) -> None:
        now = time.monotonic_ns()
        made = int(bodies[0][:20])
        self._follow_return(now, now - made, len(bodies))
        if int(bodies[0][20:32]) < self._skip:
            bodies = [body for body in bodies if int(body[20:32]) >= self._skip]
            if not bodies:
                return
        self.last = now / 1e9
        self.first = self.first or self.last
        for body in bodies:
            number = int(body[20:32])
            if number >= self.next:
                self.lost += number - self.next
                self.next = number + 1
            elif number >= self._skip:
                self.disorder += 1
        self.latencies.append(now - made)
        self.count += len(bodies)

    def _follow_return(self, now: int, age: int, number: int) -> None:
        if self._back is None and not self.drained and now - self._received_at > AWAY_NS and age > AWAY_NS:
            self._back = (now, 0)
        elif self._back is not None:
            began, count = self._back
            self._back = (began, count + number)
            if age < CAUGHT_UP_NS:
                self.drained, self._back = count / ((now - began) / 1e9), None
        self._received_at = now

    def print_figures(self) -> None:
        import numpy as np

        p50, p99 = np.percentile(self.latencies, [50, 99]) / 1_000 if self.latencies else (0, 0)
        print(
            json.dumps(
                {
                    "received": self.count,
                    "lost": self.lost,
                    "disorder": self.disorder,
                    "first": self.first,
                    "last": self.last,
                    "p50_us": round(float(p50)),
                    "p99_us": round(float(p99)),
                    "drained": round(self.drained),
                }
            ),
            flush=True,
        )


def subscribe(peer: str, port: int, name: str, skip: int) -> None:
    tally = Tally(skip)

    def stop(_signal: int, _frame: FrameType | None) -> None:
        tally.print_figures()
        sys.stdout.flush()
        import os

        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    PEERS[peer].subscribe(port, name, lambda: print('{"ready": true}', flush=True), tally.add)
    tally.print_figures()  # its broker has closed the connection
    signal.pause()


def main(role: str, peer: str, port: str, *rest: str) -> None:
    if role == "publish":
        publish(peer, int(port), float(rest[0]), int(rest[1]))
    else:
        subscribe(peer, int(port), rest[0], int(rest[1]))


if __name__ == "__main__":
    main(*sys.argv[1:])
