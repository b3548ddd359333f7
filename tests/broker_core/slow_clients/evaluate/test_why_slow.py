"""Injected causes and the one verdict each must give."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.slow_clients.evaluate.why_slow import SlowCause, SlowEvidence, find_slow_cause

BEHIND = {"unread_messages": 500, "arrival_rate": 50_000, "taken_rate": 1_000}


@pytest.mark.parametrize(
    ("injected", "expected"),
    [
        ({}, SlowCause.KEEPS_UP),
        ({"unread_messages": 3, "arrival_rate": 900, "taken_rate": 900}, SlowCause.KEEPS_UP),
        ({**BEHIND, "write_blocked_ms": 5_000, "taken_rate": 0}, SlowCause.NOT_READING),
        ({**BEHIND, "write_blocked_ms": 5_000, "offlined": True}, SlowCause.NOT_READING),
        ({**BEHIND, "window_full_ms": 10, "unacked_messages": 100}, SlowCause.SLOW_ACKS),
        ({"unacked_messages": 100, "ack_silence_ms": 9_000}, SlowCause.APPLICATION_HANGS),
        ({"unacked_messages": 100, "ack_silence_ms": 9_000, "window_full_ms": 5}, SlowCause.SLOW_ACKS),
        ({"unacked_messages": 100, "ack_silence_ms": 2_000}, SlowCause.SLOW_ACKS),
        ({**BEHIND, "paused": True}, SlowCause.PAUSED),
        ({**BEHIND, "paused": True, "write_blocked_ms": 9_000}, SlowCause.PAUSED),
        ({**BEHIND, "rate_limited": True}, SlowCause.THROTTLED),
        ({**BEHIND, "rate_limited": True, "replaying": True}, SlowCause.THROTTLED),
        ({**BEHIND, "rate_limited": True, "write_blocked_ms": 9_000}, SlowCause.NOT_READING),
        ({**BEHIND, "replaying": True}, SlowCause.REPLAYING),
        ({**BEHIND, "loop_late_ms": 400}, SlowCause.BROKER_BUSY),
        ({**BEHIND, "loop_late_ms": 400, "write_blocked_ms": 60_000}, SlowCause.NOT_READING),
        ({**BEHIND, "disk_ms": 900, "offlined": True}, SlowCause.DISK_BUSY),
        ({**BEHIND, "disk_ms": 900, "replaying": True}, SlowCause.DISK_BUSY),
        ({**BEHIND, "disk_ms": 900}, SlowCause.READING_SLOWLY),
        (BEHIND, SlowCause.READING_SLOWLY),
        ({**BEHIND, "offlined": True, "arrival_rate": 0}, SlowCause.READING_SLOWLY),
        ({**BEHIND, "usual_arrival_rate": 900, "usual_taken_rate": 900}, SlowCause.BURST),
        ({**BEHIND, "usual_arrival_rate": 40_000, "usual_taken_rate": 900}, SlowCause.READING_SLOWLY),
        ({**BEHIND, "usual_arrival_rate": 9_000, "usual_taken_rate": 9_000}, SlowCause.READING_SLOWLY),
        (
            {**BEHIND, "usual_arrival_rate": 900, "usual_taken_rate": 900, "write_blocked_ms": 5_000},
            SlowCause.NOT_READING,
        ),
        ({**BEHIND, "network_limited": True}, SlowCause.SLOW_NETWORK),
        (
            {**BEHIND, "network_limited": True, "unacked_messages": 9, "window_full_ms": 9},
            SlowCause.SLOW_NETWORK,
        ),
        ({**BEHIND, "network_limited": True, "loop_late_ms": 400}, SlowCause.BROKER_BUSY),
        (
            {
                **BEHIND,
                "taken_rate": 10_000,
                "sure_rate": 10_000,
                "lump_bytes": 400_000,
                "write_blocked_ms": 79_000,
            },
            SlowCause.READING_SLOWLY,
        ),
        (
            {
                **BEHIND,
                "taken_rate": 10_000,
                "sure_rate": 10_000,
                "lump_bytes": 400_000,
                "write_blocked_ms": 81_000,
            },
            SlowCause.NOT_READING,
        ),
        (
            {**BEHIND, "taken_rate": 10_000, "lump_bytes": 400_000, "write_blocked_ms": 79_000},
            SlowCause.READING_SLOWLY,
        ),
        (
            {
                **BEHIND,
                "taken_rate": 90_000,
                "sure_rate": 80_000,
                "lump_bytes": 400_000,
                "write_blocked_ms": 11_000,
            },
            SlowCause.NOT_READING,
        ),
        (
            {**BEHIND, "sure_rate": 10, "lump_bytes": 400_000, "write_blocked_ms": 81_000},
            SlowCause.NOT_READING,
        ),
    ],
)
def test_each_cause_has_its_verdict(injected: dict[str, Any], expected: SlowCause) -> None:
    found = find_slow_cause(SlowEvidence(**injected))
    assert found.cause == expected and found.evidence
    assert all(getattr(SlowEvidence(**injected), name) == value for name, value in found.evidence.items())


@given(
    st.builds(
        SlowEvidence,
        *(st.integers(0, 10_000) for _ in range(5)),
        *(st.booleans() for _ in range(4)),
        *(st.integers(0, 10_000) for _ in range(4)),
    )
)
def test_there_is_always_one_verdict_with_figures(seen: SlowEvidence) -> None:
    found = find_slow_cause(seen)
    assert found.evidence and found.sentence.endswith(".")
    if seen.paused and seen.unread_messages:
        assert found.cause == SlowCause.PAUSED, "paused never looks like lagging (trap 24)"


def test_a_steady_reader_is_never_said_not_to_read() -> None:
    steady = SlowEvidence(
        unread_messages=5,
        taken_rate=10_000,
        arrival_rate=50_000,
        lump_bytes=400_000,
        write_blocked_ms=39_999,
    )
    assert (
        find_slow_cause(steady).sentence
        == "The network or the client is slow: the client reads 10,000 bytes/s, and 50,000 bytes/s arrive."
    )


def test_a_client_that_read_and_acknowledged_nothing_is_diagnosed_so() -> None:
    silent = SlowEvidence(
        unread_messages=9, arrival_rate=50_000, write_blocked_ms=30_000, lump_bytes=350_000, offlined=True
    )
    assert find_slow_cause(silent).cause == SlowCause.READING_SLOWLY
    assert (
        find_slow_cause(silent).sentence
        == "The network is slow, or the client reads slowly or not at all: its socket has "
        "accepted no bytes for 30000 ms, and 50,000 bytes/s arrive."
    )
    mute = SlowEvidence(unread_messages=9, unacked_messages=100, ack_silence_ms=47_000, window_full_ms=46_000)
    assert find_slow_cause(mute).cause == SlowCause.SLOW_ACKS
    assert "has acknowledged nothing for 47000 ms" in find_slow_cause(mute).sentence
