"""Carries out what slow-client policy decides. Deciding is `slow_clients`'; here stand the acts, and nowhere else."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from broker_core.delivery import ClientState
from broker_core.protocols import replies
from broker_core.runtime import clock
from broker_core.runtime.connection import Connection
from broker_core.slow_clients.decision import Decision
from broker_core.slow_clients.guard import SlowClientGuard
from broker_core.slow_clients.rules import Action
from broker_core.spool.spool import Spool

if TYPE_CHECKING:
    from broker_core.runtime.host import Host

DECISIONS_KEPT = 1_000


class Judging:
    """An instance's guard, the acts on its clients, and the decisions made lately (`made` counts all of them)."""

    def __init__(self, host: Host, guard: SlowClientGuard) -> None:
        self._host = host
        self.guard = guard
        self.decisions: deque[Decision] = deque(maxlen=DECISIONS_KEPT)
        self.made = 0
        self._spools = 0

    def judge(self, connection: Connection) -> None:
        """Tell policy what a client holds now, and carry out what it decides."""
        account, backlog = connection.account, connection.backlog
        if account is None or connection.closed:
            return
        decision = None
        memory = backlog.outbox.nbytes + backlog.conflated_bytes - account.memory
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
        """Do what was decided, and keep the decision for everybody who asks."""
        connection = self._host.clients.get(decision.client)
        if connection is None:
            return
        if decision.action is Action.OFFLINE and connection.backlog.state is ClientState.LIVE:
            try:
                spool = self._new_spool(connection)
            except OSError as problem:
                connection.close("disk_full", f"This client must be offlined, and its spool can't be made: {problem}.")
                return
            connection.backlog.go_offline(spool)
            self._host.events.add(decision.at, connection.name, "offline_start", "offlined")
            self.judge(connection)
        elif decision.action is Action.DISCONNECT:
            connection.reply(replies.Notice(**decision.notice(), retry_after_ms=1_000))
            connection.close(decision.reason.value, decision.sentence())
        self.decisions.append(decision)
        self.made += 1
        self._host.events.decided(decision)

    def _new_spool(self, connection: Connection) -> Spool:
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
        """Judge what time alone changes, and what a changed policy made too much."""
        for decision in self.guard.tick(self._host.now_ns()):
            self.carry_out(decision)
