"""`audit` and `state` on a real Spark, over journals written by the broker's Journal, with planted faults."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from broker_core.errors import SluiceError
from pipeline.jobs import audit, lake, state
from sluice_spark.arrow_reader import ReadRequest, plan_log
from sluice_spark.log import examine_log
from sluice_spark.segments import open_segment, read_batches
from tests.pipeline.support import (
    NOON,
    SECOND,
    FakeReporter,
    append,
    event,
    fill,
    journal_location,
    move,
    numbered_messages,
    open_journal,
    settings_in,
)

pytestmark = pytest.mark.slow


def audit_arguments(**chosen: object) -> argparse.Namespace:
    given = {
        "start": None,
        "end": None,
        "strict": False,
        "durable": None,
        "skip_gaps": False,
        "typed": False,
        "evolve": False,
        "compact": False,
        "at": "",
        "since": "",
        "topics": "",
        "key": "",
        "delta": False,
    }
    return argparse.Namespace(**{**given, **chosen})


def test_an_audit_finds_what_was_planted_and_nothing_else(lent: SparkSession, tmp_path: Path) -> None:
    """Planted faults: skipped, repeated and late sequences; a removed segment; a broken batch; a changed lake
    file.
    """
    with open_journal(tmp_path) as log:
        for number in (1, 101, 201):
            append(log, numbered_messages(100, number), number=number, publisher="well")
        append(log, numbered_messages(50), number=1, publisher="skips")
        append(log, numbered_messages(50), number=71, publisher="skips")  # 51 to 70 are missing
        append(log, numbered_messages(10), number=61, publisher="skips")  # ten of these, late
        append(log, numbered_messages(10), number=1, publisher="twice")
        append(log, numbered_messages(10), number=6, publisher="twice")  # 6 to 10 repeated
        append(log, numbered_messages(7), publisher="plain")
        sums = {
            "matched_messages": 9,
            "acknowledged_messages": 4,
            "in_flight_messages": 2,
            "waiting_messages": 2,
            "gone_messages": 1,
        }
        stories = [
            event("ann", 1, "sample", **sums),
            event("bob", 2, "sample", **sums | {"gone_messages": 2}),
            b"{}",
            event("ann", 3, "disconnect", **sums | {"acknowledged_messages": 3, "in_flight_messages": 3}),
            event("ann", 4, "connect"),
            event("ann", 5, "sample", **dict.fromkeys(sums, 0)),
            event("old", 6, "sample"),
        ]
        append(log, [("$SLUICE.clients", story) for story in stories], publisher="$SLUICE")
    settings, told = settings_in(tmp_path), FakeReporter()
    clean = fill(tmp_path, [50] * 40)
    lake.run(settings, audit_arguments(), told)
    found = audit.run(settings, audit_arguments(), told)
    assert (found["records"], found["unreadable"], found["lake_unlike"]) == (clean, 0, 0)
    log_now = examine_log(settings.log)
    read = [
        batch.nbytes
        for span in plan_log(log_now, ReadRequest())
        for batch in read_batches(log_now.location, span, open_segment(log_now.location, span.segment))
    ]
    assert found["bytes"] == sum(read), "the bytes read, without the file's preallocated part"
    assert (found["numbers_missing"], found["repeated"], found["out_of_order"]) == (10, 5, 15)
    by_name = {row["publisher"]: row for row in told.tables["publishers"]}
    assert (by_name["well"]["missing"], by_name["well"]["last"], by_name["plain"]["unnumbered"]) == (
        0,
        300,
        7,
    )
    assert [
        (row["what"], row["publisher"], row["first"], row["last"]) for row in told.tables["findings"]
    ] == [
        ("out_of_order", "skips", 61, 70),
        ("missing", "skips", 51, 60),
        ("out_of_order", "twice", 6, 10),
        ("repeated", "twice", 6, 10),
    ]
    assert (found["accounts"], found["accounts_wrong"]) == (4, 2)
    assert [(row["client"], row["what"]) for row in told.tables["accounts"]] == [
        ("bob", "+1 messages"),
        ("ann", "less than before"),
    ]
    assert {row["verdict"] for row in told.tables["lake"]} == {"the same"}
    with pytest.raises(SluiceError, match=r"audit_failed: .*5 records are repeated"):
        audit.run(settings, audit_arguments(strict=True), FakeReporter())

    segments = sorted(journal_location(tmp_path).directory.glob("*.journal"))
    broken = segments[3]
    content = bytearray(broken.read_bytes())
    content[9_000] ^= 0xFF
    broken.write_bytes(content)
    with open_journal(tmp_path) as log:
        log.remove([log.segments()[0].name], NOON)
        oldest = log.first_sequence
    move(tmp_path, "compress", slice(0, 1))
    changed = sorted(settings.records.glob("day=*/*.parquet"))[-1]
    table = pq.ParquetFile(changed).read()
    bodies = [b"forged", *table.column("body").to_pylist()[1:]]
    place = table.schema.get_field_index("body")
    pq.write_table(table.set_column(place, "body", pa.array(bodies, pa.binary())), changed)
    found = audit.run(settings, audit_arguments(start=1), told)
    removed, damaged = told.tables["damage"]
    assert (removed["kind"], removed["first"], removed["last"]) == ("removed", 1, oldest - 1)
    assert (damaged["kind"], damaged["records"]) == ("unreadable", 50)
    assert broken.name in damaged["why"]
    assert found["unreadable"] == 50
    assert found["records"] == clean - (oldest - 1) - 50
    verdicts = [row["verdict"] for row in told.tables["lake"]]
    assert verdicts[0] == "no longer in the log"
    assert verdicts[-1] == "damaged since it was written"
    assert sum(verdict.startswith("the log can't be read") for verdict in verdicts) == 1
    assert found["lake_unlike"] == 2


def order(number: int, status: str) -> tuple[str, bytes]:
    return ("orders", json.dumps({"order": {"id": number}, "status": status}).encode())


def test_state_is_the_last_record_of_each_key_at_a_moment_and_what_changed(
    lent: SparkSession, tmp_path: Path
) -> None:
    with open_journal(tmp_path) as log:
        append(log, [order(1, "new"), order(2, "new"), ("prices", b"10")], at=NOON)
        append(log, [order(1, "paid"), order(3, "new"), ("prices", b"11")], at=NOON + 10 * SECOND)
        append(log, [order(2, "new"), order(3, "sent"), ("prices", b"no JSON")], at=NOON + 20 * SECOND)
    settings, told = settings_in(tmp_path), FakeReporter()
    assert state.run(settings, audit_arguments(key="/order/id"), told)["keys"] == 4
    assert [(row["key"], row["sequence"]) for row in told.tables["state"]] == [
        ("1", 4),
        ("2", 7),
        ("3", 8),
        ("", 9),
    ]
    state.run(settings, audit_arguments(at="2026-11-21T12:00:10Z", topics="orders", key="/order/id"), told)
    assert [(row["key"], row["sequence"]) for row in told.tables["state"]] == [("1", 4), ("2", 2), ("3", 5)]
    state.run(settings, audit_arguments(at="sluice-1|3|"), told)
    assert [(row["topic"], row["body"]) for row in told.tables["state"]][1] == ("prices", b"10")
    found = state.run(settings, audit_arguments(since="3", topics="orders", key="/order/id"), told)
    assert (found["new"], found["changed"], found["rewritten"], found["untouched"]) == (1, 1, 1, 0)
    changes = {row["key"]: row for row in told.tables["changes"]}
    assert changes["1"]["change"] == "changed"
    assert b"paid" in changes["1"]["body"]
    assert b"new" in changes["1"]["body_before"]
    with pytest.raises(SluiceError, match="bad_setting"):
        state.run(settings, audit_arguments(key="order"), told)
