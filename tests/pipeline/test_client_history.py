"""Client history: hourly rows from a client's events, and their files; without Spark."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.jobs.client_history import client_hours, newest_hour, request_from, write_hours
from pipeline.schemas import CLIENT_HOURS
from pipeline.transforms.client_history import EVENTS, HOUR_MS, close_open_hours, hours_of

H = 1_795_262_400_000
"""2026-11-21T12:00:00Z in milliseconds."""
MINUTE = 60_000


def events(*told: tuple[int, str | None, dict[str, Any]], client: str | None = "slow") -> pa.Table:
    rows = [
        {
            "sequence": number,
            "at": at,
            "client": client,
            "event": kind,
            "state": "offlined" if kind == "offline_start" else "live",
            "lag_messages": 0,
            "lag_bytes": 0,
            "lag_ms": 0,
        }
        | fields
        for number, (at, kind, fields) in enumerate(told, 1)
    ]
    return pa.Table.from_pylist(rows, schema=EVENTS)


def test_lag_is_the_greatest_and_its_mean_is_over_time_and_not_over_events() -> None:
    told = [(H + second * 1_000, "sample", {"lag_messages": 30}) for second in range(1, 61)]
    made = close_open_hours(
        hours_of(
            events(
                (H, "sample", {"lag_messages": 10, "lag_bytes": 1_000, "lag_ms": 5}),
                *told,
                (H + 2 * MINUTE, "sample", {"lag_messages": 0, "lag_bytes": None}),
                (H + HOUR_MS, "sample", {"lag_messages": 1, "lag_bytes": None, "lag_ms": None}),
            )
        )
    ).to_pylist()
    assert [row["samples"] for row in made] == [62, 1]
    assert (made[0]["lag_messages_max"], made[0]["connected_ms"]) == (30, HOUR_MS)
    assert made[0]["lag_messages_mean"] == pytest.approx((10 * 1 + 30 * 119) / 3_600)
    assert (made[0]["lag_bytes_max"], made[0]["lag_ms_max"], made[1]["lag_bytes_max"]) == (1_000, 5, 0)


def test_rates_states_and_decisions_of_each_transport_and_who_stays_connected() -> None:
    half = H + 30 * MINUTE
    mine = hours_of(
        events(
            (H + MINUTE, "connect", {}),
            (
                H + 2 * MINUTE,
                "sample",
                {"transport": "tcp", "delivered_messages": 6_000, "delivered_bytes": 60},
            ),
            (H + 3 * MINUTE, "sample", {"transport": "tcp", "delivered_messages": 6_060, "state": "paused"}),
            (
                H + 4 * MINUTE,
                None,
                {"action": "disconnect", "mode": "enforce", "lost": 7, "transport": "tcp"},
            ),
            (H + 4 * MINUTE, "disconnect", {}),
            (half, "connect", {}),
            (half + MINUTE, "sample", {"transport": "ws", "delivered_messages": 5, "state": "replaying"}),
            (half + 2 * MINUTE, "sample", {"transport": "ws", "delivered_messages": 5}),
        )
    )
    other = hours_of(events((H + 3 * HOUR_MS, "sample", {}), client="other"))
    tcp, ws, _ = close_open_hours(pa.concat_tables([mine, other])).to_pylist()
    assert (tcp["transport"], tcp["connected_ms"], tcp["paused_ms"]) == ("tcp", 3 * MINUTE, MINUTE)
    assert (tcp["delivered_messages"], tcp["delivered_bytes"], tcp["rate_max"]) == (6_060, 60, 100.0)
    assert (tcp["disconnected"], tcp["lost_messages"], tcp["connects"], tcp["disconnects"]) == (1, 7, 1, 1)
    assert (ws["transport"], ws["replaying_ms"], ws["delivered_messages"]) == ("ws", MINUTE, 5)
    assert ws["connected_ms"] == 30 * MINUTE


def test_deliveries_after_the_last_sample_come_from_the_disconnect_event() -> None:
    handed = {"delivered_messages": 90, "delivered_bytes": 9_000}
    made = close_open_hours(
        hours_of(
            events(
                (H, "connect", {}),
                (H + MINUTE, "sample", {"delivered_messages": 60, "delivered_bytes": 6_000}),
                (H + 2 * MINUTE, "disconnect", handed),
                (H + 3 * MINUTE, "connect", {}),
                (H + 4 * MINUTE, "disconnect", handed),
                (H + 5 * MINUTE, "connect", {}),
                (H + 6 * MINUTE, "disconnect", {}),
            )
        )
    ).to_pylist()[0]
    assert (made["delivered_messages"], made["delivered_bytes"]) == (180, 18_000)


def test_an_offline_episode_over_the_hour_counts_in_both_and_begins_in_one() -> None:
    made = hours_of(
        events(
            (H + 50 * MINUTE, "offline_start", {}),
            (H + 55 * MINUTE, "sample", {"state": "offlined"}),
            (H + 130 * MINUTE, "offline_stop", {}),
        )
    ).to_pylist()
    assert [row["offline_ms"] for row in made] == [10 * MINUTE, 60 * MINUTE, 10 * MINUTE]
    assert [row["offline_episodes"] for row in made] == [1, 0, 0]
    assert [row["samples"] for row in made] == [2, 0, 1]


def test_a_client_that_drains_is_offlined_until_it_is_live() -> None:
    made = hours_of(
        events(
            (H, "offline_start", {}),
            (H + 10_000, "sample", {"state": "draining"}),
            (H + 20_000, "sample", {"state": "offlined"}),
            (H + 30_000, "offline_stop", {}),
        )
    ).to_pylist()
    assert (made[0]["offline_ms"], made[0]["offline_episodes"]) == (30_000, 1)


def test_events_out_of_order_are_put_in_order() -> None:
    straight = events((H, "connect", {}), (H + 1_000, "offline_start", {}), (H + 5_000, "offline_stop", {}))
    assert hours_of(straight.take([2, 0, 1])).equals(hours_of(straight))


def test_a_disconnect_ends_an_episode() -> None:
    made = hours_of(
        events((H, "offline_start", {}), (H + 9_000, "disconnect", {}), (H + 60_000, "connect", {}))
    )
    row = made.to_pylist()[0]
    assert (row["offline_ms"], row["connects"], row["disconnects"]) == (9_000, 1, 1)


def test_an_episode_that_a_restart_of_the_broker_cut_lasts_as_long_as_samples_can_be_apart() -> None:
    made = hours_of(events((H, "offline_start", {}), (H + 20 * MINUTE, "connect", {})))
    assert made.to_pylist()[0]["offline_ms"] == 30_000


def test_an_open_episode_counts_up_to_its_last_event() -> None:
    made = hours_of(events((H, "offline_start", {}), (H + 10_000, "sample", {"state": "offlined"})))
    assert made.to_pylist()[0]["offline_ms"] == 10_000


def test_events_without_a_client_are_counted() -> None:
    made = client_hours(events((H, "sample", {}), (H, "sample", {}), client=None)).to_pylist()
    assert [(row["client"], row["samples"]) for row in made] == [(None, 2)]


def hours(*rows: tuple[int, int]) -> pa.Table:
    return pa.Table.from_pylist(
        [{"client": "slow", "hour": hour * 1_000, "samples": samples} for hour, samples in rows],
        schema=CLIENT_HOURS,
    )


def samples_in(directory: Path) -> list[int]:
    paths = sorted(directory.glob("day=*/*.parquet"))
    return [n for path in paths for n in pq.ParquetFile(path).read()["samples"].to_pylist()]


def test_the_newest_hour_is_replaced_and_older_ones_stay(tmp_path: Path) -> None:
    assert newest_hour(tmp_path, "sluice-1") is None
    assert write_hours(tmp_path, "sluice-1", hours((H, 1), (H + HOUR_MS, 2)), None) == 1
    newest = newest_hour(tmp_path, "sluice-1")
    assert newest == (H + HOUR_MS) * 1_000
    # The second read covers only the end of the hour before the newest hour.
    again = hours((H, 0), (H + HOUR_MS, 5), (H + 2 * HOUR_MS, 6), (H + 13 * HOUR_MS, 7))
    assert write_hours(tmp_path, "sluice-1", again, newest) == 2
    assert samples_in(tmp_path) == [1, 5, 6, 7]


def test_nothing_new_changes_no_file(tmp_path: Path) -> None:
    assert write_hours(tmp_path, "sluice-1", hours(), None) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_run_reads_from_a_minute_before_the_newest_hour() -> None:
    request = request_from(H * 1_000, argparse.Namespace(durable=None, skip_gaps=False))
    assert request.start_at == (H - MINUTE) * 1_000_000
    assert request.topics == ("$SLUICE.clients", "$SLUICE.decisions")
