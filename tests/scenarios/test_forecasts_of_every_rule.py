"""Every rule and signal has a forecast, or a reason for none.

A running hold ends when the forecast said.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from broker_core.config.rule_terms import Signal
from tests.support.brokers import ask, running_broker, until
from tests.support.raw import RawClient
from tests.support.rules import policy_with
from tests.support.stalled import StalledSubscriber

NOTIFY = [{"action": "notify"}]
HOLD = {"shape": "soft_for", "hold_ms": 6_000, "ladder": NOTIFY}
LIMITS = {
    "outbound_bytes": 1,
    "outbound_messages": 1,
    "backlog_bytes": 1,
    "backlog_messages": 1,
    "waiting_messages": 1,
    "oldest_age": 100,
    "write_blocked": 100,
    "window_full": 100,
    "unacked_messages": 1,
    "unacked_age": 100,
    "ack_silence": 100,
    "conflation_bytes": 1,
    "spool_bytes": 1,
    "spool_age": 100,
    "pinned_bytes": 1,
    "user_pinned_bytes": 1,
}
NOT_OF_IT = {
    "conflation_bytes",
    "spool_bytes",
    "spool_age",
    "write_blocked",
    "pinned_bytes",
    "user_pinned_bytes",
}
"""Signals that never apply to the client that reads and does not acknowledge: nothing is conflated,
spooled or pinned for it, and its connection accepts everything.
"""
RULES: list[dict[str, Any]] = [
    *(
        {"name": f"held.{signal}", "signal": signal, "limit": limit, **HOLD}
        for signal, limit in LIMITS.items()
    ),
    *({"name": f"far.{signal}", "signal": signal, "limit": 10**9, "ladder": NOTIFY} for signal in LIMITS),
    {
        "name": "rate",
        "signal": "drain_rate",
        "shape": "rate_below",
        "limit": 5_000,
        "window_ms": 500,
        "hold_ms": 500,
        "count": 3,
        "ladder": NOTIFY,
    },
    {
        "name": "acknowledged",
        "signal": "acknowledged_rate",
        "shape": "rate_below",
        "limit": 10,
        "window_ms": 500,
        "ladder": NOTIFY,
    },
    {
        "name": "counted",
        "signal": "window_full",
        "shape": "count_in_window",
        "limit": 100,
        "count": 5,
        "ladder": NOTIFY,
    },
    {
        "name": "by-the-clock",
        "signal": "backlog_messages",
        "limit": 10**6,
        "check_ms": 5_000,
        "ladder": NOTIFY,
    },
    {
        "name": "cleared",
        "signal": "backlog_messages",
        "shape": "set_clear",
        "limit": 10**6,
        "clear": 10,
        "ladder": NOTIFY,
    },
    {"name": "pool", "signal": "pool_memory", "limit": 10**9, "choose": "largest_in_pool", "ladder": NOTIFY},
    {"name": "disk", "signal": "pool_disk", "limit": 10**9, "choose": "largest_in_pool", "ladder": NOTIFY},
]


def test_there_is_a_rule_on_every_signal() -> None:
    assert {rule["signal"] for rule in RULES} == set(Signal)


async def test_each_rule_has_a_time_or_a_reason_and_holds_end_when_they_were_said_to(tmp_path: Path) -> None:
    async with running_broker(tmp_path, policy_with(*RULES)) as broker:
        stalled = await StalledSubscriber.connect(broker, "stalled", "t")
        window = await RawClient.connect(broker, "window")
        window.send_command({"c": "subscribe", "id": "s", "topic": "t", "ack": "client", "prefetch": 2})
        await window.read_until("processed")
        feed = await RawClient.connect(broker, "feed")
        await feed.publish("t", [b"x" * 1_000] * 300)
        for _ in range(20):
            await feed.publish("t", [b"x" * 1_000])
            await asyncio.sleep(0.1)
        said: dict[tuple[str, str], float] = {}
        names = {rule["name"] for rule in RULES}
        for name in ("stalled", "window", "feed"):
            now, found = time.time(), await ask(broker, "forecasts", name=name)
            assert {one["rule"] for one in found} >= (
                names if name != "feed" else {"held.outbound_bytes", "pool", "disk", "rate"}
            )
            for one in found:
                assert (one["fires_in_ms"] is None) == (one["why_none"] != ""), one
                if one["rule"].startswith("held.") and one["percent"] > 100:
                    said[name, one["rule"]] = now + one["fires_in_ms"] / 1_000
        timed = {rule for name, rule in said if name == "window"}
        assert timed == {f"held.{signal}" for signal in LIMITS.keys() - NOT_OF_IT}
        assert ("stalled", "held.write_blocked") in said

        def acts() -> dict[tuple[str, str], float]:
            return {
                (one.client, one.rule): one.at / 1_000 for one in reversed(broker.engine.decisions.recent)
            }

        await until(lambda: said.keys() <= acts().keys())
        acted = acts()
        late = {key: round(acted[key] - at, 2) for key, at in said.items() if abs(acted[key] - at) > 0.5}
        assert not late
        after = [one for name in ("stalled", "window") for one in await ask(broker, "forecasts", name=name)]
        assert {one["why_none"] for one in after if one["rule"] == "held.oldest_age"} == {
            "it has acted, and acts again only after the signal was within its limit"
        }
        del stalled
