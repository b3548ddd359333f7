"""Celery tasks. They only call services, so that the same work can be run and tested without a queue."""

from __future__ import annotations

from typing import Any

from celery import shared_task
from django.utils import timezone

from console.live.redis_link import redis_connection
from console.live.single_holder import single_holder
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
    """Execute a run."""
    execution.execute_run(run_id)


@shared_task(name="console.tasks.run_minute_jobs")
def run_minute_jobs() -> None:
    """Run the periodic jobs of each minute.

    Runs: start due ones, mark lost ones. Policies: notify brokers that run another revision. History: roll
    up samples, import new hours from the lake, delete old samples, losses, audit events and alerts. Tokens:
    store their last use.
    """
    now = timezone.now()
    runs.mark_lost_runs(now)
    scheduler.start_due_runs(now)
    policies.reconcile()
    rollup.write_rollups(now)
    client_hours_import.import_new_hours(now)
    rollup.delete_old_samples(now)
    loss_ledger.delete_old(now)
    audit.delete_expired(now)
    operators.store_token_uses()
    alerts.delete_old_alerts(now)


@shared_task(name="console.tasks.evaluate_alerts")
def evaluate_alerts() -> None:
    """Open and close alerts, every 10 seconds."""
    alerts.evaluate_alerts(timezone.now())


@shared_task(name="console.tasks.send_alerts")
def send_alerts() -> None:
    """Send due messages of alerts, every 10 seconds, in one process at a time.

    Sending calls other hosts, so it has its own task. Hosts that answer slowly occupy one slot.
    """
    with single_holder("alerts", alerts.SENDING_S + alerts.EMAIL_DEADLINE_S + 10) as mine:
        if mine:
            alerts.send_due_messages(timezone.now())


@shared_task(name="console.tasks.pulse")
def pulse(queue: str) -> None:
    """Record that a queue progresses, every 10 seconds in each queue."""
    note_pulse(redis_connection(), queue)


@shared_task(bind=True, name=audit_export.TASK, max_retries=audit_export.MAX_TRIES - 1)
def export_audit(self: Any, event_id: int) -> None:
    """Send an audit event to the log host and the webhook.

    If a host can't be reached, the task is retried after 5 s, 10 s, and so on.
    """
    try:
        audit_export.export_event(event_id)
    except audit_export.FAILURES as problem:
        tries = self.request.retries
        if tries >= audit_export.MAX_TRIES - 1:
            audit_export.logger.error("audit event %s isn't sent: %s", event_id, problem)
            return
        raise self.retry(exc=problem, countdown=audit_export.FIRST_WAIT_S * 2**tries) from problem
