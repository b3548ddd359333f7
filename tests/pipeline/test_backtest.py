"""Back-tests predict what happened.

First, a real broker with clients of mixed behaviour: the policy in force is back-tested on its recording.
Then other policies on planted traces with known results.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from broker_core.config import PolicyDocument
from broker_core.config.rule_terms import POOL_SIGNALS, Signal
from broker_core.documents.system_records import TrafficRowKey, TrafficSample, pack_samples
from broker_core.errors import SluiceError
from broker_core.names import TRAFFIC_TOPIC
from pipeline.jobs import backtest
from pipeline.jobs.backtest import read_decisions, read_samples
from pipeline.transforms.agreement import compare_decisions
from pipeline.transforms.backtest import backtest_policies
from pipeline.transforms.backtest_guard import BacktestResult
from pipeline.transforms.recording import LEVELS, Recording
from pipeline.transforms.simulated_client import UNRECORDED_SIGNALS
from pipeline.transforms.traces import ACTS, TRAFFIC, build_traces, interpolate
from sluice_spark.arrow_reader import ReadRequest, plan_log
from sluice_spark.location import LogLocation
from sluice_spark.log import examine_log
from tests.pipeline.support import FakeReporter, append, fill, open_journal, settings_in
from tests.support.brokers import running_broker, until
from tests.support.raw import RawClient
from tests.support.rules import policy_with
from tests.support.stalled import StalledSubscriber
from tests.support.steady_readers import SteadyReader, reading_steadily

HOST = 8 * 2**30
START = 1_795_262_400_000


def recorded_in(home: Path, instance: str = "test-1") -> tuple[pa.Table, pa.Table]:
    """Return the samples and the decisions in a broker's journal."""
    log = examine_log(LogLocation(home / "journal", None, instance))
    request = ReadRequest(columns=("body",))
    spans = plan_log(log, request)
    looks = [one for span in spans for one in read_samples(log.location, request, span)]
    acts = [one for span in spans for one in read_decisions(log.location, request, span)]
    return (
        pa.concat_tables(
            [TRAFFIC.empty_table(), *(one.select(TRAFFIC.names).cast(TRAFFIC) for one in looks)]
        ),
        pa.concat_tables([ACTS.empty_table(), *acts]),
    )


def tried(policy: PolicyDocument, looks: pa.Table, acts: pa.Table) -> BacktestResult:
    (found,) = backtest_policies([policy], HOST, Recording(build_traces(looks, acts)))
    return found


def clients_and_actions(acts: Sequence[dict[str, Any]]) -> set[tuple[str, str, str]]:
    """Return clients and their actions."""
    return {(one["client"], one["action"], one["mode"]) for one in acts}


def mixed() -> PolicyDocument:
    """Return a policy that warns at 200 kB, offlines at 1 MB, and disconnects when the oldest message is 6
    s old.
    """
    warn = {
        "name": "warn",
        "scope": {"client": "*"},
        "signal": "outbound_bytes",
        "limit": 200_000,
        "ladder": [{"action": "warn"}],
    }
    rate = {
        "name": "crawl",
        "scope": {"client": "*0-32768-*"},
        "mode": "shadow",
        "signal": "oldest_age",
        "limit": 2_000,
        "ladder": [{"action": "disconnect"}],
    }
    made = policy_with(
        warn, rate, pool={"message_memory_limit": 10_000_000, "message_disk_limit": 100_000_000}
    )
    return replace(
        made,
        client_policy=replace(made.client_policy, client_max_capacity=10, client_message_age_limit_ms=6_000),
    )


@pytest.mark.slow
async def test_the_policy_in_force_predicts_what_was_decided(tmp_path: Path) -> None:
    """Stalled, slow and quick clients; topics are unjournaled, so that backlogs are in memory.

    Takes about 12 s.
    """
    policy = mixed()
    policy = replace(policy, instance=replace(policy.instance, unjournaled_topics=("t",)))
    async with running_broker(tmp_path, policy) as broker:
        port = broker.statistics.transports[0]["port"]
        stalled = [await StalledSubscriber.connect(broker, f"stalled-{n}", "t") for n in range(4)]
        steady = [SteadyReader(port, rate, 32_768) for rate in (20_000, 60_000, 150_000, 400_000)]
        feed = await RawClient.connect(broker, "feed")

        async def publish() -> None:
            while True:
                await feed.publish("t", [b"x" * 5_000] * 8)
                await asyncio.sleep(0.1)

        with reading_steadily(steady):
            await until(lambda: len(broker.engine.roster.clients) == 9)
            task = asyncio.create_task(publish())
            try:
                gone = {"stalled-0", "stalled-1", "stalled-2", "stalled-3"}
                await until(lambda: not gone & broker.engine.roster.clients.keys())
                # Decisions after the last disconnection are published with the next second's sample.
                made = broker.engine.decisions.total
                await until(
                    lambda: (
                        len([one for one in broker.engine.decisions.recent if one.action == "disconnect"])
                        >= 4
                    )
                )
                await asyncio.sleep(1.5)
                assert made
            finally:
                task.cancel()
        del stalled
        await broker.stop()
    looks, acts = recorded_in(tmp_path)
    predicted = tried(policy, looks, acts)
    # Decisions in the broker's last fraction of a second have no sample from which they could be predicted.
    newest = max(looks["at"].to_pylist())
    recorded = [row for row in acts.to_pylist() if row["at"] <= newest]
    assert {row["action"] for row in recorded} >= {"warn", "disconnect"}
    found = compare_decisions(recorded, predicted.acts)
    # The goal is 95 % for both. A client that is disconnected between two samples has no sample that could
    # predict it. On a busy machine this can affect two of these eight (24 of 26 seen); more would be a fault.
    who, foreseen = clients_and_actions(recorded), clients_and_actions(predicted.acts)
    assert len(who & foreseen) >= 0.85 * len(who | foreseen), (who ^ foreseen, found)
    assert found.percent >= 80, (found, recorded, predicted.acts)
    assert found.in_time_percent >= 90, "one of 17 was late once"  # one late of 17 was seen
    other = replace(policy, client_policy=replace(policy.client_policy, client_message_age_limit_ms=3_000))
    unlike = compare_decisions(recorded, tried(other, looks, acts).acts)
    assert unlike.in_time_percent < 80, unlike


def planted(name: str, rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Return samples one second apart."""
    base = dict.fromkeys(TrafficSample._fields, 0) | {"subscriptions": 1, "lump_bytes": 0}
    made = [
        {
            "name": name,
            "transport": "tcp",
            "user": "",
            "topic": "t",
            "connected": START,
            **base,
            "at": START + 1_000 * n,
            **row,
        }
        for n, row in enumerate(rows)
    ]
    return pa.Table.from_pylist(made, schema=TRAFFIC)


def growing(name: str, rate: int, seconds: int, drains: int = 0) -> pa.Table:
    """Return samples of a client that is sent and reads fixed numbers of bytes a second."""
    rows = [
        {
            "memory": (rate - drains) * n,
            "matched_bytes": rate * n,
            "matched_messages": rate * n // 1_000,
            "acknowledged_bytes": drains * n,
            "taken_bytes": drains * n,
            "owed_bytes": (rate - drains) * n,
            "owed_messages": (rate - drains) * n // 1_000,
            "messages": (rate - drains) * n // 1_000,
            "oldest_at": START if n else 0,
            "unjournaled": 1,
        }
        for n in range(seconds)
    ]
    return planted(name, rows)


def limited(capacity: int, age_ms: int | None = None, memory: int = 1_000_000) -> PolicyDocument:
    made = policy_with(pool={"message_memory_limit": memory, "message_disk_limit": 10 * memory})
    return replace(
        made,
        client_policy=replace(
            made.client_policy, client_max_capacity=capacity, client_message_age_limit_ms=age_ms
        ),
    )


def actions_of(found: BacktestResult, name: str) -> list[tuple[str, int]]:
    return [(row["action"], row["at"] - START) for row in found.acts if row["client"] == name]


def test_every_signal_is_simulated_or_listed_as_unrecorded() -> None:
    simulated = LEVELS.keys() | POOL_SIGNALS | {Signal.SPOOL_AGE, Signal.DRAIN_RATE}
    assert not simulated & UNRECORDED_SIGNALS
    assert simulated | UNRECORDED_SIGNALS == set(Signal)


def test_a_limit_is_passed_when_it_is_passed() -> None:
    """100 kB a second exceeds half of 1 MB after 5 s, and 1 MB after 10 s."""
    looks = growing("slow", 100_000, 20)
    assert actions_of(tried(limited(50), looks, ACTS.empty_table()), "slow") == [("offline", 5_500)]
    ((action, at),) = actions_of(tried(limited(90), looks, ACTS.empty_table()), "slow")
    assert (action, at) == ("offline", 9_500)
    assert tried(limited(50, memory=10_000_000), looks, ACTS.empty_table()).acts == []


def test_a_client_that_is_offlined_in_the_try_alone_goes_on_as_it_was_seen_to_take() -> None:
    """The client reads 80 kB of 100 kB a second.

    Offlined at 150 kB, it never catches up, and its spool grows by 20 kB a second.
    """
    looks = growing("slow", 100_000, 30, drains=80_000)
    found = tried(limited(15), looks, ACTS.empty_table())
    assert actions_of(found, "slow") == [("offline", 8_000)]
    assert found.parted == 1
    assert abs(found.offlined_ms["slow"] - 21_500) <= 1_000
    ((memory, disk),) = found.peaks.values()
    assert abs(memory - 160_000) <= 20_000
    assert abs(disk - 29 * 20_000) <= 60_000


def test_the_larger_of_two_clients_is_chosen_when_the_pool_is_full() -> None:
    looks = pa.concat_tables([growing("large", 60_000, 20), growing("small", 40_000, 20)])
    found = tried(limited(100), looks, ACTS.empty_table())
    assert actions_of(found, "large") == [("offline", 10_500)]
    assert actions_of(found, "small") == []


def test_an_age_limit_ends_it_and_what_no_bookmark_brings_back_is_lost() -> None:
    looks = growing("slow", 10_000, 20)
    found = tried(limited(100, age_ms=7_000), looks, ACTS.empty_table())
    ((action, at),) = actions_of(found, "slow")
    assert action == "disconnect"
    assert 7_000 <= at <= 8_500


def test_a_disconnection_between_two_looks_is_predicted_by_what_it_observed() -> None:
    """No message waited at the last sample. Then one became too old, and no further sample was taken."""
    looks = planted("slow", [{"matched_bytes": 1_000 * n, "matched_messages": n} for n in range(4)])
    told = {
        "at": START + 5_400,
        "client": "slow",
        "action": "disconnect",
        "mode": "enforce",
        "signal": "oldest_age",
        "observed": 2_100,
        "limit": 2_000,
        "unit": "ms",
        "memory": -1,
        "disk": -1,
        "lost": 0,
    }
    acts = pa.Table.from_pylist([told], schema=ACTS)
    assert actions_of(tried(limited(100, age_ms=2_000), looks, ACTS.empty_table()), "slow") == []
    assert actions_of(tried(limited(100, age_ms=2_000), looks, acts), "slow") == [("disconnect", 5_400)]
    assert actions_of(tried(limited(100, age_ms=3_000), looks, acts), "slow") == []


def test_clients_disconnected_at_their_limit_are_so_in_the_back_test_at_any_phase() -> None:
    """Each client passes its limit at another moment of the second, with no check of the guard before the
    recording ends.
    """
    names = [f"slow-{n:02d}" for n in range(40)]
    looks = pa.concat_tables(
        [
            planted(
                name,
                [{"memory": 90, "owed_bytes": 90, "oldest_at": START, "unjournaled": 1} for _ in range(5)],
            )
            for name in names
        ]
    )
    told = [
        {
            "at": START + 4_100 + 17 * n,
            "client": name,
            "action": "disconnect",
            "mode": "enforce",
            "signal": "oldest_age",
            "observed": 4_600 + n,
            "limit": 4_500,
            "unit": "ms",
            "memory": -1,
            "disk": -1,
            "lost": 0,
        }
        for n, name in enumerate(names)
    ]
    found = tried(limited(100, age_ms=4_500), looks, pa.Table.from_pylist(told, schema=ACTS))
    for act in told:
        assert actions_of(found, act["client"]) == [("disconnect", act["at"] - START)]


def test_a_client_that_comes_back_from_its_spool_goes_on_as_it_was_recorded() -> None:
    """The client is offlined at 500 kB and reads all of it, twice: two offline periods, and no
    extrapolation.
    """
    spell = [{"memory": 100_000 * n, "owed_bytes": 100_000 * n} for n in range(5)]
    spell += [{"memory": 0, "disk": 1_000, "owed_bytes": 600_000, "offlined": 1} for _ in range(3)]
    spell += [{"memory": 0, "owed_bytes": 0} for _ in range(4)]
    rows = [
        {
            **row,
            "oldest_at": START if row["owed_bytes"] else 0,
            "matched_bytes": 100_000 * n,
            "matched_messages": 100 * n,
        }
        for n, row in enumerate(2 * spell)
    ]
    told = [
        {
            "at": START + at,
            "client": "slow",
            "action": "offline",
            "mode": "enforce",
            "signal": "outbound_bytes",
            "observed": 450_000,
            "limit": 440_000,
            "unit": "bytes",
            "memory": 450_000,
            "disk": 0,
            "lost": 0,
        }
        for at in (4_600, 16_600)
    ]
    found = tried(limited(44), planted("slow", rows), pa.Table.from_pylist(told, schema=ACTS))
    offlined = actions_of(found, "slow")
    assert [action for action, _ in offlined] == ["offline", "offline"]
    assert all(abs(at - then) <= 1_000 for (_, at), then in zip(offlined, (4_600, 16_600), strict=True))
    assert found.parted == 0


def test_the_age_of_a_slow_readers_backlog_is_interpolated_between_samples() -> None:
    """The oldest message ages by half a second each second, with a sample every four: it is 7.5 s old after
    15 s, and not before.
    """
    rows = [
        {
            "at": START + 4_000 * n,
            "memory": 500 * n,
            "owed_bytes": 500 * n,
            "oldest_at": START + 2_000 * n if n else 0,
        }
        for n in range(8)
    ]
    looks = planted("slow", rows)
    ((_, at),) = actions_of(tried(limited(100, age_ms=7_500), looks, ACTS.empty_table()), "slow")
    assert 15_000 <= at <= 16_000


@settings(deadline=None)
@given(data=st.data(), steps=st.lists(st.integers(0, 10**12), min_size=1, max_size=20))
def test_one_number_between_looks_is_that_of_numpy_to_the_last_bit(
    data: st.DataObject, steps: list[int]
) -> None:
    """Some samples have equal values, such as bytes when no message arrived."""
    xs = np.cumsum(np.array(steps, np.int64))
    ys = np.array(data.draw(st.lists(st.integers(0, 2**52), min_size=len(xs), max_size=len(xs))), np.int64)
    last = int(xs[-1])
    near = st.one_of(st.integers(-1, last + 1), st.sampled_from(xs.tolist()), st.floats(-1, last + 1))
    for x in data.draw(st.lists(near, min_size=1, max_size=20)):
        assert interpolate(x, xs, ys) == np.interp(x, xs, ys)


def test_agreement_counts_episodes_and_not_repetitions() -> None:
    def act(client: str, at: int, action: str = "offline") -> dict[str, Any]:
        return {"client": client, "at": at, "action": action, "mode": "enforce"}

    recorded = [act("a", 0), act("a", 1_000), act("a", 60_000), act("b", 0), act("d", 0, "warn")]
    predicted = [act("a", 900), act("a", 62_000), act("c", 0), act("d", 0, "warn")]
    found = compare_decisions(recorded, predicted)
    assert found == (3, 1, 1, 2)
    assert (found.percent, found.in_time_percent) == (60.0, 66.7)
    assert compare_decisions([], []).percent == 100


# Tests of the job with a journal.


def journaled(home: Path, looks: pa.Table) -> None:
    """Write samples into a journal as the broker does."""
    rows = looks.sort_by("at").to_pylist()
    with open_journal(home) as log:
        for start in range(0, len(rows), 50):
            some = rows[start : start + 50]
            figures = array("q", [row[name] for row in some for name in TrafficSample._fields])
            entry = pack_samples(
                some[-1]["at"],
                [TrafficRowKey(*(row[name] for name in TrafficRowKey._fields)) for row in some],
                figures,
                0,
            )
            append(
                log,
                [(TRAFFIC_TOPIC, msgspec.json.encode(entry))],
                at=some[-1]["at"] * 1_000_000,
                publisher="$SLUICE",
            )


@pytest.mark.slow
def test_a_grid_is_tried_in_parallel_and_the_cheapest_that_saves_a_client_is_found(
    lent: SparkSession, tmp_path: Path
) -> None:
    """The client's backlog reaches 1.9 MB in 20 s, at 100 kB a second, in a pool of 3 MB."""
    journaled(tmp_path, pa.concat_tables([growing("slow", 100_000, 20), growing("mild", 20_000, 20)]))
    settings, told = settings_in(tmp_path), FakeReporter()
    policy = tmp_path / "tight.yaml"
    policy.write_text(json.dumps(limited(10, memory=3_000_000).to_dict()))
    asked = argparse.Namespace(
        policy=str(policy),
        grid="client_policy.client_max_capacity=30,70,80,100",
        save="slow",
        start="",
        end="",
        host_memory=HOST,
        durable=None,
        skip_gaps=False,
    )
    found = backtest.run(settings, asked, told)
    assert (found["policies"], found["clients"], found["looks"]) == (5, 2, 40)
    by_name = {row["policy"]: row for row in told.tables["policies"]}
    assert by_name["tight"]["offlined"] == 2
    assert by_name["client_policy.client_max_capacity=30"]["offlined"] == 1
    assert found["of_them_save"] == 3
    assert found["saves"] == "client_policy.client_max_capacity=70"
    assert "leaves out" not in " ".join(told.notes)
    for grid in ("client_policy.nothing=1", "client_policy.client_max_capacity", "rules.3.limit=5"):
        with pytest.raises(SluiceError, match="bad_setting"):
            backtest.run(settings, argparse.Namespace(**{**vars(asked), "grid": grid}), told)
    with pytest.raises(SluiceError, match="bad_policy"):
        wrong = "client_policy.client_max_capacity=-5"
        backtest.run(settings, argparse.Namespace(**{**vars(asked), "grid": wrong}), told)
    assert not list(settings.lake.glob(".backtest-*"))


@pytest.mark.slow
def test_where_nothing_slow_is_recorded_it_says_so(lent: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path, [5])
    policies = tmp_path / "lake" / "policies"
    policies.mkdir(parents=True)
    (policies / "draft-7.json").write_text(json.dumps(limited(10).to_dict()))
    told = FakeReporter()
    asked = argparse.Namespace(
        policy="draft-7", grid="", save="", start="", end="", host_memory=None, durable=None, skip_gaps=False
    )
    assert backtest.run(settings_in(tmp_path), asked, told)["looks"] == 0
    assert "The range has no samples of slow clients" in told.notes[-1]
