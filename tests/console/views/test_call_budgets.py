"""Number of Python and C calls for one edit by an operator, independent of machine load."""

from __future__ import annotations

from django.db import connection
from django.test import Client

from console.models import Instance
from tests.console.views.test_client import apply
from tests.console.views.test_policies import instance_form
from tests.support.call_counts import counting_calls
from tests.support.fake_broker import FakeBroker

EDIT_BUDGETS = {"sqlite": 345_000, "postgresql": 381_000}
"""Calls of one changed limit by database: its form, the pending changes, applying them, the next page."""


def test_one_changed_limit_stays_within_its_budget_of_calls(
    browser: Client, broker: FakeBroker, instance: Instance
) -> None:
    costs = []
    for limit in ("512MiB", "500MiB", "480MiB", "460MiB"):
        with counting_calls() as number:
            browser.post("/policies/instance/", instance_form(message_memory_limit=limit))
            apply(browser, "because", confirmed="on")
        costs.append(number())
    assert min(costs) <= EDIT_BUDGETS[connection.vendor], costs
