"""Queries of the overview page: verdict, lag over time as runs of cells, recent changes, and forecast of disk
usage.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from broker_core.documents.clients import Health
from broker_core.documents.journals import SegmentEntry
from console.models import ClientMinute, ClientSample, Decision, Instance
from console.queries import overview
from console.services import policies
from console.services.actors import Actor
from tests.support.fake_broker import FakeBroker, make_client

NOW = datetime(2026, 11, 22, 12, 0, 5, tzinfo=UTC)
QUARTER = overview.RANGES["15m"]


def sample(instance: Instance, client: str, ago_s: int, lag_ms: int, spool: int = 0) -> None:
    at = NOW - timedelta(seconds=ago_s)
    ClientSample.objects.create(
        instance=instance, client=client, at=at, state="live", lag_ms=lag_ms, spool_bytes=spool
    )


def row(found: dict[str, Any], name: str) -> list[list[int]]:
    return next(list(one["runs"]) for one in found["rows"] if one["name"] == name)


def test_the_verdict_counts_who_asks_for_an_act_and_names_the_worst(
    broker: FakeBroker, instance: Instance
) -> None:
    found = overview.current_verdict(None)
    assert found.needing_attention == [(Health.STALLED, 1)]
    assert found.worst is not None and found.worst.name == "board-jfk"
    assert found.total == len(broker.clients) == sum(found.healths.values())


def test_a_verdict_is_of_the_clients_one_may_see(broker: FakeBroker, instance: Instance) -> None:
    found = overview.current_verdict(["carrier-*"])
    assert (found.needing_attention, found.worst) == ([], None)
    assert found.keeping_up == found.total == 14


def test_what_is_over_is_grey_and_what_is_open_has_the_colour_of_now(
    broker: FakeBroker, instance: Instance
) -> None:
    for ago in (600, 590, 580):
        sample(instance, "board-jfk", ago, 9_000, spool=5)
    sample(instance, "board-jfk", 570, 0)
    for ago in (25, 15, 5):
        sample(instance, "board-jfk", ago, 30_000)
    runs = row(overview.lag_heatmap(instance, QUARTER, NOW, None), "board-jfk")
    levels = [level for _, level, _ in runs]
    assert sum(length for length, _, _ in runs) == 90
    assert levels[0] == -1, "the level is unknown before the first sample"
    assert [3, 1] in [run[1:] for run in runs], "the earlier lag, spooled to disk"
    assert levels[-1] == 5, "the client is stalled now"


def test_days_of_some_lag_are_grey_for_a_client_that_is_stalled_since_minutes(
    broker: FakeBroker, instance: Instance
) -> None:
    days = overview.RANGES["90d"]
    rows = [
        ClientMinute(
            instance=instance, client="board-jfk", at=NOW - timedelta(days=ago), state="live", lag_ms=30_000
        )
        for ago in range(5)
    ]
    ClientMinute.objects.bulk_create(rows)
    levels = [level for _, level, _ in row(overview.lag_heatmap(instance, days, NOW, None), "board-jfk")]
    assert levels == [-1, 3, 5], "of five equal days, only today has the level stalled"


def test_a_client_that_keeps_up_now_is_grey_whatever_it_was(broker: FakeBroker, instance: Instance) -> None:
    broker.clients = [make_client("calm")]
    sample(instance, "calm", 5, 30_000)
    runs = row(overview.lag_heatmap(instance, QUARTER, NOW, None), "calm")
    assert {level for _, level, _ in runs} == {-1, 3}


def test_marks_are_revisions_and_of_one_client_its_decisions(instance: Instance, actor: Actor) -> None:
    since = datetime.now(UTC) - timedelta(hours=1)
    policies.change_instance_policy(actor, {"client_policy": {"client_max_capacity": 20}})
    at = datetime.now(UTC)
    Decision.objects.create(instance=instance, at=at, client="a", action="offline", mode="shadow", reason="x")
    assert [mark["label"] for mark in overview.time_marks(instance, since)] == ["revision 1", "revision 2"]
    assert overview.time_marks(instance, since, "a")[-1] == {
        "at": at.timestamp(),
        "kind": "decision",
        "label": "offline",
        "mode": "shadow",
    }
    assert overview.time_marks(instance, since, "b")[-1]["kind"] == "revision"


def test_since_then_groups_decisions_and_leaves_out_those_one_may_not_see(instance: Instance) -> None:
    at = datetime.now(UTC)
    for client in ("desk-1", "desk-2", "web-1"):
        Decision.objects.create(
            instance=instance, at=at, client=client, action="offline", mode="enforce", reason="x"
        )
    before = at - timedelta(minutes=1)
    assert [
        one["number"] for one in overview.events_since(instance, before, None) if one["kind"] == "decision"
    ] == [3]
    assert [
        one["number"]
        for one in overview.events_since(instance, before, ["desk-*"])
        if one["kind"] == "decision"
    ] == [2]
    assert overview.events_since(instance, at + timedelta(minutes=1), None) == []


def segment(tmp_path: Path, days_ago: float, state: str = "sealed", size: int = 2**20) -> SegmentEntry:
    at = int((NOW - timedelta(days=days_ago)).timestamp() * 1e9)
    return SegmentEntry(
        name="s",
        path=str(tmp_path / "s"),
        state=state,
        compressed=False,
        first_sequence=1,
        last_sequence=2,
        first_at=at,
        last_at=at + 1,
        bytes=size,
        records=2,
        pinned_by=[],
    )


def test_the_disk_lasts_as_long_as_it_takes_to_fill_at_this_weeks_pace(tmp_path: Path) -> None:
    found = overview.disk_forecast([segment(tmp_path, 30), segment(tmp_path, 2), segment(tmp_path, 1)], NOW)
    assert found is not None
    assert found.grows_a_day == 2**20
    assert found.full_in_s == 86_400 * found.free / 2**20


def test_what_the_forecast_is_made_of_is_what_segments_held_at_even_moments(tmp_path: Path) -> None:
    slow = replace(segment(tmp_path, 2), last_at=segment(tmp_path, 1).last_at)
    found = overview.disk_forecast([segment(tmp_path, 30), slow], NOW)
    assert found is not None and found.history is not None
    points, minute = found.history["points"], found.history["minute"]
    assert found.history["limit"] == found.used + found.free
    assert [points[0], points[45], points[90]] == [
        (round((NOW - timedelta(days=2)).timestamp()), 2**20),
        (round((NOW - timedelta(days=1)).timestamp()), 2 * 2**20),
        (round(NOW.timestamp()), 2 * 2**20),
    ]
    assert abs(points[15][1] - 2**20 - 2**20 / 3) <= 1
    assert {later - earlier for (earlier, _), (later, _) in pairwise(points)} == {minute / 6} == {1_920}


def test_without_a_sealed_segment_no_time_is_said(tmp_path: Path) -> None:
    found = overview.disk_forecast([segment(tmp_path, 0.1, "current")], NOW)
    assert found is not None and found.full_in_s is None
    assert overview.disk_forecast([], NOW) is None
