"""Carries what a running broker has to say to the control plane: live snapshots, decisions, the revision in force.

Live snapshots go over the channel layer, which may drop them: the next second brings another. What must not be lost
(decisions, reports, samples) goes to the database, in a thread, and is tried again when the database is away.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec
import structlog
from channels.layers import get_channel_layer

from broker_core.broker import Broker
from broker_core.config import PolicyDocument
from broker_core.documents.clients import ClientEntry
from broker_core.documents.instance import Snapshot
from broker_core.documents.records import DecisionEntry
from broker_core.slow_clients.rules.staging import read_stage
from console.broker_addresses import name_of
from console.live import newest
from console.queries.policies import instance_named
from console.services import policies, reports, rollouts
from console.services.ledger import record_losses
from console.services.logons import record_refused

LIVE_GROUP = "live"
MINUTE_MS = 60_000
SLICE = 100
"""Clients written in one turn of the loop."""
RECONCILE_EVERY = 5
"""Ticks between two looks at the database for a newer revision."""
log = structlog.get_logger("sluice.reporter")


class Written:
    """Snapshots as JSON. A client whose entry is the one before isn't written again, and the loop has its turn in between: of
    10,000 clients all at once would hold messages up for a third of a second."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[ClientEntry, bytes]] = {}

    async def json(self, snapshot: Snapshot) -> bytes:
        """One snapshot, without its replays."""
        kept: dict[str, tuple[ClientEntry, bytes]] = {}
        fresh = 0
        for entry in snapshot.clients:
            known = self._kept.get(entry.name)
            if known is None or known[0] is not entry:
                known = (entry, msgspec.json.encode(entry))
                fresh += 1
                if fresh % SLICE == 0:
                    await asyncio.sleep(0)
            kept[entry.name] = known
        self._kept = kept
        clients = msgspec.Raw(b"[" + b",".join([line for _, line in kept.values()]) + b"]")
        return msgspec.json.encode(msgspec.structs.replace(snapshot, clients=clients, replays=None))


class BrokerReporter:
    """Called by the broker once a second with its snapshot."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._layer = get_channel_layer()
        self._stored: asyncio.Task[None] | None = None
        self._written = Written()
        self._told = 0
        self._kept = 0
        self._lost = 0
        self._ticks = 0

    async def report(self, snapshot: Snapshot) -> None:
        """Tell whoever watches, and store what must be kept."""
        await self._tell(snapshot)
        # The database may be slow; one write at a time, and the tick doesn't wait for it.
        if self._stored is None or self._stored.done():
            self._ticks += 1
            self._stored = asyncio.create_task(self._store(snapshot), name="store-report")

    async def _tell(self, snapshot: Snapshot) -> None:
        try:
            await self._layer.group_send(LIVE_GROUP, await self._told_of(snapshot))
            for decision in self._new_decisions(self._told):
                told = {
                    "type": "live.decision",
                    "instance": self._broker.engine.instance,
                    "decision": msgspec.json.encode(decision),
                }
                await self._layer.group_send(LIVE_GROUP, told)
            self._told = self._broker.engine.decisions.made
        except OSError as problem:
            log.warning("live_feed_away", why=str(problem))
        except (
            Exception
        ) as problem:  # redis-py's errors aren't OSErrors; the feed is expendable, the tick isn't
            log.warning("live_feed_failed", why=repr(problem))

    async def _told_of(self, snapshot: Snapshot) -> dict[str, object]:
        """The snapshot itself, or that a large one is in Redis now."""
        seen = await self._written.json(snapshot)
        name = name_of(snapshot.status.instance, snapshot.status.member)
        if len(seen) <= newest.INLINE:
            return {"type": "live.snapshot", "snapshot": seen}
        await asyncio.to_thread(newest.write, name, seen)
        return {"type": "live.snapshot", "broker": name, "at": snapshot.at}

    def _new_decisions(self, known: int) -> list[DecisionEntry]:
        decisions = self._broker.engine.decisions
        number = min(decisions.made - known, len(decisions.recent))
        return list(decisions.recent)[len(decisions.recent) - number :]

    async def _store(self, snapshot: Snapshot) -> None:
        made, decisions = self._broker.engine.decisions.made, self._new_decisions(self._kept)
        try:
            await asyncio.to_thread(reports.record_second, snapshot)
            await asyncio.to_thread(reports.record_report, snapshot)
            await asyncio.to_thread(
                reports.record_decisions, decisions, self._broker.engine.instance, self._broker.member
            )
            self._kept = made
            await self._store_losses()
            await self._store_refused(snapshot.at // MINUTE_MS)
            withdrawn = self._broker.engine.guard.withdrawn
            if decisions or withdrawn:
                await asyncio.to_thread(
                    lambda: rollouts.check(instance_named(self._broker.engine.instance), withdrawn)
                )
            if self._ticks % RECONCILE_EVERY == 0:
                await self._reconcile()
        except Exception as problem:
            log.warning("report_not_stored", why=repr(problem))

    async def _store_losses(self) -> None:
        ledger, instance = self._broker.engine.ledger, self._broker.engine.instance
        entered, number = ledger.intervals, min(ledger.intervals - self._lost, len(ledger.recent))
        losses = [loss.entry(instance) for loss in list(ledger.recent)[len(ledger.recent) - number :]]
        await asyncio.to_thread(record_losses, losses, instance, self._broker.member)
        self._lost = entered

    async def _store_refused(self, minute: int) -> None:
        refusals, instance = self._broker.engine.logons.refusals, self._broker.engine.instance
        if refused := refusals.take(minute):
            try:
                await asyncio.to_thread(record_refused, refused, instance)
            except Exception:
                refusals.put_back(refused)
                raise

    async def _reconcile(self) -> None:
        """Run the database's newest revision, if a broker that was away, or a lost message, left us behind."""
        wanted = await asyncio.to_thread(policies.orders, self._broker.engine.instance)
        engine, stage = self._broker.engine, read_stage(wanted["staged"], self._broker.member)
        running = engine.guard.stage
        staged = running.document.revision if running is not None else engine.guard.withdrawn or None
        now = (engine.policy.revision, staged)
        if now != (wanted["policy"]["revision"], stage.document.revision if stage is not None else None):
            await self._broker.apply(PolicyDocument.from_dict(wanted["policy"]), stage)

    async def close(self) -> None:
        """Store the last decisions."""
        if self._stored is not None:
            await asyncio.wait([self._stored], timeout=5)
        snapshot = self._broker.statistics.snapshot()
        await self._store(snapshot)
        with suppress(Exception):  # it was said above if the database is away
            await self._store_refused(snapshot.at // MINUTE_MS + 1)
