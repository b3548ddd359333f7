"""An instance's guard: told about every change, asked about every client, its decisions handed to `acts`."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from broker_core.runtime import clock
from broker_core.runtime.acts import ACTS, UnderWay
from broker_core.runtime.connection import Connection
from broker_core.slow_clients.decision import Decision
from broker_core.slow_clients.guard import SlowClientGuard
from broker_core.slow_clients.holds import REPEATED
from broker_core.slow_clients.rules import Mode
from broker_core.spool.spool import Spool

if TYPE_CHECKING:
    from broker_core.runtime.host import Host

DECISIONS_KEPT = 1_000
PART_S = 0.025
log = structlog.get_logger("sluice.judging")


class Judging:
    """An instance's guard, and the decisions made lately, as JSON (`made` counts all of them)."""

    def __init__(self, host: Host, guard: SlowClientGuard) -> None:
        self._host = host
        self.guard = guard
        self.decisions: deque[dict[str, Any]] = deque(maxlen=DECISIONS_KEPT)
        self.made = 0
        self._begun = 0
        self._repeated: dict[tuple[str, str, str], tuple[Decision, str]] = {}
        """What was discarded in this second, by client, subscription and rule: a decision a batch would be a flood."""
        self._last: dict[str, dict[str, Any]] = {}
        self.late_ms = 0
        """How late the loop ran at the last look, in ms: everybody's messages waited as long."""
        self._spools = 0

    def judge(self, connection: Connection) -> None:
        """Tell policy what a client holds now, and carry out what it decides."""
        account, backlog = connection.account, connection.backlog
        if account is None or connection.closed:
            return
        decision = None
        memory = backlog.nbytes - account.memory
        if memory > 0:
            decision = self.guard.queued(account, memory, clock.now_ns())
        elif memory < 0:
            self.guard.released(account, -memory)
        disk = backlog.spool_bytes - account.disk
        if disk > 0:
            decision = self.guard.spooled(account, disk, clock.now_ns()) or decision
        elif disk < 0:
            self.guard.unspooled(account, -disk)
        if decision is not None:
            self.carry_out(decision)

    def carry_out(self, decision: Decision) -> None:
        """Do what was decided, and keep the decision for everybody who asks. In shadow it is kept and nothing done."""
        self._begun += 1
        # Unique over restarts, and in order: the clients and the control plane know a decision by it.
        act = UnderWay(decision, f"{self._host.instance}-{self._host.started_at // 1_000_000}-{self._begun}", self._keep)
        connection = self._host.clients.get(decision.client)
        if decision.mode is Mode.SHADOW:
            act.record()
        elif connection is not None:
            self._act(connection, act)

    def _act(self, connection: Connection, act: UnderWay) -> None:
        try:
            ACTS[act.decision.action](connection, act)
        except Exception:
            # Decisions are made while others' messages are delivered: one client's failure must stay its own.
            log.exception("act_failed", client=connection.name, action=act.decision.action.value)
            connection.close("internal_error", "What a policy decided about this client couldn't be carried out.")

    def _keep(self, decision: Decision, identity: str) -> None:
        if decision.action not in REPEATED or decision.mode is Mode.SHADOW:
            self._record(decision, identity)
            return
        key = (decision.client, decision.subscription, decision.rule)
        first, known = self._repeated.get(key, (None, identity))
        if first is not None:
            decision = replace(
                decision, at=first.at, times=first.times + 1, lost=first.lost + decision.lost,
                observed=max(first.observed, decision.observed),
            )
        self._repeated[key] = (decision, known)

    def close_second(self) -> None:
        """Record what was done more than once in the second that ends."""
        repeated, self._repeated = self._repeated, {}
        for decision, identity in repeated.values():
            self._record(decision, identity)

    def _record(self, decision: Decision, identity: str) -> None:
        made = decision.as_dict() | {"id": identity}
        self.decisions.append(made)
        self._last.pop(decision.client, None)
        self._last[decision.client] = {key: made[key] for key in ("id", "at", "action", "mode", "reason", "told", "sentence")}
        if len(self._last) > DECISIONS_KEPT:
            del self._last[next(iter(self._last))]
        self.made += 1
        self._host.events.decided(made)

    def last_of(self, client: str) -> dict[str, Any] | None:
        """The last decision about a client, in short; None when it was too long ago, or there was none."""
        return self._last.get(client)

    def new_spool(self, connection: Connection) -> Spool:
        """A spool for a client that is offlined. Raises OSError."""
        self._spools += 1
        directory = Path(self.guard.pool_of(connection.transport).disk_path)
        directory.mkdir(parents=True, exist_ok=True)
        return Spool(directory / f"{self._host.instance}.{connection.name}.{self._spools}.spool")

    def went_live(self, connection: Connection) -> None:
        """A client has drained its spool."""
        self.judge(connection)
        if connection.account is not None:
            self.guard.returned(connection.account)
        self._host.events.add(self._host.now_ns(), connection.name, "offline_stop", "live")

    def tick(self) -> None:
        """Judge everybody at once: what time alone changes, and what a changed policy made too much."""
        for decision in self.guard.tick(self._host.now_ns()):
            self.carry_out(decision)

    async def run(self) -> None:
        """Judge everybody once a second, a part every PART_S, so that no turn of the loop takes long."""
        while True:
            before = self._host.monotonic_ms()
            await asyncio.sleep(PART_S)
            self.late_ms = max(self._host.monotonic_ms() - before - int(PART_S * 1_000), 0)
            try:
                for decision in self.guard.tick_part(self._host.now_ns()):
                    self.carry_out(decision)
            except Exception:
                # One client's failure must not end the judging of all others.
                log.exception("judging_failed")
