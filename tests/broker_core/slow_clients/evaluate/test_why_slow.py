"""Injected causes and the one verdict each must give."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_core.slow_clients.evaluate.why_slow import Cause, Evidence, why_slow

BEHIND = {"unread_messages": 500, "arrival_rate": 50_000, "taken_rate": 1_000}


@pytest.mark.parametrize(
    ("injected", "expected"),
    [
        ({}, Cause.KEEPS_UP),
        ({"unread_messages": 3, "arrival_rate": 900, "taken_rate": 900}, Cause.KEEPS_UP),
        ({**BEHIND, "write_blocked_ms": 5_000, "taken_rate": 0}, Cause.NOT_READING),
        ({**BEHIND, "write_blocked_ms": 5_000, "offlined": True}, Cause.NOT_READING),
        ({**BEHIND, "window_full_ms": 10, "unacked_messages": 100}, Cause.SLOW_ACKS),
        ({"unacked_messages": 100, "ack_silence_ms": 9_000}, Cause.APPLICATION_HANGS),
        ({"unacked_messages": 100, "ack_silence_ms": 9_000, "window_full_ms": 5}, Cause.SLOW_ACKS),
        ({"unacked_messages": 100, "ack_silence_ms": 2_000}, Cause.SLOW_ACKS),
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
        ({**BEHIND, "usual_arrival_rate": 900, "usual_taken_rate": 900}, Cause.BURST),
        ({**BEHIND, "usual_arrival_rate": 40_000, "usual_taken_rate": 900}, Cause.READING_SLOWLY),
        ({**BEHIND, "usual_arrival_rate": 9_000, "usual_taken_rate": 9_000}, Cause.READING_SLOWLY),
        (
            {**BEHIND, "usual_arrival_rate": 900, "usual_taken_rate": 900, "write_blocked_ms": 5_000},
            Cause.NOT_READING,
        ),
        ({**BEHIND, "network_limited": True}, Cause.SLOW_NETWORK),
        ({**BEHIND, "network_limited": True, "unacked_messages": 9, "window_full_ms": 9}, Cause.SLOW_NETWORK),
        ({**BEHIND, "network_limited": True, "loop_late_ms": 400}, Cause.BROKER_BUSY),
        (
            {
                **BEHIND,
                "taken_rate": 10_000,
                "sure_rate": 10_000,
                "lump_bytes": 400_000,
                "write_blocked_ms": 79_000,
            },
            Cause.READING_SLOWLY,
        ),
        (
            {
                **BEHIND,
                "taken_rate": 10_000,
                "sure_rate": 10_000,
                "lump_bytes": 400_000,
                "write_blocked_ms": 81_000,
            },
            Cause.NOT_READING,
        ),
        (
            {**BEHIND, "taken_rate": 10_000, "lump_bytes": 400_000, "write_blocked_ms": 79_000},
            Cause.READING_SLOWLY,
        ),
        (
            {
                **BEHIND,
                "taken_rate": 90_000,
                "sure_rate": 80_000,
                "lump_bytes": 400_000,
                "write_blocked_ms": 11_000,
            },
            Cause.NOT_READING,
        ),
        ({**BEHIND, "sure_rate": 10, "lump_bytes": 400_000, "write_blocked_ms": 81_000}, Cause.NOT_READING),
    ],
)
def test_each_cause_has_its_verdict(injected: dict[str, Any], expected: Cause) -> None:
    found = why_slow(Evidence(**injected))
    assert found.cause == expected and found.evidence
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
    if seen.paused and seen.unread_messages:
        assert found.cause == Cause.PAUSED, "paused never looks like lagging (trap 24)"


def test_a_steady_reader_is_never_said_not_to_read() -> None:
    steady = Evidence(
        unread_messages=5,
        taken_rate=10_000,
        arrival_rate=50_000,
        lump_bytes=400_000,
        write_blocked_ms=39_999,
    )
    assert (
        why_slow(steady).sentence
        == "A slow network, or slow reading: it takes 10,000 bytes/s, and 50,000 bytes/s come for it."
    )


def test_who_has_taken_and_acknowledged_nothing_is_said_to() -> None:
    silent = Evidence(
        unread_messages=9, arrival_rate=50_000, write_blocked_ms=30_000, lump_bytes=350_000, offlined=True
    )
    assert why_slow(silent).cause == Cause.READING_SLOWLY
    assert (
        why_slow(silent).sentence
        == "A slow network, slow reading, or none: its connection has taken nothing for 30000 ms, and 50,000 bytes/s come for it."
    )
    mute = Evidence(unread_messages=9, unacked_messages=100, ack_silence_ms=47_000, window_full_ms=46_000)
    assert why_slow(mute).cause == Cause.SLOW_ACKS
    assert "has acknowledged nothing for 47000 ms" in why_slow(mute).sentence
