from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils import timezone

from console.models import Instance
from console.queries import policies
from console.services import broker_reports
from console.services import policies as services


def test_instance_that_never_reported_is_not_converged(instance: Instance) -> None:
    state = policies.policy_status(instance)
    assert (state["wanted"], state["running"], state["converged"]) == (1, None, False)
    assert "never" in state["why"]


def test_silent_broker_is_taken_for_away(instance: Instance) -> None:
    now = timezone.now()
    broker_reports.record_revision(instance, 1, now - timedelta(minutes=1))
    state = policies.policy_status(instance, now)
    assert not state["converged"]
    assert "last reported" in state["why"]


def test_broker_behind_is_named_with_its_revision(instance: Instance) -> None:
    broker_reports.record_revision(instance, 9, timezone.now())
    state = policies.policy_status(instance)
    assert not state["converged"]
    assert "revision 9" in state["why"]


def test_many_instances_take_no_more_queries_than_one(
    instance: Instance, django_assert_num_queries: Any
) -> None:
    now = timezone.now()
    for number in range(2, 7):
        other = services.ensure_instance(f"sluice-{number}")
        broker_reports.record_revision(other, 1, now)
    with django_assert_num_queries(3):
        states = policies.installation_policy_status(now)
    assert [state["instance"] for state in states] == [f"sluice-{number}" for number in range(1, 7)]
    assert [state["converged"] for state in states] == [False, True, True, True, True, True]
    assert [state["wanted"] for state in states] == [1] * 6
