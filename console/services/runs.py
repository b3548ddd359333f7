"""Runs: asking for one, taking it up in a worker, telling how it goes, and finding those whose worker died.

A run is taken up by one conditional UPDATE (waiting → running) together with the holds it needs (`RunLock`: one of a kind
per instance), so a task that the queue delivers twice does nothing the second time, and a run that waits may be queued
again at any time. An action holds what its current step needs, and waits again before a step that needs what another
run holds. The end of a run, or of a step, queues those that waited for what it held.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

from celery import current_app
from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Q
from django.db.models.functions import Coalesce
from django.utils import timezone
from kombu.exceptions import OperationalError

from broker_core.errors import OperatorError
from console.broker_addresses import BrokerAddress, format_broker_name, queue_for_broker
from console.broker_link import addresses_of
from console.choices import (
    ACTIVE_RUN_STATES,
    JOURNAL_ACTIONS,
    JOURNAL_FILES,
    LONG_STEPS,
    AuditResult,
    Permission,
    RunKind,
    RunState,
)
from console.live.workers import queues_without_worker
from console.models import ActionRun, Instance, RunLock
from console.queue_names import USUAL_QUEUE
from console.services import access, audit
from console.services.actions import causes, definition
from console.services.actions.definition import locks_needed
from console.services.actors import SYSTEM, Actor
from console.services.run_progress import RunCancelled

EXECUTE_TASK = "console.tasks.execute_run"
LOST_AFTER = timedelta(minutes=2)
QUEUE_AGAIN_AFTER = timedelta(minutes=2)
MAX_WAITING = 1_000
"""Waiting runs that are looked at when one ends."""


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """An Idempotency-Key and a digest of what was asked with it: the same again gives the run that was made then."""

    key: str
    digest: str

    @classmethod
    def for_request(cls, key: str, *asked: Any) -> IdempotencyKey | None:
        """None without a key. Raises OperatorError bad_idempotency_key."""
        if not key:
            return None
        if len(key) > 200 or not key.isprintable():
            raise OperatorError(
                "bad_idempotency_key", "An Idempotency-Key has up to 200 printable characters.", "Use a UUID."
            )
        return cls(key, hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest())


def request(
    actor: Actor,
    instance: Instance,
    kind: RunKind,
    parameters: Mapping[str, Any],
    *,
    plan: Any = None,
    plan_hash: str = "",
    once: IdempotencyKey | None = None,
    **more: Any,
) -> ActionRun:
    """Store a run and queue it, or have it wait for approval. `more` are other columns, such as action and due_at.

    Every run comes this way: by page, API, schedule, event, publish or repetition.

    Raises OperatorError plan_needed when somebody asks for what takes something away and has seen no plan,
    run_in_progress when one of its kind is active (actions' runs wait instead), or idempotency_key_reused.
    """
    if once is not None and (known := find_by_key(actor, once)) is not None:
        return known
    if not plan_hash and causes.asks(actor) and is_destructive(kind, parameters, len(more.get("steps", ()))):
        raise OperatorError(
            "plan_needed",
            "This removes something or cuts somebody off.",
            "Plan it, and send the plan's hash.",
        )
    needs_approval = more.pop("needs_approval", False) or waits_for_approval(kind, parameters)
    more["causes"] = causes.joined(more.get("causes", ()), causes.of_actor(actor))
    run = ActionRun(
        instance=instance,
        kind=kind,
        parameters=dict(parameters),
        plan=plan,
        plan_hash=plan_hash,
        state=RunState.APPROVAL if needs_approval else RunState.WAITING,
        actor=actor.name[:200],
        actor_kind=actor.kind,
        actor_user_id=actor.user_id,
        idempotency_key=once.key if once else "",
        idempotency_digest=once.digest if once else "",
        **more,
    )
    try:
        with transaction.atomic():
            run.save(force_insert=True)
            audit.record(actor, f"run.{kind}", f"{instance.name}: run {run.pk}", after=_told(parameters))
    except IntegrityError as taken:
        if once is not None and (known := find_by_key(actor, once)) is not None:
            return known
        raise _in_progress(run) from taken
    if run.state == RunState.WAITING:
        transaction.on_commit(lambda: enqueue(run))
    return run


def is_destructive(kind: str, parameters: Mapping[str, Any], done: int = 0) -> bool:
    """Whether a run of which so many steps are done takes something away, or cuts somebody off. Pure."""
    return kind == RunKind.REMOVE or definition.is_destructive(parameters.get("steps", [])[done:])


def waits_for_approval(kind: str, parameters: Mapping[str, Any]) -> bool:
    """Whether a second person must approve a run of that kind, or one of whose steps is of such a kind."""
    words = {str(kind), *(str(step.get("do", "")) for step in parameters.get("steps", ()))}
    return not words.isdisjoint(settings.SLUICE_APPROVE_KINDS)


def enqueue(run: ActionRun) -> None:
    """Hand a waiting run to the workers, of its journal's machine if it is about one; without a queue the run fails at once, and
    says so. One whose queue nobody serves says that while it waits."""
    queue = queue_for(run)
    try:
        current_app.send_task(EXECUTE_TASK, args=[str(run.pk)], retry=False, ignore_result=True, queue=queue)
    except (OperationalError, OSError) as problem:
        error = {"code": "queue_away", "message": f"The task queue can't be reached: {problem}"[:500]}
        ActionRun.objects.filter(pk=run.pk, state=RunState.WAITING).update(
            state=RunState.FAILED, error=error, ended_at=timezone.now()
        )
        _release(run)
        run.refresh_from_db()

    if queue != USUAL_QUEUE:
        _say_who_serves(run, queue)


def queue_for(run: ActionRun) -> str:
    """Return the queue of the machine whose journal a run is about; the usual one for all other runs.

    On this machine every worker can work on the journal. So an action that also waits for others, or works
    long, takes none of the chores' slots.
    """
    address = _place_of(run)
    if address is None or (address.path is not None and _is_long(run)):
        return USUAL_QUEUE
    return queue_for_broker(address)


def _is_long(run: ActionRun) -> bool:
    return any(step.get("do") in LONG_STEPS for step in run.parameters.get("steps", ()))


def is_elsewhere(run: ActionRun) -> bool:
    """Whether a run is about a journal on another machine, whose worker must have it."""
    address = _place_of(run)
    return address is not None and address.path is None


def _place_of(run: ActionRun) -> BrokerAddress | None:
    if not needs_journal_worker(run.kind, run.parameters):
        return None
    addresses = addresses_of(run.instance.name)
    return next((one for one in addresses if one.member == run.member), addresses[0])


def needs_journal_worker(kind: str, parameters: Mapping[str, Any]) -> bool:
    """Whether a run works on segments' files. Pure."""
    if kind != RunKind.ACTION:
        return kind in JOURNAL_ACTIONS
    return any(step.get("do") in JOURNAL_ACTIONS for step in parameters.get("steps", ()))


def _say_who_serves(run: ActionRun, queue: str) -> None:
    error = None
    if queues_without_worker([queue]):
        name = format_broker_name(run.instance.name, run.member)
        error = {
            "code": "no_worker",
            "message": f"No worker serves the queue {queue}, so it waits.",
            "fix": f"Start one on the machine of {name}: celery -A console.project worker -Q {queue}",
        }
    ActionRun.objects.filter(pk=run.pk, state=RunState.WAITING).update(error=error)


def locks_for_run(run: ActionRun) -> set[str]:
    """Return what a run must hold to go on: its kind, or its action and what its next step needs. Pure."""
    if run.kind != RunKind.ACTION:
        return {run.kind, JOURNAL_FILES} if run.kind in JOURNAL_ACTIONS else {run.kind}
    done = len(run.steps)
    return {
        f"action:{run.action_id or run.parameters.get('action', '')}"[:80],
        *locks_needed(run.parameters["steps"][done : done + 1]),
    }


def claim_run(run_id: UUID | str, now: datetime) -> ActionRun | None:
    """Take up a waiting run; None when it isn't waiting any more, or must go on waiting for another's end.

    A run that was put back keeps the moment of its first start.
    """
    try:
        with transaction.atomic():
            claimed = ActionRun.objects.filter(pk=run_id, state=RunState.WAITING).update(
                state=RunState.RUNNING, started_at=Coalesce("started_at", now), heard_at=now, error=None
            )
            if not claimed:
                return None
            run = ActionRun.objects.select_related("instance", "action").get(pk=run_id)
            _hold(run)
    except IntegrityError:
        return None
    return run


def prepare_step(run: ActionRun) -> bool:
    """Give back what a run's next step doesn't need, and take what it needs.

    A webhook thus keeps no other run from the journals. False when another run has it: this run then waits
    again, and its worker must leave it. Raises Cancelled when it was cancelled.
    """
    spare = set(RunLock.objects.filter(run=run).values_list("kind", flat=True)) - locks_for_run(run)
    if spare:
        _release(run, spare)
    try:
        with transaction.atomic():
            _hold(run)
    except IntegrityError:
        _put_back(run)
        return False
    return True


def _hold(run: ActionRun) -> None:
    """Take what a run needs and hasn't yet. Raises IntegrityError when another run has it."""
    held = set(RunLock.objects.filter(run=run).values_list("kind", flat=True))
    for kind in sorted(locks_for_run(run) - held):
        RunLock.objects.create(instance=run.instance, member=run.member, kind=kind, run=run)


def _put_back(run: ActionRun) -> None:
    """Have a run wait for what another holds. It keeps its action, so that no later run overtakes it."""
    moved = ActionRun.objects.filter(pk=run.pk, state=RunState.RUNNING, cancel_requested=False).update(
        state=RunState.WAITING, log=run.log, steps=run.steps, step="waiting for another run"
    )
    if not moved:
        raise RunCancelled
    others = RunLock.objects.filter(instance=run.instance, member=run.member).exclude(run=run)
    if not others.filter(kind__in=locks_for_run(run)).exists():
        enqueue(run)  # the other run ended before this one waited


def finish(
    run: ActionRun, state: RunState, *, result: Any = None, error: Mapping[str, Any] | None = None
) -> None:
    """End a running run; a run that was declared lost meanwhile stays so, with its result beside."""
    now = timezone.now()
    values: dict[str, Any] = {
        "result": result,
        "error": error,
        "log": run.log,
        "steps": run.steps,
        "ended_at": now,
        "heard_at": now,
    }
    if state == RunState.SUCCEEDED:
        values.update(progress=100.0, step="")
    lost = ActionRun.objects.filter(pk=run.pk, state=RunState.LOST)
    if not lost.update(
        **{
            **values,
            "error": error
            or {"code": "worker_lost", "message": "Its worker was taken for dead, and came back."},
        }
    ):
        ActionRun.objects.filter(pk=run.pk, state=RunState.RUNNING).update(state=state, **values)
    _release(run)
    run.refresh_from_db()


def cancel(actor: Actor, run: ActionRun, reason: str = "") -> ActionRun:
    """End a run that waits, or ask a running one to stop after its current step. Raises not_allowed or run_ended."""
    access.require_permission(actor, Permission.RUN_ACTIONS, instance=run.instance.name)
    with transaction.atomic():
        stopped = ActionRun.objects.filter(pk=run.pk, state__in=(RunState.WAITING, RunState.APPROVAL)).update(
            state=RunState.CANCELLED, ended_at=timezone.now()
        )
        asked = (
            0
            if stopped
            else ActionRun.objects.filter(pk=run.pk, state=RunState.RUNNING).update(cancel_requested=True)
        )
        if not (stopped or asked):
            raise OperatorError(
                "run_ended", f"The run has ended ({run.state}).", "Nothing is left to cancel."
            )
        if stopped:
            _release(run)
        audit.record(actor, "run.cancel", f"{run.instance.name}: run {run.pk}", reason=reason)
    run.refresh_from_db()
    return run


def approve(actor: Actor, run: ActionRun) -> ActionRun:
    """Let a run go on that others caused. Raises not_allowed, own_run, not_awaiting or run_in_progress."""
    access.require_permission(actor, Permission.APPROVE, instance=run.instance.name)
    if causes.is_behind(actor, run):
        audit.record(actor, "run.approve", f"{run.instance.name}: run {run.pk}", result=AuditResult.DENIED)
        raise OperatorError(
            "own_run",
            "Nobody approves a run that they asked for, or caused by an event, a message or a schedule.",
            "Ask somebody else.",
        )
    try:
        with transaction.atomic():
            moved = ActionRun.objects.filter(pk=run.pk, state=RunState.APPROVAL).update(
                state=RunState.WAITING, approver=actor.name[:200]
            )
            if not moved:
                raise OperatorError(
                    "not_awaiting", "The run isn't waiting for approval.", "Look at its state."
                )
            audit.record(actor, "run.approve", f"{run.instance.name}: run {run.pk}")
    except IntegrityError as taken:
        raise _in_progress(run) from taken
    run.refresh_from_db()
    transaction.on_commit(lambda: enqueue(run))
    return run


def repeat(actor: Actor, run: ActionRun, *, plan: Any = None, plan_hash: str = "") -> ActionRun:
    """Ask again for a run that was lost, failed or cancelled. Steps that were done aren't done again.

    `plan` and its hash are of the steps that are left. Raises not_allowed, not_repeatable, or as `request`.
    """
    access.require_permission(actor, Permission.RUN_ACTIONS, instance=run.instance.name)
    if run.state not in (RunState.LOST, RunState.FAILED, RunState.CANCELLED):
        raise OperatorError(
            "not_repeatable",
            f"The run is {run.get_state_display().lower()}.",
            "Only runs that failed or were cancelled can be repeated.",
        )
    needs_approval = bool(run.approver) or (run.action is not None and run.action.needs_approval)
    return request(
        actor,
        run.instance,
        RunKind(run.kind),
        run.parameters,
        plan=plan or run.plan,
        plan_hash=plan_hash,
        action=run.action,
        trigger=run.trigger,
        member=run.member,
        steps=done_steps(run),
        repeats=run,
        origin=run.first_id,
        needs_approval=needs_approval,
        causes=run.causes,
    )


def done_steps(run: ActionRun) -> list[dict[str, Any]]:
    """The steps of a run that a repetition leaves out."""
    return [step for step in run.steps if step["state"] in ("done", "held")]


def mark_lost_runs(now: datetime) -> list[ActionRun]:
    """Mark runs whose worker fell silent as lost, free what they held, and queue again what has waited long."""
    silent = Q(heard_at__lt=now - LOST_AFTER) | Q(heard_at__isnull=True)
    lost = list(ActionRun.objects.filter(silent, state=RunState.RUNNING).select_related("instance"))
    for run in lost:
        error = {
            "code": "worker_lost",
            "message": "The worker fell silent.",
            "fix": "Ask for the run again: steps that were done are left out.",
        }
        marked = ActionRun.objects.filter(silent, pk=run.pk, state=RunState.RUNNING).update(
            state=RunState.LOST, error=error, ended_at=now
        )
        if marked:
            audit.record(SYSTEM, "run.lost", f"{run.instance.name}: run {run.pk}")
            _release(run)
    RunLock.objects.exclude(run__state__in=(RunState.RUNNING, RunState.WAITING)).delete()
    for run in ActionRun.objects.filter(state=RunState.WAITING, created_at__lt=now - QUEUE_AGAIN_AFTER)[
        :MAX_WAITING
    ]:
        enqueue(run)
    return lost


def _release(run: ActionRun, kinds: set[str] | None = None) -> None:
    """Give back what a run held, of these kinds or all, and queue the oldest of those that wait for it."""
    held = RunLock.objects.filter(run=run)
    if kinds is not None:
        held = held.filter(kind__in=kinds)
    freed = set(held.values_list("kind", flat=True))
    held.delete()
    if not freed:
        return
    same = {"instance": run.instance, "member": run.member}
    taken = list(RunLock.objects.filter(**same).values_list("kind", "run_id"))
    waiting = ActionRun.objects.filter(**same, state=RunState.WAITING).order_by("created_at")
    for other in waiting[:MAX_WAITING]:
        wanted = locks_for_run(other)
        if wanted & freed and not any(kind in wanted and holder != other.pk for kind, holder in taken):
            taken += [(kind, other.pk) for kind in wanted]
            transaction.on_commit(partial(enqueue, other))


def find_by_key(actor: Actor, once: IdempotencyKey) -> ActionRun | None:
    """The run that this key made before. Raises OperatorError idempotency_key_reused."""
    known = (
        ActionRun.objects.select_related("instance", "action")
        .filter(actor=actor.name[:200], idempotency_key=once.key)
        .first()
    )
    if known is not None and known.idempotency_digest != once.digest:
        raise OperatorError(
            "idempotency_key_reused",
            "This Idempotency-Key came with another request before.",
            "Use a new key.",
            run=str(known.pk),
        )
    return known


def _in_progress(run: ActionRun) -> OperatorError:
    active = ActionRun.objects.filter(
        instance=run.instance, member=run.member, kind=run.kind, state__in=ACTIVE_RUN_STATES
    ).first()
    return OperatorError(
        "run_in_progress",
        f"Another run of {run.kind} is under way on {run.instance.name}, or this firing was run already.",
        "Wait for it to end, or cancel it.",
        run=str(active.pk) if active else None,
    )


def _told(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters for the audit: without messages' contents, which don't belong into it."""
    variables = parameters.get("variables")
    if not isinstance(variables, Mapping):
        return dict(parameters)
    return {
        **parameters,
        "variables": {name: text[:200] for name, text in variables.items() if name != "AMPS_DATA"},
    }
