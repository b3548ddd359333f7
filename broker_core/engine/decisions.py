"""The decisions that were made lately, for everybody who asks, and on their way to the broker's own topic."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Final

import msgspec

from broker_core.config.rule_terms import REPEATED_ACTIONS
from broker_core.documents.clients import DecisionSummary
from broker_core.documents.system_records import DecisionEntry
from broker_core.engine.events import ClientEvents
from broker_core.slow_clients.evaluate.decision import Decision
from broker_core.slow_clients.evaluate.wording import decision_entry

KEPT: Final = 1_000


class Decisions:
    """One instance's, as documents (`made` counts all of them)."""

    def __init__(self, instance: str, started_at: int, events: ClientEvents) -> None:
        self._prefix = f"{instance}-{started_at // 1_000_000}"
        self._events = events
        self.recent: deque[DecisionEntry] = deque(maxlen=KEPT)
        self.made = 0
        self._begun = 0
        self._repeated: dict[tuple[str, str, str], tuple[Decision, str]] = {}
        """What was discarded in this second, by client, subscription and rule: a decision a batch would be a flood."""
        self._last: dict[str, DecisionSummary] = {}

    def identity(self) -> str:
        """A name for the next decision. Unique over restarts, and in order: clients and the control plane know it by it."""
        self._begun += 1
        return f"{self._prefix}-{self._begun}"

    def keep(self, decision: Decision, identity: str) -> None:
        """A decision was carried out, or would have been; what is done over and over comes together."""
        if decision.action not in REPEATED_ACTIONS:
            self._record(decision, identity)
            return
        key = (decision.client, decision.subscription, decision.rule)
        first, known = self._repeated.get(key, (None, identity))
        if first is not None:
            decision = replace(
                decision,
                at=first.at,
                times=first.times + 1,
                lost=first.lost + decision.lost,
                observed=max(first.observed, decision.observed),
            )
        self._repeated[key] = (decision, known)

    def close_second(self) -> None:
        """Record what was done more than once in the second that ends."""
        repeated, self._repeated = self._repeated, {}
        for decision, identity in repeated.values():
            self._record(decision, identity)

    def _record(self, decision: Decision, identity: str) -> None:
        made = decision_entry(decision, identity)
        self.recent.append(made)
        self._last.pop(decision.client, None)
        self._last[decision.client] = msgspec.convert(made, DecisionSummary, from_attributes=True)
        if len(self._last) > KEPT:
            del self._last[next(iter(self._last))]
        self.made += 1
        self._events.decided(made)

    def last_of(self, client: str) -> DecisionSummary | None:
        """The last decision about a client, in short; None when it was too long ago, or there was none."""
        return self._last.get(client)
