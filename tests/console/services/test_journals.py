from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from broker_core.errors import OperatorError
from broker_core.journal import segment_copies
from console.choices import RunState
from console.models import ActionRun, Instance
from console.services import execution, journals
from console.services.actions import planner, run_requests
from console.services.actors import Actor
from pipeline.config import settings_from
from pipeline.jobs import lake
from pipeline.manifest import LakeManifest, write_manifest
from sluice_spark.arrow_reader import ReadRequest, plan_log
from sluice_spark.log import examine_log
from tests.support.journal_broker import JournalBroker


@pytest.fixture
def broker(instance: Instance, settings: Any, tmp_path: Path) -> Iterator[JournalBroker]:
    """Run a fake broker whose real journal has at least three sealed segments."""
    settings.SLUICE_ARCHIVE_DIRECTORY = tmp_path / "archive"
    socket = Path(settings.SLUICE_RUN_DIRECTORY) / f"{instance.name}.sock"
    with JournalBroker(socket, instance.name, tmp_path / "journal", tmp_path / "archive") as real:
        real.fill(3)
        yield real


def asked(actor: Actor, action: str, age: str = "0", **more: Any) -> ActionRun:
    """Return a run whose plan the actor has reviewed."""
    return run_requests.apply_journal_plan(
        actor, action, age, planner.journal_plan(action, age, **more)["hash"], **more
    )


def carry_out(actor: Actor, action: str, age: str = "0") -> ActionRun:
    done = execution.execute_run(asked(actor, action, age).pk)
    assert done is not None
    return done


def states(broker: JournalBroker) -> list[tuple[str, bool]]:
    return [(one.state, one.compressed) for one in broker.journal.segments()]


def test_plan_changes_nothing_and_says_why_segments_stay(broker: JournalBroker) -> None:
    young = journals.plan("archive", "1h")
    assert young["chosen"] == []
    assert len(young["skipped"]) == len(states(broker))
    due = journals.plan("archive", "0")
    assert len(due["chosen"]) == len(states(broker)) - 1
    assert [skipped["why"] for skipped in due["skipped"]] == ["it is being written"]
    assert ActionRun.objects.count() == 0


def test_archive_moves_sealed_segments_and_replay_still_finds_them(
    broker: JournalBroker, actor: Actor, tmp_path: Path
) -> None:
    before, sealed = broker.records(), len(states(broker)) - 1
    run = carry_out(actor, "archive")
    assert (run.state, run.progress, run.error) == (RunState.SUCCEEDED, 100, None)
    assert states(broker) == [("archived", False)] * sealed + [("current", False)]
    assert broker.records() == before
    assert len(run.result["segments"]) == sealed
    assert all(len(segment["sha256"]) == 64 for segment in run.result["segments"])
    assert len(list((tmp_path / "archive").glob("*.journal"))) == sealed
    assert not list(tmp_path.rglob("*.prepared"))


def test_compress_in_place_after_archiving(broker: JournalBroker, actor: Actor) -> None:
    before, sealed = broker.records(), len(states(broker)) - 1
    carry_out(actor, "archive")
    run = carry_out(actor, "compress")
    assert run.state == RunState.SUCCEEDED, run.log
    assert states(broker) == [("archived", True)] * sealed + [("current", False)]
    assert run.result["bytes"] < 200_000
    assert broker.records() == before


def test_remove_takes_old_segments_and_keeps_what_a_replay_needs(broker: JournalBroker, actor: Actor) -> None:
    second = broker.journal.segments()[1]
    pin = broker.journal.pin(second.first_sequence, "replay of lake-loader")
    run = carry_out(actor, "remove")
    assert run.state == RunState.SUCCEEDED, run.log
    assert len(run.result["segments"]) == 1
    assert broker.journal.first_sequence == second.first_sequence
    assert "needed by replay of lake-loader" in run.log
    pin.release()


def test_nothing_old_enough_is_a_success_that_did_nothing(broker: JournalBroker, actor: Actor) -> None:
    run = carry_out(actor, "archive", "365d")
    assert (run.state, run.result) == (RunState.SUCCEEDED, {"segments": [], "bytes": 0})


def test_cancelled_run_leaves_no_half_made_file(
    broker: JournalBroker, actor: Actor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = journals.request(actor, "compress", "0")
    compress = segment_copies.compress_segment

    def cancel_first(source: Path, target: Path, progress: Any) -> Any:
        made = compress(source, target, progress)
        ActionRun.objects.filter(pk=run.pk).update(cancel_requested=True)
        return made

    monkeypatch.setattr(segment_copies, "compress_segment", cancel_first)
    done = execution.execute_run(run.pk)
    assert done is not None
    assert done.state == RunState.CANCELLED
    assert not list(tmp_path.rglob("*.prepared"))
    assert states(broker)[0] == ("sealed", False)


def test_swap_that_the_broker_refuses_fails_the_run_with_its_reason(
    broker: JournalBroker, actor: Actor, tmp_path: Path
) -> None:
    error = {"code": "bad_prepared_file", "message": "Not the same.", "fix": "", "details": {}}
    broker.answers["journal_swap"] = {"ok": False, "error": error}
    run = carry_out(actor, "archive")
    assert (run.state, run.error["code"]) == (RunState.FAILED, "bad_prepared_file")
    assert states(broker)[0] == ("sealed", False)
    assert not list(tmp_path.rglob("*.prepared"))


def test_action_that_does_not_exist_is_refused(broker: JournalBroker, actor: Actor) -> None:
    with pytest.raises(OperatorError) as refused:
        journals.request(actor, "shred", "7d")
    assert refused.value.code == "unknown_action"


def test_a_removal_leaves_a_receipt(broker: JournalBroker, actor: Actor) -> None:
    """The run stores names, sizes, checksums and sequences of the removed segments permanently."""
    gone = [one for one in broker.journal.segments() if one.state != "current"]
    digests = [hashlib.sha256(one.path.read_bytes()).hexdigest() for one in gone]
    run = carry_out(actor, "remove")
    receipt = run.result["receipt"]
    assert [file["name"] for file in receipt["files"]] == [one.name for one in gone]
    assert [file["sha256"] for file in receipt["files"]] == digests
    assert [file["bytes"] for file in receipt["files"]] == [one.nbytes for one in gone]
    assert (
        receipt["records"]
        == sum(one.records for one in gone)
        == sum(file["records"] for file in receipt["files"])
    )
    assert receipt["bytes"] == sum(one.nbytes for one in gone)
    name = broker.journal.instance
    assert receipt["gone"] == {
        "from": f"{name}|{gone[0].first_sequence}|",
        "to": f"{name}|{gone[-1].last_sequence}|",
    }
    assert receipt["oldest_left"] == f"{name}|{gone[-1].last_sequence + 1}|"
    assert receipt["accepted"] == {"from": gone[0].first_at, "to": gone[-1].last_at}


def test_a_removal_whose_worker_dies_is_told_by_the_plan(
    broker: JournalBroker, actor: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker removed the segments, but the worker died before the reply. The run still lists them."""
    real = broker.do_journal_remove

    def die(request: dict[str, Any]) -> dict[str, Any]:
        real(request)
        raise OperatorError("broker_away", "The worker is gone.", "")

    monkeypatch.setattr(broker, "do_journal_remove", die)
    names = [one.name for one in broker.journal.segments() if one.state != "current"]
    run = carry_out(actor, "remove")
    assert run.state == RunState.FAILED
    run.refresh_from_db()
    assert [one["name"] for one in run.plan["segments"]] == names
    assert all(len(one["sha256"]) == 64 for one in run.plan["segments"])
    assert len(states(broker)) == 1


def test_the_plan_names_sizes_and_reasons(broker: JournalBroker) -> None:
    pin = broker.journal.pin(broker.journal.segments()[1].first_sequence, "managed replay nightly")
    made = journals.plan("remove", "0")
    assert [one["name"] for one in made["segments"]] == made["chosen"]
    assert made["bytes"] == sum(one["bytes"] for one in made["segments"]) > 900_000
    reasons = [one["reason"] for one in made["skipped"]]
    assert reasons[0] == "managed_replay"
    assert reasons[-1] == "current"
    pin.release()


def test_what_a_killed_worker_left_goes_with_the_next_run_and_other_instances_keep_theirs(
    broker: JournalBroker, actor: Actor, instance: Instance, tmp_path: Path
) -> None:
    """A killed worker leaves a prepared file in its run's folder; the log never included it."""
    name = broker.journal.segments()[0].name
    for owner in (instance.name, "other"):
        left = tmp_path / "archive" / f"{owner}.prepared" / "7c1c4c05-9f4c-4b0e-9e0c-1f1f6a3f2f11" / name
        left.parent.mkdir(parents=True)
        left.write_bytes(b"half a segment")
    before = broker.records()
    run = carry_out(actor, "archive")
    assert run.state == RunState.SUCCEEDED, run.log
    assert broker.records() == before
    assert [path.parent.name for path in tmp_path.glob("archive/*.prepared/*")] == ["other.prepared"]


def lake_up_to(tmp_path: Path, instance: str, last: int) -> Path:
    """Write a lake with the records up to `last`, as the pipeline's job does; return its newest file."""
    settings = settings_from(
        {}, home=tmp_path, instance=instance, archive=tmp_path / "archive", lake=tmp_path / "lake"
    )
    log = examine_log(settings.log)
    for span in plan_log(log, ReadRequest(end=last)):
        assert lake.try_write_span(log.location, settings.records, span, False)
    write_manifest(settings.records, LakeManifest(instance=instance, log=log.location.log))
    return max(settings.records.glob("day=*/*.parquet"))


def test_only_what_the_lake_has_is_removed_and_only_if_it_is_whole(
    broker: JournalBroker, actor: Actor, instance: Instance, settings: Any, tmp_path: Path
) -> None:
    settings.SLUICE_HOME, settings.SLUICE_LAKE_DIRECTORY = tmp_path, tmp_path / "lake"
    settings.SLUICE_JOURNAL_DIRECTORY = tmp_path / "journal"
    one, two, *_ = broker.journal.segments()
    assert journals.plan("remove", "0", in_lake=True)["chosen"] == []
    newest = lake_up_to(tmp_path, instance.name, two.last_sequence - 1)
    found = journals.plan("remove", "0", in_lake=True)
    assert found["chosen"] == [one.name]
    assert (found["skipped"][0]["name"], found["skipped"][0]["reason"]) == (two.name, "not_in_lake")
    oldest = min(newest.parent.glob("*.parquet"))
    content = oldest.read_bytes()
    table = pq.ParquetFile(oldest).read()
    changed = table.set_column(8, "body", pa.array([b"x"] * table.num_rows))
    pq.write_table(changed, oldest)
    run = execution.execute_run(asked(actor, "remove", "0", in_lake=True).pk)
    assert run is not None
    assert (run.state, run.error["code"]) == (RunState.FAILED, "lake_damaged")
    assert broker.journal.first_sequence == 1
    oldest.write_bytes(content)
    run = execution.execute_run(asked(actor, "remove", "0", in_lake=True).pk)
    assert run is not None
    assert run.state == RunState.SUCCEEDED, run.log
    assert run.result["segments"] == [one.name]
    assert broker.journal.first_sequence == two.first_sequence
