"""Brake of a staged rollout: how many decisions its revision may still execute on this broker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from broker_core.config.rule_terms import REPEATED_ACTIONS, EnforcementMode
from broker_core.slow_clients.evaluate.decision import Decision
from broker_core.slow_clients.rules.rulebook import StagedRevision

SECOND_NS: Final = 1_000_000_000


class RolloutBrake:
    """Decision allowance of one staged revision on one broker.

    A decision is checked before it is executed. The first one beyond the allowance is held back and ends the
    rollout here: `exhausted` stays true for this revision, also when the control plane requests it again.
    """

    def __init__(self, stage: StagedRevision) -> None:
        self.revision = stage.document.revision
        self.allowed = stage.allowed
        self.made = stage.made
        self.exhausted = False
        self._second = -1
        self._repeated: set[tuple[str, str, str]] = set()

    @property
    def reserved(self) -> int:
        """Upper bound of the decisions executed here, for a broker that starts again after it was killed."""
        return self.made if self.allowed is None else max(self.made, self.allowed)

    def split(self, decisions: Iterable[Decision]) -> tuple[list[Decision], list[Decision]]:
        """Return the decisions that may be executed, and those that are held back, marked with `held_at`."""
        executed: list[Decision] = []
        withheld: list[Decision] = []
        for decision in decisions:
            if self.admit(decision):
                executed.append(decision)
            else:
                withheld.append(replace(decision, mode=EnforcementMode.SHADOW, held_at=self.allowed))
        return executed, withheld

    def admit(self, decision: Decision) -> bool:
        """Return whether a decision may be executed, and count it. Shadow decisions are not counted.

        Discards and conflations of one subscription by one rule within a second count as one decision, as in
        the list of decisions.
        """
        if decision.mode is not EnforcementMode.ENFORCE or decision.revision != self.revision:
            return True
        if self.exhausted:
            return False
        key = (decision.client, decision.subscription, decision.rule)
        if decision.action in REPEATED_ACTIONS:
            second = decision.at // SECOND_NS
            if second != self._second:
                self._second, self._repeated = second, set()
            if key in self._repeated:
                return True
        if self.allowed is not None and self.made >= self.allowed:
            self.exhausted = True
            return False
        self.made += 1
        if decision.action in REPEATED_ACTIONS:
            self._repeated.add(key)
        return True
