"""Handlers of the steps in the catalogue: how each is planned and performed."""

from __future__ import annotations

from console.services.actions.step_context import StepHandler
from console.services.actions.steps import broker, database, external, files, journals, policy

STEPS: dict[str, StepHandler] = {
    **journals.STEPS,
    **files.STEPS,
    **database.STEPS,
    **broker.STEPS,
    **policy.STEPS,
    **external.STEPS,
}
