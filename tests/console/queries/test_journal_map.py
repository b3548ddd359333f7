"""Map of the log, computed from the segment list of a broker."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from broker_core.documents.journals import SegmentEntry
from broker_core.journal.open_segments import PIN_KINDS
from console.models import ActionRun
from console.queries.journal_map import (
    BINS,
    HEIGHT,
    KINDS,
    WIDTH,
    holders_by_kind,
    journal_map,
    retention_options,
)
from console.queries.overview import DiskForecast

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
DAY = 86_400


def segment(number: int, age_days: float, *pinned: str, state: str = "sealed", **more: Any) -> SegmentEntry:
    """Return a segment of one day whose newest record is `age_days` old."""
    last = NOW - timedelta(days=age_days)
    facts = {
        "name": f"i.{number}.journal",
        "path": f"/j/{number}",
        "state": state,
        "compressed": False,
        "first_sequence": number * 100 + 1,
        "last_sequence": number * 100 + 100,
        "first_at": int((last - timedelta(days=1)).timestamp() * 1e9),
        "last_at": int(last.timestamp() * 1e9),
        "bytes": 1_000,
        "records": 100,
        "pinned_by": list(pinned),
        **more,
    }
    return SegmentEntry(**facts)


def test_every_kind_of_pin_has_its_words() -> None:
    assert set(PIN_KINDS) | {"reader"} == set(KINDS)


def test_tiers_share_one_scale_and_lie_where_their_time_is() -> None:
    found = journal_map(
        [
            segment(0, 9, state="archived", bytes=500),
            segment(1, 4, compressed=True, bytes=100),
            segment(2, 0, state="current"),
        ],
        [],
        "all",
        NOW,
    )
    disk, compressed, archive, removed = found.tiers
    assert [tier.segments for tier in found.tiers] == [1, 1, 1, 0] and removed.bars == []
    assert archive.bars[0].x == 0 and disk.bars[-1].x > WIDTH * (1 - 2 / BINS)
    assert max(bar.height for bar in disk.bars) == HEIGHT
    assert max(bar.height for bar in archive.bars) < 0.6 * HEIGHT
    assert all(bar.height >= 3 and bar.y + bar.height == HEIGHT for bar in compressed.bars)


def test_a_range_leaves_out_what_is_older_and_a_removal_is_a_tier() -> None:
    accepted = {
        "from": segment(0, 3).first_at,
        "to": segment(0, 3).last_at,
    }
    gone = ActionRun(result={"bytes": 700, "receipt": {"accepted": accepted}})
    found = journal_map(
        [segment(1, 40), segment(2, 0, state="current")], [gone, ActionRun(result={})], "7d", NOW
    )
    assert found.end - found.start == 7 * DAY * 10**9
    assert found.tiers[3].bytes == 700 and 0 < found.tiers[3].bars[0].x < WIDTH
    assert {bar.x for bar in found.tiers[0].bars} == {
        bar.x for bar in journal_map([segment(2, 0)], [], "7d", NOW).tiers[0].bars
    }


def test_an_empty_log_has_an_empty_map() -> None:
    found = journal_map([], [], "all", NOW)
    assert (found.holders, found.oldest, [tier.bars for tier in found.tiers]) == ([], None, [[], [], [], []])
    assert retention_options([], None, NOW)[0].segments == 0


def test_holders_are_grouped_the_oldest_first_with_what_they_keep() -> None:
    found = holders_by_kind(
        [
            segment(0, 9, "spool of stuck-0", "durable subscription night of auditor"),
            segment(
                1,
                4,
                "spool of stuck-0",
                "spool of stuck-1",
                "durable subscription night of auditor",
                "pipeline lake until 2026",
            ),
        ]
    )
    assert [(group.kind, len(group.holders)) for group in found] == [
        ("durable subscription", 1),
        ("spool", 2),
        ("pipeline", 1),
    ]
    durable, spools, pipeline = found
    assert (durable.oldest.client, durable.oldest.name, durable.oldest.bytes) == ("auditor", "night", 2_000)
    assert [(one.label, one.client, one.bytes) for one in spools.holders] == [
        ("stuck-0", "stuck-0", 2_000),
        ("stuck-1", "stuck-1", 1_000),
    ]
    assert pipeline.oldest.client == ""


def test_keeping_says_what_is_free_who_keeps_the_rest_and_where_it_comes_to_rest() -> None:
    log = [segment(0, 20), segment(1, 8, "spool of a"), segment(2, 2), segment(3, 0, state="current")]
    disk = DiskForecast(used=4_000, total=20_000, free=6_000, grows_a_day=1_000.0, full_in_s=6 * DAY)
    rows = {row.label: row for row in retention_options(log, disk, NOW)}
    assert [
        (rows[age].segments, rows[age].pinned_bytes) for age in ("1 day", "7 days", "14 days", "30 days")
    ] == [
        (2, 1_000),
        (1, 1_000),
        (1, 0),
        (0, 0),
    ]
    assert rows["7 days"].settles_at == 7_000 and rows["7 days"].fits and not rows["14 days"].fits
    assert "90 days" not in rows or "365 days" not in rows
