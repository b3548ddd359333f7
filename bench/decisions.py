"""What judging costs: `python -m bench.decisions [--clients 20000]`.

The guard alone, without sockets: 20,000 clients with a backlog each. How long the choice of the largest user takes
(limit: 50 µs), what a message costs while nothing is over, and the longest turn of the loop that the tick takes. All
of it in CPU time, so that what else the machine does is left out.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from broker_core.config import PolicyDocument, default_policy
from broker_core.slow_clients import Account, Action, SlowClientGuard, Waiting

START = 1_700_000_000_000_000_000
SECOND = 1_000_000_000
GIB = 1 << 30
WAITING = Waiting(10, 0, 0, "bench|1|")


class Held:
    """A client's backlog that nobody reads."""

    def __init__(self, oldest_at: int) -> None:
        self.oldest_at = oldest_at
        self.sent_bytes = 0
        self.blocked_since = oldest_at

    def waiting(self) -> Waiting:
        return WAITING


def guard(memory_limit: int, **more: Any) -> SlowClientGuard:
    document = default_policy("bench").to_dict() | more
    document["pool"] = {"message_memory_limit": memory_limit, "message_disk_limit": 1 << 50}
    document["client_policy"] = {"client_max_capacity": 100, "client_message_age_limit_ms": 86_400_000}
    return SlowClientGuard(PolicyDocument.from_dict(document), 64 * GIB, None, "/nowhere")


def crowd(made: SlowClientGuard, sizes: Sequence[int]) -> list[Account]:
    accounts = [made.register(f"c{number}", "tcp", Held(START)) for number in range(len(sizes))]
    for account, size in zip(accounts, sizes, strict=True):
        made.queued(account, size, START)
    gc.collect()
    gc.freeze()  # otherwise the collector's rounds over the accounts are measured
    return accounts


def choices(sizes: Sequence[int], step: int, decisions: int = 2_000) -> list[float]:
    """Seconds of each decision while everybody's backlog grows and the pool is at its limit."""
    made = guard(sum(sizes))
    accounts = crowd(made, sizes)
    taken: list[float] = []
    while len(taken) < decisions:
        for account in accounts:
            if account.offlined:
                continue
            begun = time.thread_time()
            decision = made.queued(account, step, START)
            if decision is not None:
                taken.append(time.thread_time() - begun)
                assert decision.action is Action.OFFLINE
                victim = made.account(decision.client)
                assert victim is not None
                made.released(victim, victim.memory)
            if len(taken) >= decisions:
                break
    return taken


def hot_path(clients: int, messages: int = 1_000_000) -> float:
    """Seconds of one message queued and released while nothing is over."""
    made = guard(1 << 50)
    accounts = crowd(made, [50_000] * clients)
    turns = messages // clients
    begun = time.thread_time()
    for _ in range(turns):
        for account in accounts:
            made.queued(account, 100, START)
            made.released(account, 100)
    return (time.thread_time() - begun) / (turns * clients)


RULES = {
    "xap": [{"enabled": True, "mode": "shadow"}],
    "rules": [
        {"name": "old", "signal": "oldest_age", "shape": "soft_for", "limit": 1, "hold_ms": 3_600_000,
         "mode": "enforce", "ladder": [{"action": "warn"}]},
    ],
}  # fmt: skip


def ticks(clients: int, seconds: int = 8, **rules: Any) -> tuple[list[float], list[float]]:
    """Seconds of each 25 ms part of a round, and of whole rounds, with everybody backlogged."""
    made = guard(1 << 50, **rules)
    crowd(made, [100_000] * clients)
    parts, rounds = [], []
    for part in range(40 * seconds):
        begun = time.thread_time()
        made.tick_part(START + part * SECOND // 40)
        parts.append(time.thread_time() - begun)
    for second in range(3):
        begun = time.thread_time()
        made.tick(START + (seconds + second) * SECOND)
        rounds.append(time.thread_time() - begun)
    return parts, rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=20_000)
    clients = parser.parse_args().clients
    table = Table("measured", "median", "p99", "longest", title=f"{clients:,} clients with a backlog")
    draw = random.Random(1)
    for name, sizes in (
        ("a choice, all equal", [100_000] * clients),
        ("a choice, sizes from 1 KB to 1 GB", [int(1_000 * 10 ** (6 * draw.random())) for _ in range(clients)]),
    ):
        row(table, name, choices(sizes, sum(sizes) // clients // 10, min(2_000, clients // 10)), 1e6, "µs")
    table.add_row("a message, nothing over", f"{hot_path(clients) * 1e9:.0f} ns", "", "")
    for name, rules in (("AMPS's rules", {}), ("and two that hold for everybody", RULES)):
        parts, rounds = ticks(clients, **rules)
        row(table, f"a part of the tick (25 ms), {name}", parts, 1e3, "ms")
        row(table, f"a whole tick at once, {name}", rounds, 1e3, "ms")
    Console().print(table)


def row(table: Table, name: str, seconds: list[float], unit: float, word: str) -> None:
    ordered = sorted(seconds)
    p99 = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    table.add_row(name, *(f"{value * unit:.1f} {word}" for value in (statistics.median(ordered), p99, ordered[-1])))


if __name__ == "__main__":
    main()
