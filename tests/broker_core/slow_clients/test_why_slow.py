"""Injected causes and the one verdict each must give."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.slow_clients.why_slow import Cause, Evidence, why_slow

BEHIND = {"waiting_messages": 500, "arrival_rate": 50_000, "drain_rate": 1_000}


@pytest.mark.parametrize(
    ("injected", "expected"),
    [
        ({}, Cause.KEEPS_UP),
        ({"waiting_messages": 3, "arrival_rate": 900, "drain_rate": 900}, Cause.KEEPS_UP),
        ({**BEHIND, "write_blocked_ms": 5_000, "drain_rate": 0}, Cause.NOT_READING),
        ({**BEHIND, "write_blocked_ms": 5_000, "offlined": True}, Cause.NOT_READING),
        ({**BEHIND, "window_full_ms": 10, "unacked_messages": 100}, Cause.SLOW_ACKS),
        ({"unacked_messages": 100, "ack_silence_ms": 9_000}, Cause.SLOW_ACKS),
        ({**BEHIND, "paused": True}, Cause.PAUSED),
        ({**BEHIND, "paused": True, "write_blocked_ms": 9_000}, Cause.PAUSED),
        ({**BEHIND, "rate_limited": True}, Cause.THROTTLED),
        ({**BEHIND, "rate_limited": True, "replaying": True}, Cause.THROTTLED),
        ({**BEHIND, "rate_limited": True, "write_blocked_ms": 9_000}, Cause.NOT_READING),
        ({**BEHIND, "replaying": True}, Cause.REPLAYING),
        ({**BEHIND, "loop_late_ms": 400}, Cause.BROKER_BUSY),
        ({**BEHIND, "loop_late_ms": 400, "write_blocked_ms": 60_000}, Cause.NOT_READING),
        ({**BEHIND, "disk_ms": 900, "offlined": True}, Cause.DISK_BUSY),
        ({**BEHIND, "disk_ms": 900, "replaying": True}, Cause.DISK_BUSY),
        ({**BEHIND, "disk_ms": 900}, Cause.READING_SLOWLY),
        (BEHIND, Cause.READING_SLOWLY),
        ({**BEHIND, "offlined": True, "arrival_rate": 0}, Cause.READING_SLOWLY),
    ],
)
def test_each_cause_has_its_verdict(injected: dict[str, Any], expected: Cause) -> None:
    found = why_slow(Evidence(**injected))
    assert found.cause is expected and found.evidence
    assert all(getattr(Evidence(**injected), name) == value for name, value in found.evidence.items())


@given(
    st.builds(
        Evidence,
        *(st.integers(0, 10_000) for _ in range(5)),
        *(st.booleans() for _ in range(4)),
        *(st.integers(0, 10_000) for _ in range(4)),
    )
)
def test_there_is_always_one_verdict_with_figures(seen: Evidence) -> None:
    found = why_slow(seen)
    assert found.evidence and found.sentence.endswith(".")
    if seen.paused and seen.waiting_messages:
        assert found.cause is Cause.PAUSED, "paused never looks like lagging (trap 24)"
