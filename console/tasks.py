"""Celery's tasks: wrappers over services, so that the same work can be done and tested without a queue."""

from __future__ import annotations

from typing import Any

from celery import shared_task
from django.utils import timezone

from console.live.redis_link import redis_connection
from console.live.workers import note_pulse
from console.services import (
    alerts,
    audit,
    audit_export,
    client_hours_import,
    execution,
    loss_ledger,
    operators,
    policies,
    rollup,
    runs,
)
from console.services.actions import scheduler


@shared_task(name="console.tasks.execute_run")
def execute_run(run_id: str) -> None:
    """Carry out a run."""
    execution.execute_run(run_id)


@shared_task(name="console.tasks.run_minute_jobs")
def run_minute_jobs() -> None:
    """Each minute: start what is due, find lost runs, tell brokers that run another revision, take in new hours of the lake, forget old samples, note used tokens."""
    now = timezone.now()
    runs.mark_lost_runs(now)
    scheduler.start_due_runs(now)
    policies.reconcile()
    rollup.roll_up(now)
    client_hours_import.import_new_hours(now)
    rollup.delete_old_samples(now)
    loss_ledger.delete_old(now)
    audit.delete_expired(now)
    operators.store_token_uses()
    alerts.delete_old_alerts(now)


@shared_task(name="console.tasks.evaluate_alerts")
def evaluate_alerts() -> None:
    """Every ten seconds: open and close alerts."""
    alerts.evaluate_alerts(timezone.now())


@shared_task(name="console.tasks.send_alerts")
def send_alerts() -> None:
    """Every ten seconds: send what is due of alerts. Other hosts are called, so chores don't wait for it."""
    alerts.send_due_messages(timezone.now())


@shared_task(name="console.tasks.pulse")
def pulse(queue: str) -> None:
    """Every ten seconds in each queue: note that it moves."""
    note_pulse(redis_connection(), queue)


@shared_task(bind=True, name=audit_export.TASK, max_retries=audit_export.MAX_TRIES - 1)
def export_audit(self: Any, event_id: int) -> None:
    """Send an audit event to the log host and the webhook; again after 5 s, 10 s, … when one can't be reached."""
    try:
        audit_export.export_event(event_id)
    except audit_export.FAILURES as problem:
        tries = self.request.retries
        if tries >= audit_export.MAX_TRIES - 1:
            audit_export.logger.error("audit event %s isn't sent: %s", event_id, problem)
            return
        raise self.retry(exc=problem, countdown=audit_export.FIRST_WAIT_S * 2**tries) from problem
