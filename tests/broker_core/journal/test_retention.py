"""Planning of retention actions: which segments each may process. No file is touched."""

from __future__ import annotations

from pathlib import Path

from broker_core.journal.open_segments import Pin
from broker_core.journal.retention import plan_retention
from broker_core.journal.segment import SegmentInfo

DAY = 86_400 * 10**9
NOW = 100 * DAY


def segment(number: int, days_old: int, state: str = "sealed", compressed: bool = False) -> SegmentInfo:
    first = number * 100 + 1
    at = NOW - days_old * DAY
    return SegmentInfo(
        f"s{number}", Path(f"s{number}"), first, first + 99, at - 1, at, 1_000, state, compressed, 100
    )


LOG = [segment(0, 40, "archived"), segment(1, 30), segment(2, 20), segment(3, 10), segment(4, 0, "current")]


def pin(sequence: int, owner: str = "slow") -> Pin:
    return Pin(owner, sequence, lambda _: None)


def reasons(made):
    return {one.name: one.why for one in made.skipped}


def names(made):
    return [one.name for one in made.chosen]


def test_age():
    made = plan_retention("archive", LOG, NOW - 15 * DAY, [], NOW)
    assert names(made) == ["s1", "s2"]
    assert made.nbytes == 2_000
    assert reasons(made) == {
        "s0": "it is archived already",
        "s3": "its newest record is 864000 s old, younger than 1296000 s",
        "s4": "it is being written",
    }


def test_a_segment_as_old_as_the_cutoff_stays():
    assert names(plan_retention("archive", LOG, NOW - 20 * DAY, [], NOW)) == ["s1"]


def test_compress_takes_archived_ones_and_leaves_compressed_ones():
    log = [segment(0, 40, "archived"), segment(1, 30, compressed=True), segment(2, 20)]
    assert names(plan_retention("compress", log, NOW, [], NOW)) == ["s0", "s2"]


def test_remove_stops_at_the_first_that_must_stay():
    made = plan_retention("remove", LOG, NOW, [pin(250)], NOW)
    assert names(made) == ["s0", "s1"]
    assert reasons(made)["s2"] == "needed by slow"
    assert reasons(made)["s4"] == "it is being written"


def test_one_blocked_segment_holds_back_the_newer_ones():
    made = plan_retention("remove", LOG, NOW - 15 * DAY, [pin(50), pin(60, "other"), pin(50)], NOW)
    assert names(made) == []
    why = reasons(made)
    assert why["s0"] == "needed by other, slow"
    assert why["s1"].startswith("needed by")
    assert why["s3"].startswith("its newest record")


def test_a_pin_on_the_current_segment_blocks_nothing():
    assert names(plan_retention("remove", LOG, NOW, [pin(401)], NOW)) == ["s0", "s1", "s2", "s3"]


def test_a_young_segment_before_old_ones_holds_them_back():
    log = [segment(0, 1), segment(1, 30)]
    made = plan_retention("remove", log, NOW - 15 * DAY, [], NOW)
    assert names(made) == []
    assert reasons(made)["s1"] == "an older segment stays (s0), and the log may have no gaps"


def test_pins_do_not_hold_back_archiving():
    assert names(plan_retention("archive", LOG, NOW, [pin(1)], NOW)) == ["s1", "s2", "s3"]


def test_an_empty_log():
    made = plan_retention("remove", [], NOW, [], NOW)
    assert (made.chosen, made.skipped, made.nbytes) == ([], [], 0)


def test_each_reason_has_a_word():
    log = [
        segment(0, 40),
        segment(1, 30),
        segment(2, 20),
        segment(3, 10),
        segment(4, 1),
        segment(5, 0, "current"),
    ]
    for owner, word in (
        ("replay of anna", "replay"),
        ("spool of bert", "spool"),
        ("managed replay nightly", "managed_replay"),
        ("durable subscription d", "durable_subscription"),
        ("something", "reader"),
    ):
        made = plan_retention("remove", log, NOW - 5 * DAY, [pin(150, owner)], NOW)
        assert names(made) == ["s0"]
        assert [one.reason for one in made.skipped] == [word, word, word, "young", "current"]
    made = plan_retention("remove", [segment(0, 1), segment(1, 30)], NOW - 5 * DAY, [], NOW)
    assert [one.reason for one in made.skipped] == ["young", "gap"]
    done = [segment(0, 9, "archived"), segment(1, 9, compressed=True)]
    assert [
        plan_retention(action, done, NOW, [], NOW).skipped[0].reason for action in ("archive", "compress")
    ] == [
        "archived",
        "compressed",
    ]


def test_the_reason_is_that_of_who_reads_furthest_behind_and_not_everybody_is_named():
    pins = [pin(2, "replay of z"), pin(1, "spool of a"), *(pin(3, f"replay of r{n:03}") for n in range(50))]
    (skipped, *_) = plan_retention("remove", LOG, NOW, pins, NOW).skipped
    assert skipped.reason == "spool"
    assert skipped.why.endswith("and 32 more")
    (skipped, *_) = plan_retention("remove", LOG, NOW, pins[:20], NOW).skipped
    assert skipped.why.endswith(", spool of a") and skipped.why.count(",") == 19, "all of them"


def test_a_clock_that_ran_ahead_doesnt_keep_segments_for_as_long():
    """Its moments are a year ahead; the file behind them was changed 20 days ago."""
    ahead = [
        segment(0, 40)._replace(last_at=NOW + 365 * DAY, written_at=NOW + 365 * DAY),
        segment(1, 30)._replace(last_at=NOW + 365 * DAY, written_at=NOW - 20 * DAY),
        segment(2, 0, "current")._replace(last_at=NOW + 365 * DAY, written_at=NOW),
    ]
    assert names(plan_retention("remove", ahead, NOW - 15 * DAY, [], NOW)) == ["s0", "s1"]
    assert names(plan_retention("remove", ahead, NOW - 25 * DAY, [], NOW)) == []


def test_what_was_accepted_before_now_is_as_old_as_it_says():
    copied = [one._replace(written_at=NOW) for one in LOG]
    assert names(plan_retention("archive", copied, NOW - 15 * DAY, [], NOW)) == ["s1", "s2"]
    restored = [segment(0, 0)._replace(written_at=NOW - 30 * DAY)]
    assert names(plan_retention("archive", restored, NOW - 15 * DAY, [], NOW)) == []


def test_a_pin_on_the_last_record_of_a_segment_retains_it():
    assert names(plan_retention("remove", LOG, NOW, [pin(200)], NOW)) == ["s0"]
    assert names(plan_retention("remove", LOG, NOW, [pin(201)], NOW)) == ["s0", "s1"]


def test_a_file_that_is_gone_says_nothing_of_when_it_was_written():
    """A swap has just moved the file: it does not count as one of 1970."""
    ahead = [segment(0, 40)._replace(last_at=NOW + DAY, written_at=0)]
    assert names(plan_retention("remove", ahead, NOW - 15 * DAY, [], NOW)) == []
