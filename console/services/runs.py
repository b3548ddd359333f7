"""Runs: requests for a run, its claim by a worker, its end, and detection of runs whose worker died.

A worker claims a run with one conditional UPDATE (waiting → running) and creates the locks it needs
(`RunLock`: one per kind and instance). So a task that the queue delivers twice has no effect the second
time, and a waiting run can be queued again at any time. The run of an action holds the locks for its
current step. It waits again before a step whose lock another run holds. The end of a run or step queues the
runs that wait for its locks.
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
    REPEATABLE_RUN_STATES,
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
"""Time without a heartbeat after which a running run is declared lost."""
QUEUE_AGAIN_AFTER = timedelta(minutes=2)
"""Age at which a waiting run is queued again, in case its task was lost."""
MAX_WAITING = 1_000
"""Maximum waiting runs that are considered when a run ends."""


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """Idempotency-Key of a request, and a digest of the request.

    A repeated request returns the run made before.
    """

    key: str
    digest: str

    @classmethod
    def for_request(cls, key: str, *asked: Any) -> IdempotencyKey | None:
        """Return the key with the digest of `asked`, or None without a key.

        Raises OperatorError `bad_idempotency_key`.
        """
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
    """Store a run and queue it, or let it wait for approval.

    Every run is created here, whether a page, the API, a schedule, an event, a message or a repetition
    requests it.

    Args:
        actor: Requester of the run.
        instance: Instance that the run works on.
        kind: Kind of the run.
        parameters: Parameters of that kind.
        plan: Plan that the requester has seen.
        plan_hash: Hash of that plan; people and tokens need it for destructive runs.
        once: Idempotency key of the request.
        **more: Other columns of the row, such as `action` and `due_at`.

    Raises:
        OperatorError: `plan_needed` for a destructive run without a plan, `run_in_progress` when one of its
            kind is active (runs of actions wait instead), or `idempotency_key_reused`.
    """
    if once is not None and (known := find_by_key(actor, once)) is not None:
        return known
    if (
        not plan_hash
        and causes.is_requester(actor)
        and is_destructive(kind, parameters, len(more.get("steps", ())))
    ):
        raise OperatorError(
            "plan_needed",
            "This removes data or disconnects clients.",
            "Plan it, and send the plan's hash.",
        )
    needs_approval = more.pop("needs_approval", False) or waits_for_approval(kind, parameters)
    more["causes"] = causes.merge_causes(more.get("causes", ()), causes.causes_from_actor(actor))
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
            audit.record(
                actor, f"run.{kind}", f"{instance.name}: run {run.pk}", after=audit_parameters(parameters)
            )
    except IntegrityError as conflict:
        if once is not None and (known := find_by_key(actor, once)) is not None:
            return known
        raise _in_progress(run) from conflict
    if run.state == RunState.WAITING:
        transaction.on_commit(lambda: enqueue(run))
    return run


def is_destructive(kind: str, parameters: Mapping[str, Any], done: int = 0) -> bool:
    """Whether a run removes something or disconnects clients after its first `done` steps. Pure."""
    return kind == RunKind.REMOVE or definition.is_destructive(parameters.get("steps", [])[done:])


def waits_for_approval(kind: str, parameters: Mapping[str, Any]) -> bool:
    """Whether a second person must approve the run, because its kind or a step's kind requires that."""
    words = {str(kind), *(str(step.get("do", "")) for step in parameters.get("steps", ()))}
    return not words.isdisjoint(settings.SLUICE_APPROVE_KINDS)


def enqueue(run: ActionRun) -> None:
    """Send a waiting run to the queue of its workers.

    If the queue can't be reached, the run fails immediately.

    A run whose queue has no worker waits, with an error that says so.
    """
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
        _update_worker_error(run, queue)


def queue_for(run: ActionRun) -> str:
    """Return the queue of a run: its journal's machine's, or the usual one for runs that need no journal.

    On a single machine every worker can reach the journal. There an action with long steps uses the usual
    queue, so that it doesn't occupy the few workers for short jobs.
    """
    address = _broker_address(run)
    if address is None or (address.path is not None and _is_long(run)):
        return USUAL_QUEUE
    return queue_for_broker(address)


def _is_long(run: ActionRun) -> bool:
    return any(step.get("do") in LONG_STEPS for step in run.parameters.get("steps", ()))


def is_elsewhere(run: ActionRun) -> bool:
    """Whether a run needs a journal on another machine, so that only a worker there can perform it."""
    address = _broker_address(run)
    return address is not None and address.path is None


def _broker_address(run: ActionRun) -> BrokerAddress | None:
    """Return the address of the broker whose journal a run needs, or None."""
    if not needs_journal_worker(run.kind, run.parameters):
        return None
    addresses = addresses_of(run.instance.name)
    return next((one for one in addresses if one.member == run.member), addresses[0])


def needs_journal_worker(kind: str, parameters: Mapping[str, Any]) -> bool:
    """Whether a run works on segment files. Pure."""
    if kind != RunKind.ACTION:
        return kind in JOURNAL_ACTIONS
    return any(step.get("do") in JOURNAL_ACTIONS for step in parameters.get("steps", ()))


def _update_worker_error(run: ActionRun, queue: str) -> None:
    """Store in a waiting run the error that its queue has no worker, or remove that error."""
    error = None
    if queues_without_worker([queue]):
        name = format_broker_name(run.instance.name, run.member)
        error = {
            "code": "no_worker",
            "message": f"No worker serves the queue {queue}, so the run waits.",
            "fix": f"Start one on the machine of {name}: celery -A console.project worker -Q {queue}",
        }
    ActionRun.objects.filter(pk=run.pk, state=RunState.WAITING).update(error=error)


def locks_for_run(run: ActionRun) -> set[str]:
    """Return the locks that a run needs to continue: its kind, or its action and those of its next step.

    Pure.
    """
    if run.kind != RunKind.ACTION:
        return {run.kind, JOURNAL_FILES} if run.kind in JOURNAL_ACTIONS else {run.kind}
    done = len(run.steps)
    return {
        f"action:{run.action_id or run.parameters.get('action', '')}"[:80],
        *locks_needed(run.parameters["steps"][done : done + 1]),
    }


def claim_run(run_id: UUID | str, now: datetime) -> ActionRun | None:
    """Claim a waiting run with its locks. Return None if it no longer waits, or another run holds a lock.

    `started_at` of a run that waited between steps stays the time of its first start.
    """
    try:
        with transaction.atomic():
            claimed = ActionRun.objects.filter(pk=run_id, state=RunState.WAITING).update(
                state=RunState.RUNNING, started_at=Coalesce("started_at", now), heard_at=now, error=None
            )
            if not claimed:
                return None
            run = ActionRun.objects.select_related("instance", "action").get(pk=run_id)
            _create_locks(run)
    except IntegrityError:
        return None
    return run


def prepare_step(run: ActionRun) -> bool:
    """Release the locks that a run's next step doesn't need, and acquire those it needs.

    So a step that calls a webhook keeps no other run from the journals.

    Returns:
        False if another run holds a lock. The run then waits again, and its worker must stop working on it.

    Raises:
        RunCancelled: the run was cancelled.
    """
    spare = set(RunLock.objects.filter(run=run).values_list("kind", flat=True)) - locks_for_run(run)
    if spare:
        _release(run, spare)
    try:
        with transaction.atomic():
            _create_locks(run)
    except IntegrityError:
        _put_back(run)
        return False
    return True


def _create_locks(run: ActionRun) -> None:
    """Create the locks that a run needs and doesn't hold yet.

    Raises IntegrityError if another run holds one.
    """
    existing = set(RunLock.objects.filter(run=run).values_list("kind", flat=True))
    for kind in sorted(locks_for_run(run) - existing):
        RunLock.objects.create(instance=run.instance, member=run.member, kind=kind, run=run)


def _put_back(run: ActionRun) -> None:
    """Let a run wait for another run's locks.

    It keeps the lock of its action, so that no later run overtakes it.

    Raises:
        RunCancelled: the run was cancelled.
    """
    moved = ActionRun.objects.filter(pk=run.pk, state=RunState.RUNNING, cancel_requested=False).update(
        state=RunState.WAITING, log=run.log, steps=run.steps, step="waiting for another run"
    )
    if not moved:
        raise RunCancelled
    others = RunLock.objects.filter(instance=run.instance, member=run.member).exclude(run=run)
    if not others.filter(kind__in=locks_for_run(run)).exists():
        enqueue(run)  # the other run ended before this one began to wait


def finish(
    run: ActionRun, state: RunState, *, result: Any = None, error: Mapping[str, Any] | None = None
) -> None:
    """End a running run. A run that was declared lost meanwhile stays lost, and stores the result."""
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
            or {
                "code": "worker_lost",
                "message": "The run was marked as lost, but its worker responded again.",
            },
        }
    ):
        ActionRun.objects.filter(pk=run.pk, state=RunState.RUNNING).update(state=state, **values)
    _release(run)
    run.refresh_from_db()


def cancel(actor: Actor, run: ActionRun, reason: str = "") -> ActionRun:
    """Cancel a waiting run, or ask a running one to stop after its current step.

    Raises:
        OperatorError: `not_allowed` or `run_ended`.
    """
    access.require_permission(actor, Permission.RUN_ACTIONS, instance=run.instance.name)
    with transaction.atomic():
        stopped = ActionRun.objects.filter(pk=run.pk, state__in=(RunState.WAITING, RunState.APPROVAL)).update(
            state=RunState.CANCELLED, ended_at=timezone.now()
        )
        requested = (
            0
            if stopped
            else ActionRun.objects.filter(pk=run.pk, state=RunState.RUNNING).update(cancel_requested=True)
        )
        if not (stopped or requested):
            raise OperatorError(
                "run_ended", f"The run has ended ({run.state}).", "No cancellation is needed."
            )
        if stopped:
            _release(run)
        audit.record(actor, "run.cancel", f"{run.instance.name}: run {run.pk}", reason=reason)
    run.refresh_from_db()
    return run


def approve(actor: Actor, run: ActionRun) -> ActionRun:
    """Approve a run that the actor neither requested nor caused, and queue it.

    Raises:
        OperatorError: `not_allowed`, `own_run`, `not_awaiting` or `run_in_progress`.
    """
    access.require_permission(actor, Permission.APPROVE, instance=run.instance.name)
    if causes.is_behind(actor, run):
        audit.record(actor, "run.approve", f"{run.instance.name}: run {run.pk}", result=AuditResult.DENIED)
        raise OperatorError(
            "own_run",
            "An account can't approve a run that it requested, or caused by an event, a message or a "
            "schedule.",
            "Ask another approver.",
        )
    try:
        with transaction.atomic():
            moved = ActionRun.objects.filter(pk=run.pk, state=RunState.APPROVAL).update(
                state=RunState.WAITING, approver=actor.name[:200]
            )
            if not moved:
                raise OperatorError("not_awaiting", "The run isn't waiting for approval.", "Check its state.")
            audit.record(actor, "run.approve", f"{run.instance.name}: run {run.pk}")
    except IntegrityError as conflict:
        raise _in_progress(run) from conflict
    run.refresh_from_db()
    transaction.on_commit(lambda: enqueue(run))
    return run


def repeat(actor: Actor, run: ActionRun, *, plan: Any = None, plan_hash: str = "") -> ActionRun:
    """Request a lost, failed or cancelled run again. Steps that were done are skipped.

    Of a run and its repetitions only the newest can be repeated.

    `plan` and `plan_hash` cover the remaining steps.

    Raises:
        OperatorError: `not_allowed`, `not_repeatable`, and the errors of `request`.
    """
    access.require_permission(actor, Permission.RUN_ACTIONS, instance=run.instance.name)
    if run.state not in REPEATABLE_RUN_STATES:
        raise OperatorError(
            "not_repeatable",
            f"The run is {run.get_state_display().lower()}.",
            "Only runs that failed or were cancelled can be repeated.",
        )
    needs_approval = bool(run.approver) or (run.action is not None and run.action.needs_approval)
    with transaction.atomic():
        # The rows of the run and its repetitions are the lock: of two requests at once, one finds the
        # other's run. Each repetition knows the steps of those before, so only the newest may be repeated.
        family = ActionRun.objects.filter(Q(pk=run.first_id) | Q(origin=run.first_id))
        list(family.order_by("pk").select_for_update())
        newest = family.order_by("created_at").last()
        if newest is not None and newest.pk != run.pk:
            raise OperatorError(
                "not_repeatable",
                f"The run {newest.pk} repeats it already, and is {newest.get_state_display().lower()}.",
                "Repeat that run: it skips the completed steps."
                if newest.state in REPEATABLE_RUN_STATES
                else "See that run. Its steps would be done twice.",
            )
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
    """Return the steps of a run that a repetition skips."""
    return [step for step in run.steps if step["state"] in ("done", "held")]


def mark_lost_runs(now: datetime) -> list[ActionRun]:
    """Mark runs without a recent heartbeat as lost, release their locks, and queue old waiting runs again."""
    silent = Q(heard_at__lt=now - LOST_AFTER) | Q(heard_at__isnull=True)
    lost = list(ActionRun.objects.filter(silent, state=RunState.RUNNING).select_related("instance"))
    for run in lost:
        error = {
            "code": "worker_lost",
            "message": "The worker stopped reporting.",
            "fix": "Request the run again: it skips the completed steps.",
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
    """Delete a run's locks, all or those of `kinds`, and queue the oldest runs that wait for them."""
    locks = RunLock.objects.filter(run=run)
    if kinds is not None:
        locks = locks.filter(kind__in=kinds)
    freed = set(locks.values_list("kind", flat=True))
    locks.delete()
    if not freed:
        return
    same = {"instance": run.instance, "member": run.member}
    remaining_locks = list(RunLock.objects.filter(**same).values_list("kind", "run_id"))
    waiting = ActionRun.objects.filter(**same, state=RunState.WAITING).order_by("created_at")
    for candidate in waiting[:MAX_WAITING]:
        needed = locks_for_run(candidate)
        if needed & freed and not any(
            kind in needed and holder != candidate.pk for kind, holder in remaining_locks
        ):
            remaining_locks += [(kind, candidate.pk) for kind in needed]
            transaction.on_commit(partial(enqueue, candidate))


def find_by_key(actor: Actor, once: IdempotencyKey) -> ActionRun | None:
    """Return the run that an earlier request with this key made, or None.

    Raises:
        OperatorError: `idempotency_key_reused` if the earlier request differed.
    """
    known = (
        ActionRun.objects.select_related("instance", "action")
        .filter(actor=actor.name[:200], idempotency_key=once.key)
        .first()
    )
    if known is not None and known.idempotency_digest != once.digest:
        raise OperatorError(
            "idempotency_key_reused",
            "This Idempotency-Key was used for another request.",
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
        f"Another run of {run.kind} is in progress on {run.instance.name}, or this firing has already run.",
        "Wait for it to end, or cancel it.",
        run=str(active.pk) if active else None,
    )


def audit_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters for the audit: without the bodies of messages, and with shortened variables."""
    variables = parameters.get("variables")
    if not isinstance(variables, Mapping):
        return dict(parameters)
    return {
        **parameters,
        "variables": {name: text[:200] for name, text in variables.items() if name != "AMPS_DATA"},
    }
