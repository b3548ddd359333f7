"""How each step of the catalogue is planned and carried out."""

from __future__ import annotations

from console.services.actions.scene import Step
from console.services.actions.steps import broker, database, files, journals, outside, policy

STEPS: dict[str, Step] = {
    **journals.STEPS,
    **files.STEPS,
    **database.STEPS,
    **broker.STEPS,
    **policy.STEPS,
    **outside.STEPS,
}
