from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from celery import Celery, current_app
from django.utils import timezone

from broker_core.errors import OperatorError
from console.access.rights import EffectiveAccess, GrantedRight
from console.choices import ActorKind, Permission, RunKind, RunState
from console.models import ActionRun, AuditEvent, Instance
from console.services import execution, runs
from console.services.actors import Actor
from console.services.run_progress import MAX_LOG_CHARACTERS, RunCancelled, RunProgress


@pytest.fixture
def run(instance: Instance, actor: Actor) -> ActionRun:
    return runs.request(actor, instance, RunKind.ARCHIVE, {"age": "7d", "age_s": 604_800})


def test_second_run_of_a_kind_is_refused_while_one_is_active(run: ActionRun, actor: Actor) -> None:
    with pytest.raises(OperatorError) as refused:
        runs.request(actor, run.instance, RunKind.ARCHIVE, {})
    assert refused.value.code == "run_in_progress"
    assert refused.value.details["run"] == str(run.pk)
    runs.request(actor, run.instance, RunKind.REMOVE, {}, plan_hash="seen")


def test_archive_and_compress_asked_together_go_one_after_the_other(run: ActionRun, actor: Actor) -> None:
    """The archive run would move a file that the compress run's plan includes."""
    compress = runs.request(actor, run.instance, RunKind.COMPRESS, {"age": "7d", "age_s": 604_800})
    now = timezone.now()
    first = runs.claim_run(run.pk, now)
    assert first is not None
    assert runs.claim_run(compress.pk, now) is None
    compress.refresh_from_db()
    assert compress.state == RunState.WAITING
    runs.finish(first, RunState.SUCCEEDED)
    assert runs.claim_run(compress.pk, now) is not None


def test_run_is_taken_up_once(run: ActionRun) -> None:
    now = timezone.now()
    assert runs.claim_run(run.pk, now) is not None
    assert runs.claim_run(run.pk, now) is None
    assert execution.execute_run(run.pk) is None


@pytest.fixture
def queue_away(tmp_path: Path) -> Iterator[None]:
    """Use a Celery broker URL at which no Redis listens, even if another test's Redis is still running."""
    usual = current_app._get_current_object()
    Celery("away", broker=f"redis+socket://{tmp_path}/nobody.sock").set_current()
    yield
    usual.set_current()


@pytest.mark.usefixtures("queue_away")
def test_queue_that_is_away_fails_the_run_at_once(run: ActionRun) -> None:
    runs.enqueue(run)
    assert (run.state, run.error["code"]) == (RunState.FAILED, "queue_away")


def test_broker_that_is_away_fails_the_run_with_its_error(run: ActionRun) -> None:
    done = execution.execute_run(run.pk)
    assert done is not None
    assert (done.state, done.error["code"]) == (RunState.FAILED, "broker_away")
    assert AuditEvent.objects.filter(action="run.archive.end", result="failed").count() == 1
    assert "failed:" in done.log


@pytest.fixture
def maria() -> Actor:
    """Return an actor with all permissions."""
    return Actor(ActorKind.PERSON, "maria", 7, access=EffectiveAccess((GrantedRight(frozenset(Permission)),)))


def test_whose_rights_are_for_another_instance_neither_cancels_nor_repeats(run: ActionRun) -> None:
    prices = GrantedRight(frozenset(Permission), instance="prices")
    stranger = Actor(ActorKind.PERSON, "petra", 8, access=EffectiveAccess((prices,)))
    for act in (runs.cancel, runs.repeat):
        with pytest.raises(OperatorError) as refused:
            act(stranger, run)
        assert refused.value.code == "not_allowed"
    run.refresh_from_db()
    assert (run.state, ActionRun.objects.count()) == (RunState.WAITING, 1)


def test_waiting_run_can_be_cancelled(run: ActionRun, maria: Actor) -> None:
    assert runs.cancel(maria, run).state == RunState.CANCELLED
    assert execution.execute_run(run.pk) is None
    with pytest.raises(OperatorError) as refused:
        runs.cancel(maria, run)
    assert refused.value.code == "run_ended"


def test_running_run_stops_at_its_next_step(run: ActionRun, maria: Actor) -> None:
    taken = runs.claim_run(run.pk, timezone.now())
    assert taken is not None
    progress = RunProgress(taken)
    progress.step(0, 2, "first")
    runs.cancel(maria, run)
    with pytest.raises(RunCancelled):
        progress.check()


def test_run_whose_worker_fell_silent_is_lost_and_its_kind_free_again(run: ActionRun, actor: Actor) -> None:
    taken = runs.claim_run(run.pk, timezone.now() - timedelta(minutes=5))
    assert taken is not None
    assert [lost.pk for lost in runs.mark_lost_runs(timezone.now())] == [run.pk]
    run.refresh_from_db()
    assert run.state == RunState.LOST
    with pytest.raises(RunCancelled):
        RunProgress(taken).check()
    runs.request(actor, run.instance, RunKind.ARCHIVE, {})


def test_progress_is_kept_with_its_log(run: ActionRun) -> None:
    taken = runs.claim_run(run.pk, timezone.now())
    assert taken is not None
    progress = RunProgress(taken)
    progress.step(1, 4, "the second of four")
    progress.set_fraction(1, 2)
    progress.check()
    run.refresh_from_db()
    assert run.progress == 37.5
    assert run.step == "the second of four"
    for _ in range(30):
        progress.log("x" * 10_000)
    assert len(taken.log) == MAX_LOG_CHARACTERS
