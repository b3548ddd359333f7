"""A decision: one explained act on a client.

The same object is sent to the client before the close, stored, shown in the console and read by Spark, so it
carries everything needed to understand it without looking elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from broker_core.slow_clients.rules import Action, Choice, Mode, Reason, Signal, Unit
from broker_core.slow_clients.signals import Sample


class Candidate(NamedTuple):
    """A client that was considered, with its use of what ran short."""

    client: str
    used: int


@dataclass(frozen=True, slots=True)
class Decision:
    """Who is acted on, how, by which rule, on what evidence, and what that costs."""

    at: int
    """ns UTC"""
    client: str
    transport: str
    pool: str
    action: Action
    reason: Reason
    rule: str
    setting: str
    revision: int
    mode: Mode
    choose: Choice
    signal: Signal
    observed: int
    limit: int
    unit: Unit
    used: int
    """The client's own use of what the rule measures, in the same unit."""
    chosen_over: Candidate | None
    """Who would have been next; None when the rule acts on the offender itself, or nobody else used any."""
    kept: int
    """Messages kept: in the spool after OFFLINE, replayable from the resume bookmark after DISCONNECT."""
    lost: int
    """Messages that nothing can bring back: not journaled, and the client is disconnected."""
    resume_bookmark: str
    samples: tuple[Sample, ...] = ()

    def sentence(self) -> str:
        """The decision in one or two English sentences."""
        return f"Client {self.client} {self._did()}: {self._why()}. {self._cost()}"

    def _did(self) -> str:
        act = "offlined" if self.action is Action.OFFLINE else "disconnected"
        return f"would have been {act}" if self.mode is Mode.SHADOW else f"was {act}"

    def _why(self) -> str:
        observed, limit = quantity(self.observed, self.unit), quantity(self.limit, self.unit)
        if self.choose is Choice.SELF:
            return f"{_SUBJECT[self.signal]} {observed}, over {self.setting} ({limit})"
        used = f"it {_SHARE[self.signal]} {quantity(self.used, self.unit)}, more than any other client"
        runner = self.chosen_over
        after = f"; next is {runner.client} with {quantity(runner.used, self.unit)}" if runner else ""
        subject = _SUBJECT[self.signal].format(pool=self.pool)
        return f"{subject} {observed}, over {self.setting} ({limit}), and {used}{after}"

    def _cost(self) -> str:
        if self.action is Action.OFFLINE:
            return f"{messages(self.kept)} kept in its spool and will be sent in order when it reads again."
        if not self.kept and not self.lost:
            return "Nothing was waiting for it."
        parts = []
        if self.kept:
            resume = f" and can be replayed from {self.resume_bookmark}" if self.resume_bookmark else ""
            parts.append(f"{messages(self.kept)} in the journal{resume}")
        if self.lost:
            parts.append(f"{messages(self.lost)} lost, being of topics that aren't journaled")
        return "; ".join(parts) + "."

    def as_dict(self) -> dict[str, Any]:
        """The decision as JSON. Moments are milliseconds: nanoseconds don't fit a browser's numbers."""
        return {
            "at": self.at // 1_000_000,
            "client": self.client,
            "transport": self.transport,
            "pool": self.pool,
            "action": self.action.value,
            "reason": self.reason.value,
            "rule": self.rule,
            "setting": self.setting,
            "revision": self.revision,
            "mode": self.mode.value,
            "choose": self.choose.value,
            "signal": self.signal.value,
            "observed": self.observed,
            "limit": self.limit,
            "unit": self.unit.value,
            "used": self.used,
            "chosen_over": self.chosen_over and self.chosen_over._asdict(),
            "kept": self.kept,
            "lost": self.lost,
            "resume_bookmark": self.resume_bookmark,
            "sentence": self.sentence(),
            "samples": [[sample.at // 1_000_000, *sample[1:]] for sample in self.samples],
        }

    def notice(self) -> dict[str, Any]:
        """What the client is told before it is disconnected, without the protocol's own fields."""
        return {
            "code": self.reason.value,
            "message": self.sentence(),
            "observed": self.observed,
            "limit": self.limit,
            "unit": self.unit.value,
            "resume": self.resume_bookmark,
            "kept": self.kept,
            "lost": self.lost,
        }


_SUBJECT = {
    Signal.POOL_MEMORY: "the clients of pool {pool} hold",
    Signal.POOL_DISK: "the spools of pool {pool} take",
    Signal.OUTBOUND_BYTES: "its outbox holds",
    Signal.SPOOL_BYTES: "its spool takes",
    Signal.OLDEST_AGE: "its oldest message has been waiting for",
}
_SHARE = {
    Signal.POOL_MEMORY: "holds",
    Signal.POOL_DISK: "takes",
}


def messages(count: int) -> str:
    """`1 message is`, `2 messages are`."""
    return "1 message is" if count == 1 else f"{count:,} messages are"


def quantity(value: int, unit: Unit) -> str:
    """A figure for people: `1,500 bytes`, `64.0 MiB`, `750 ms`, `30.5 s`."""
    if unit is Unit.MILLISECONDS:
        return f"{value} ms" if value < 1_000 else f"{value / 1_000:,.1f} s"
    if value < 10_240:
        return f"{value:,} bytes"
    for name, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if value >= size:
            return f"{value / size:,.1f} {name}"
    return f"{value / 1_024:,.1f} KiB"
