"""Cost of the guard's decisions: `python -m bench.decisions [--clients 20000]`.

The guard runs alone, without sockets: 20,000 clients with a backlog each. Measured are the choice of the
largest user (limit: 50 µs), the cost of a message while no limit is exceeded, and the longest time for
which a tick occupies the loop. All figures are CPU time, so that other load on the machine doesn't count.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from broker_core.config import PolicyDocument, default_policy
from broker_core.config.rule_terms import PolicyAction
from broker_core.engine.maintenance import tune_interpreter
from broker_core.slow_clients.accounts.client_usage import ClientUsage
from broker_core.slow_clients.accounts.guard import SlowClientGuard
from broker_core.slow_clients.evaluate.signals import BacklogCounts

START = 1_700_000_000_000_000_000
SECOND = 1_000_000_000
GIB = 1 << 30
PARTS = 40
PART = SECOND // PARTS
MINUTE = 60
MESSAGES = 2_500
"""Messages between two parts of the tick: 100,000 a second."""
WAITING = BacklogCounts(10, 0, 0, "bench|1|")


class StalledBacklog:
    """Backlog of a client that reads nothing."""

    def __init__(self, oldest_at: int) -> None:
        self.oldest_at = self.unacked_at = oldest_at
        self.messages = WAITING.outbox_messages
        self.acked_bytes = 0
        self.window_step_bytes = 0
        self.owed_messages = WAITING.outbox_messages
        self.owed_bytes = 1
        self.blocked_since = oldest_at

    def update_progress(self) -> None:
        """Do nothing: nothing was acknowledged."""

    def waiting(self) -> BacklogCounts:
        return WAITING


def guard(memory_limit: int, **more: Any) -> SlowClientGuard:
    document = default_policy("bench").to_dict() | more
    document["pool"] = {"message_memory_limit": memory_limit, "message_disk_limit": 1 << 50}
    document["client_policy"] = {"client_max_capacity": 100, "client_message_age_limit_ms": 86_400_000}
    return SlowClientGuard(PolicyDocument.from_dict(document), 64 * GIB, None, "/nowhere")


def crowd(made: SlowClientGuard, sizes: Sequence[int], seconds: int = 0) -> list[ClientUsage]:
    """Register clients whose backlogs grow to these sizes.

    `seconds`: time of the growth, in which they are sampled and ranked; 0: immediately.
    """
    accounts = [made.register(f"c{number}", "tcp", StalledBacklog(START)) for number in range(len(sizes))]
    for second in range(seconds):
        for account, size in zip(accounts, sizes, strict=True):
            made.on_queued(account, size // seconds, START)
        for part in range(second * PARTS, second * PARTS + PARTS):
            made.tick_part(START + part * PART)
    for account, size in zip(accounts, sizes, strict=True):
        made.on_queued(account, size - account.memory, START)
    tune_interpreter()  # as a broker does
    return accounts


class Choices:
    """Decisions while all backlogs grow evenly and the pool is at its limit.

    An offlined client stays offlined. With `at_once` its memory is freed immediately. Without, it stays in
    memory for the whole benchmark, as when thousands are offlined one after the other.
    """

    def __init__(self, sizes: Sequence[int], *, seconds: int = MINUTE, at_once: bool = True) -> None:
        self.durations_s: list[float] = []
        """Seconds of each decision."""
        self.parts: list[float] = []
        """Seconds of each part of the tick meanwhile."""
        self._guard = guard(sum(sizes))
        self._at_once = at_once
        self._accounts = crowd(self._guard, sizes, seconds)
        self._now = START + seconds * SECOND
        self._step = max(1, sum(sizes) // len(sizes) // 10)

    def make(self, number: int) -> Choices:
        """Continue until `number` decisions were made, or all clients are offlined."""
        while len(self.durations_s) < number:
            growing = [account for account in self._accounts if not account.is_offlined]
            if not growing:
                break
            for index, account in enumerate(growing):
                if index % MESSAGES == 0:
                    self._tick()
                if not account.is_offlined and len(self.durations_s) < number:
                    self._queue(account)
        return self

    def _queue(self, account: ClientUsage) -> None:
        started = time.thread_time()
        decision = self._guard.on_queued(account, self._step, self._now)
        spent = time.thread_time() - started
        if decision is not None:
            assert decision.action is PolicyAction.OFFLINE
            self.durations_s.append(spent)
            victim = self._guard.find_usage(decision.client)
            if victim is not None and self._at_once:
                self._guard.on_released(victim, victim.memory)

    def _tick(self) -> None:
        self._now += PART
        started = time.thread_time()
        assert not self._guard.tick_part(self._now)
        self.parts.append(time.thread_time() - started)


def hot_path(clients: int, messages: int = 1_000_000) -> float:
    """Return the seconds to queue and release a message while no limit is exceeded."""
    made = guard(1 << 50)
    accounts = crowd(made, [50_000] * clients)
    turns = messages // clients
    started = time.thread_time()
    for _ in range(turns):
        for account in accounts:
            made.on_queued(account, 100, START)
            made.on_released(account, 100)
    return (time.thread_time() - started) / (turns * clients)


RULES: dict[str, Any] = {
    "xap": [{"enabled": True, "mode": "shadow"}],
    "rules": [
        {
            "name": "old",
            "signal": "oldest_age",
            "shape": "soft_for",
            "limit": 1,
            "hold_ms": 3_600_000,
            "mode": "enforce",
            "ladder": [{"action": "warn"}],
        },
    ],
}


def ticks(clients: int, rules: dict[str, Any], seconds: int = 8) -> tuple[list[float], list[float]]:
    """Return the seconds of each 25 ms part of a tick, and of whole ticks. All clients have a backlog."""
    made = guard(1 << 50, **rules)
    crowd(made, [100_000] * clients)
    parts, rounds = [], []
    for part in range(PARTS * seconds):
        started = time.thread_time()
        made.tick_part(START + part * PART)
        parts.append(time.thread_time() - started)
    for second in range(3):
        started = time.thread_time()
        made.tick(START + (seconds + second) * SECOND)
        rounds.append(time.thread_time() - started)
    return parts, rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=20_000)
    clients = parser.parse_args().clients
    table = Table("measured", "median", "p99", "longest", title=f"{clients:,} clients with a backlog")
    choices(table, clients)
    table.add_row("a message, nothing over", f"{hot_path(clients) * 1e9:.0f} ns", "", "")
    for name, rules in (("AMPS's rules", {}), ("and two that hold for everybody", RULES)):
        parts, rounds = ticks(clients, rules)
        row(table, f"a part of the tick (25 ms), {name}", parts, 1e3, "ms")
        row(table, f"a whole tick at once, {name}", rounds, 1e3, "ms")
    Console().print(table)


def choices(table: Table, clients: int) -> None:
    """Add rows for the choice of the largest user."""
    draw = random.Random(1)
    equal, number = [100_000] * clients, min(2_000, clients // 10)
    varied = [int(1_000 * 10 ** (6 * draw.random())) for _ in range(clients)]
    meanwhile: list[float] = []
    for name, made in (
        ("a choice, all equal", Choices(equal)),
        ("a choice, sizes from 1 KB to 1 GB", Choices(varied)),
        ("a choice, 2,000 equal, none of them relieved yet", Choices(equal[:2_000], at_once=False)),
    ):
        row(table, name, made.make(number).durations_s, 1e6, "µs")
        meanwhile += made.parts
    row(table, "a part of the tick (25 ms) meanwhile", meanwhile, 1e3, "ms")
    row(
        table,
        "the first choice, the pool filled between two ticks",
        Choices(equal, seconds=0).make(1).durations_s,
        1e3,
        "ms",
    )


def row(table: Table, name: str, seconds: list[float], unit: float, word: str) -> None:
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    table.add_row(
        name, *(f"{value * unit:.1f} {word}" for value in (statistics.median(ordered), p99, ordered[-1]))
    )


if __name__ == "__main__":
    main()
