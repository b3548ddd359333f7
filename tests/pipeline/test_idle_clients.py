"""A back-test that skips idle clients gives the same result as one that checks every client."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_core.config import PolicyDocument
from broker_core.documents.system_records import TrafficSample
from pipeline.transforms.backtest import PolicyBacktest, run_backtests
from pipeline.transforms.backtest_guard import BacktestResult
from pipeline.transforms.recording import Recording
from pipeline.transforms.traces import ACTS, TRAFFIC, build_traces
from tests.support.rules import policy_with

HOST = 8 * 2**30
START = 1_795_262_400_000


class RecordedClient:
    """Samples and decisions of a random client that falls behind, catches up, idles and is sometimes
    offlined.
    """

    def __init__(self, chance: random.Random, name: str) -> None:
        self.looks: list[dict[str, Any]] = []
        self.acts: list[dict[str, Any]] = []
        self._chance, self._name = chance, name
        self._at = START + chance.randrange(40_000)
        self._connected = self._at
        self._transport = chance.choice(("tcp", "websocket"))
        self._came = self._owed = 0
        for _ in range(chance.randint(1, 4)):
            self._spell()
            gap = chance.choice((2_000, 8_000, 50_000, 200_000, 900_000))
            self._came += round(self._rate * gap / 1_000 * chance.choice((0, 0.5, 0.98, 1)))
            self._at += gap
        if chance.random() < 0.3:  # the client reconnects
            self._connected = self._at
            self._came = self._owed = 0
            self._spell()

    def _spell(self) -> None:
        chance = self._chance
        rate, drain = chance.randrange(1, 40_000), chance.choice((0.0, 0.5, 0.9, 1.0, 1.2))
        self._rate = rate
        spooled = chance.random() < 0.25
        length = chance.randint(2, 90)
        oldest, left_at = self._at, length * chance.choice((1, 1, 2))
        if spooled and chance.random() < 0.8:
            self._decided("offline")
        for second in range(length):
            self._came += rate
            self._owed = max(self._owed + round(rate * (1 - drain)), 0)
            oldest = max(oldest, self._at - chance.choice((500, 2_000, 60_000)) * second // 2)
            self._sample(oldest, spooled and second > 0, last=second + 1 == length and chance.random() < 0.7)
            if chance.random() < 0.02:
                self._decided(chance.choice(("warn", "disconnect", "offline")))
            self._at += chance.choice((1_000, 1_000, 1_000, 1_013, 2_700))
            if second > left_at:
                self._owed = 0

    def _sample(self, oldest: int, spooled: bool, last: bool) -> None:
        if last:
            self._owed = 0
        owed, size = self._owed, 500
        memory = 0 if spooled else owed * 115 // 100
        blocked = oldest if self._chance.random() < 0.3 and owed else 0
        figures = dict.fromkeys(TrafficSample._fields, 0) | {
            "at": self._at,
            "memory": memory,
            "disk": owed if spooled else 0,
            "messages": 0 if spooled else owed // size,
            "owed_bytes": owed,
            "owed_messages": owed // size,
            "matched_bytes": self._came,
            "matched_messages": self._came // size,
            "acknowledged_bytes": self._came - owed,
            "taken_bytes": self._came - owed,
            "oldest_at": oldest if owed else 0,
            "blocked_since": blocked,
            "offlined": int(spooled and not last),
            "subscriptions": 1,
            "unacked_at": self._at - 300 if owed and self._chance.random() < 0.3 else 0,
        }
        whose = {
            "name": self._name,
            "transport": self._transport,
            "user": "",
            "topic": "t",
            "connected": self._connected,
        }
        self.looks.append({**whose, **figures})

    def _decided(self, action: str) -> None:
        self.acts.append(
            {
                "at": self._at - self._chance.randrange(900),
                "client": self._name,
                "action": action,
                "reason": "",
                "rule": "r",
                "mode": self._chance.choice(("enforce", "shadow")),
                "signal": "outbound_bytes",
                "observed": self._owed,
                "limit": 1,
                "unit": "bytes",
                "revision": 1,
                "lost": 0,
                "memory": -1,
                "disk": -1,
            }
        )


def recorded(seed: int, clients: int) -> Recording:
    chance = random.Random(seed)
    made = [RecordedClient(chance, f"c-{number}") for number in range(clients)]
    looks = [row for one in made for row in one.looks]
    acts = [row for one in made for row in one.acts]
    return Recording(
        build_traces(pa.Table.from_pylist(looks, schema=TRAFFIC), pa.Table.from_pylist(acts, schema=ACTS))
    )


def rule(chance: random.Random, number: int) -> dict[str, Any]:
    """Return a random rule of any type that a back-test judges."""
    signal, limit = chance.choice(
        [
            ("outbound_bytes", 300_000),
            ("outbound_messages", 600),
            ("backlog_bytes", 300_000),
            ("backlog_messages", 600),
            ("oldest_age", 20_000),
            ("write_blocked", 20_000),
            ("spool_bytes", 300_000),
            ("spool_age", 20_000),
            ("drain_rate", 5_000),
            ("pool_memory", 1_000_000),
            ("pool_disk", 1_000_000),
        ]
    )
    made: dict[str, Any] = {
        "name": f"rule-{number}",
        "signal": signal,
        "limit": max(int(limit * chance.choice((0.1, 0.5, 1, 3))), 1),
        "scope": {} if signal.startswith("pool") else {"client": chance.choice(("*", "c-1"))},
        "mode": chance.choice(("enforce", "enforce", "shadow")),
        "ladder": [{"action": chance.choice(("warn", "offline", "disconnect"))}],
    }
    if signal.startswith("pool"):
        made |= {"choose": "largest_in_pool"}
    if signal == "drain_rate":
        return {
            **made,
            "shape": "rate_below",
            "window_ms": chance.choice((3_000, 90_000)),
            "count": 2,
            "check_ms": 1_000,
        }
    if signal in ("outbound_bytes", "backlog_bytes", "oldest_age") and chance.random() < 0.3:
        made |= {"shape": "set_clear", "clear": made["limit"] // 2}
    if chance.random() < 0.4:
        made["hold_ms"] = chance.choice((700, 5_000, 40_000))
    if chance.random() < 0.2:
        made["cooldown_ms"] = 30_000
    return made


def policy(seed: int) -> PolicyDocument:
    chance = random.Random(seed)
    rules = [rule(chance, number) for number in range(chance.choice((0, 0, 1, 2)))]
    memory = chance.choice((1_000_000, 3_000_000, 30_000_000))
    made = policy_with(*rules, pool={"message_memory_limit": memory, "message_disk_limit": memory})
    limits = replace(
        made.client_policy,
        client_max_capacity=chance.choice((2, 10, 50, 100)),
        client_message_age_limit_ms=chance.choice((None, 3_000, 20_000, 90_000)),
    )
    return replace(made, client_policy=limits)


def tight(seed: int) -> PolicyDocument:
    """Return a random policy whose pools are at their limits most of the time, with rules that discard,
    offline and disconnect.

    Pools are per transport, or one for all.
    """
    chance = random.Random(seed)
    limits = {
        name: chance.choice((50_000, 200_000, 1_000_000, 5_000_000))
        for name in ("message_memory_limit", "message_disk_limit")
    }
    rules = [rule(chance, number) for number in range(chance.choice((0, 0, 1, 2)))]
    for made in rules:
        if made["signal"] == "backlog_bytes" and "shape" not in made and chance.random() < 0.5:
            made |= {"ladder": [{"action": "discard_oldest"}], "scope": {**made["scope"], "topic": ">"}}
    made = policy_with(*rules, pool=limits)
    own = chance.choice((None, 3_000, 20_000))
    return replace(
        made,
        client_policy=replace(made.client_policy, client_max_capacity=100, client_message_age_limit_ms=own),
    )


def backtest_both_ways(document: PolicyDocument, recording: Recording) -> list[BacktestResult]:
    """Back-test with and without skipping idle clients."""
    return [
        run_backtests(recording, [PolicyBacktest(document, HOST, recording.traces, rests)])[0]
        for rests in (True, False)
    ]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(0, 2**32))
def test_decisions_on_idle_clients_equal_those_of_checked_ones(
    seed: int, clients: int, policy_seed: int
) -> None:
    """Compared are all decisions with their figures, losses, offline times, and the pools' peaks."""
    resting, looked_at = backtest_both_ways(policy(policy_seed), recorded(seed, clients))
    assert resting.as_dict() == looked_at.as_dict()


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.integers(3, 20), st.integers(0, 2**32))
def test_at_a_pools_limit_idle_clients_are_chosen_like_checked_ones(
    seed: int, clients: int, policy_seed: int
) -> None:
    """The guard knows the total of idle clients, and figures of each only when it chooses.

    Its choices, their times and their alternatives are equal.
    """
    resting, looked_at = backtest_both_ways(tight(policy_seed), recorded(seed, clients))
    assert resting.as_dict() == looked_at.as_dict()


def test_at_a_pools_limit_few_clients_reach_the_guard() -> None:
    """Only the pool's limits threaten these twenty clients."""
    made = policy_with(pool={"message_memory_limit": 1_000_000, "message_disk_limit": 2_000_000})
    document = replace(made, client_policy=replace(made.client_policy, client_max_capacity=100))
    recording = recorded(1, 20)
    few, all_of_them = (CountingGuard(document, recording, rests) for rests in (True, False))
    tried = [run_backtests(recording, [one])[0].as_dict() for one in (few, all_of_them)]
    assert tried[0] == tried[1]
    assert {act["signal"] for act in tried[0]["acts"]} >= {"pool_memory", "pool_disk"}
    assert few.looks < all_of_them.looks / 4


def test_the_guard_is_asked_where_there_is_something_to_see_and_nowhere_else() -> None:
    """Almost none of the eight clients' samples reach the guard; the pools' peaks are known nevertheless."""
    made = policy_with(pool={"message_memory_limit": 10**9, "message_disk_limit": 10**9})
    document = replace(made, client_policy=replace(made.client_policy, client_max_capacity=100))
    recording = recorded(5, 8)
    counts = []
    found = []
    for rests in (True, False):
        tried = CountingGuard(document, recording, rests)
        found.append(run_backtests(recording, [tried])[0].as_dict())
        counts.append(tried.looks)
    assert found[0] == found[1]
    assert any(max(peak) > 0 for peak in found[0]["peaks"].values())
    assert counts[0] < counts[1] / 4


class CountingGuard(PolicyBacktest):
    """A guard that counts its updates of a client."""

    def __init__(self, document: PolicyDocument, recording: Recording, rests: bool) -> None:
        super().__init__(document, HOST, recording.traces, rests)
        self.looks = 0

    def _move_client(self, number: int, step: int | None) -> None:
        self.looks += 1
        super()._move_client(number, step)
