"""Reporter of a broker's state to the control plane: live snapshots, decisions, the revision in force.

Live snapshots use the channel layer, which may drop them: the next one follows a second later. Data that
must not be lost (decisions, reports, samples) goes to the database in a thread, with retries while the
database is away. Meanwhile decisions and losses wait in the broker's bounded memory; entries that don't fit
are counted. The status's `database` entry shows since when and why the database is away, and whether the
policy in force is the one on the broker's disk.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import msgspec
import structlog
from channels.layers import get_channel_layer
from django.db import Error

from broker_core.broker import Broker
from broker_core.config import PolicyDocument
from broker_core.documents.clients import ClientEntry
from broker_core.documents.instance import DatabaseEntry, Snapshot
from broker_core.documents.system_records import DecisionEntry
from broker_core.errors import OperatorError, SluiceError
from broker_core.slow_clients.rules.rulebook import parse_stage
from console.broker_addresses import format_broker_name
from console.database_limits import database_error
from console.live import latest_snapshot
from console.queries.policies import instance_named
from console.reporters.database_thread import DatabaseThread
from console.reporters.event_reporter import EventReporter
from console.reporters.start import policy_from_disk
from console.services import broker_reports, policies, rollouts
from console.services.loss_ledger import record_losses
from console.services.refused_logons import record_refused_logons

LIVE_GROUP = "live"
MINUTE_MS = 60_000
SLICE = 100
"""Clients encoded between two yields to the event loop."""
RECONCILE_EVERY = 5
"""Ticks between two checks for a newer revision in the database."""
ANSWER_TIMEOUT_S = 10.0
"""Seconds after which a call into the database counts as a database that is away."""
CLOSE_TIMEOUT_S = 8.0
"""Seconds that a stopping broker waits for the database to store its last report."""
_NO_ANSWER = OperatorError(
    "database_away",
    "The database accepted a request but doesn't answer it.",
    "Check its process, its sessions and its locks.",
)
_NOT_STORED = OperatorError(
    "policy_not_stored",
    "The broker can't store its policy on its disk, so it can't start without the database.",
    "Free disk space in SLUICE_HOME, and make it writable for the broker's user.",
)
log = structlog.get_logger("sluice.reporter")


class SnapshotEncoder:
    """Encoder of snapshots as JSON, which reuses unchanged clients' bytes and yields to the event loop.

    Encoding 10,000 clients without a yield would delay messages by a third of a second.
    """

    def __init__(self) -> None:
        self._encoded: dict[str, tuple[ClientEntry, bytes]] = {}

    async def encode(self, snapshot: Snapshot) -> bytes:
        """Return a snapshot as JSON, without its replays."""
        encoded: dict[str, tuple[ClientEntry, bytes]] = {}
        fresh = 0
        for entry in snapshot.clients:
            known = self._encoded.get(entry.name)
            if known is None or known[0] is not entry:
                known = (entry, msgspec.json.encode(entry))
                fresh += 1
                if fresh % SLICE == 0:
                    await asyncio.sleep(0)
            encoded[entry.name] = known
        self._encoded = encoded
        clients = msgspec.Raw(b"[" + b",".join([line for _, line in encoded.values()]) + b"]")
        return msgspec.json.encode(msgspec.structs.replace(snapshot, clients=clients, replays=None))


class SnapshotReporter:
    """Reporter of snapshots. The broker calls `report` once a second."""

    def __init__(
        self, broker: Broker, thread: DatabaseThread | None = None, database: DatabaseEntry | None = None
    ) -> None:
        """Create the reporter. `database` is the state of the database at the broker's start."""
        self._broker = broker
        self._thread = thread or DatabaseThread("database")
        self._database = database or DatabaseEntry()
        self._dropped = 0
        self.events: EventReporter | None = None
        """Reporter of events, whose waiting and lost events are counted too."""
        broker.statistics.database = self._database
        self._layer = get_channel_layer()
        self._stored: asyncio.Task[None] | None = None
        self._written = SnapshotEncoder()
        self._published_decisions = 0
        self._stored_decisions = 0
        self._lost = 0
        self._ticks = 0

    async def report(self, snapshot: Snapshot) -> None:
        """Send a snapshot to the live feed, and store it in the background."""
        await self._publish(snapshot)
        # The database may be slow: one write at a time, and the tick doesn't wait for it.
        if self._stored is None or self._stored.done():
            self._ticks += 1
            self._stored = asyncio.create_task(self._store(snapshot), name="store-report")
        self._show_database()

    async def _publish(self, snapshot: Snapshot) -> None:
        """Send the snapshot and new decisions to the live feed.

        Errors are logged, because the feed may be lost.
        """
        try:
            await self._layer.group_send(LIVE_GROUP, await self._feed_message(snapshot))
            for decision in self._new_decisions():
                message = {
                    "type": "live.decision",
                    "instance": self._broker.engine.instance,
                    "decision": msgspec.json.encode(decision),
                }
                await self._layer.group_send(LIVE_GROUP, message)
            self._published_decisions = self._broker.engine.decisions.total
        except OSError as problem:
            log.warning("live_feed_away", why=str(problem))
        except Exception as problem:
            # redis-py's errors aren't OSErrors. The feed may be lost, the tick must go on.
            log.warning("live_feed_failed", why=repr(problem))

    async def _feed_message(self, snapshot: Snapshot) -> dict[str, object]:
        """Return the live feed's message: the snapshot, or a notice that a large one is in Redis."""
        encoded = await self._written.encode(snapshot)
        name = format_broker_name(snapshot.status.instance, snapshot.status.member)
        if len(encoded) <= latest_snapshot.INLINE:
            return {"type": "live.snapshot", "snapshot": encoded}
        await asyncio.to_thread(latest_snapshot.write_snapshot, name, encoded)
        return {"type": "live.snapshot", "broker": name, "at": snapshot.at}

    def _new_decisions(self) -> list[DecisionEntry]:
        """Return the newest decisions that were not sent to the live feed."""
        decisions = self._broker.engine.decisions
        number = min(decisions.total - self._published_decisions, len(decisions.recent))
        return list(decisions.recent)[len(decisions.recent) - number :]

    async def _store(self, snapshot: Snapshot) -> None:
        """Store a snapshot in Redis and in the database, and note whether the database answers."""
        await asyncio.to_thread(broker_reports.record_second, snapshot)  # into Redis
        try:
            await self._store_rows(snapshot)
        except Error as problem:
            self._note_away(database_error(problem))
        except Exception as problem:
            log.warning("report_not_stored", why=repr(problem))
        else:
            self._announce_large_snapshot()

    async def _store_rows(self, snapshot: Snapshot) -> None:
        """Store reports, decisions, losses and refused logons; withdraw an exceeded rollout; reconcile."""
        engine, member, run = self._broker.engine, self._broker.member, self._thread.run
        made, decisions = engine.decisions.total, list(engine.decisions.unstored)
        if self._database.away_since is not None:
            await self._reconcile()  # first, because operators' changes apply before anything is reported
        if not await run(broker_reports.record_report, snapshot):
            # An empty database replaced the one before. Its instance must exist before anything is
            # stored; without it, decisions would be refused before the next reconciliation.
            await self._reconcile()
            await run(broker_reports.record_report, snapshot)
        await run(broker_reports.record_decisions, decisions, engine.instance, member)
        self._count_dropped("decisions", made - self._stored_decisions - len(decisions))
        self._stored_decisions = made
        engine.decisions.mark_stored(made)
        await self._store_losses()
        await self._store_refused(snapshot.at // MINUTE_MS)
        withdrawn = engine.guard.withdrawn
        if decisions or withdrawn:
            await run(lambda: rollouts.stop_if_exceeded(instance_named(engine.instance), withdrawn))
        if self._ticks % RECONCILE_EVERY == 0:
            await self._reconcile()

    async def _store_losses(self) -> None:
        """Store new entries of the loss ledger."""
        ledger, instance = self._broker.engine.ledger, self._broker.engine.instance
        entered, number = ledger.intervals, min(ledger.intervals - self._lost, len(ledger.recent))
        losses = [loss.to_entry(instance) for loss in list(ledger.recent)[len(ledger.recent) - number :]]
        await self._thread.run(record_losses, losses, instance, self._broker.member)
        self._count_dropped("losses", entered - self._lost - number)
        self._lost = entered

    def _count_dropped(self, name: str, number: int) -> None:
        """Record that `number` entries were lost because the buffer was full."""
        if number > 0:
            self._dropped += number
            log.error(
                "not_in_the_database",
                entries=name,
                number=number,
                why="more were made than the buffer holds until the database stores them",
            )

    # State of the database.

    @property
    def _waiting(self) -> int:
        """Number of decisions, losses and events in memory that the database doesn't have."""
        engine = self._broker.engine
        decisions = len(engine.decisions.unstored)
        losses = min(engine.ledger.intervals - self._lost, len(engine.ledger.recent))
        return decisions + losses + (self.events.waiting if self.events is not None else 0)

    @property
    def _unstored(self) -> int:
        """Number of decisions, losses and events lost since the start because memory was full."""
        engine = self._broker.engine
        decisions = max(engine.decisions.total - self._stored_decisions - len(engine.decisions.unstored), 0)
        losses = max(engine.ledger.intervals - self._lost - len(engine.ledger.recent), 0)
        return self._dropped + decisions + losses + (self.events.dropped if self.events is not None else 0)

    def _note_away(self, problem: OperatorError) -> None:
        """Show and log that the database is away. A repeated problem isn't logged again."""
        before = self._database
        shown = self._from_disk(problem) if before.policy == "disk" else problem
        if before.away_since is None or before.message != shown.sentence:
            log.warning("database_away", code=problem.code, why=problem.sentence, fix=problem.fix)
        self._set(away_since=before.away_since or time.time_ns() // 1_000_000)
        self._show(shown)

    def _from_disk(self, cause: SluiceError) -> OperatorError:
        return policy_from_disk(self._broker.engine.policy.revision, cause)

    def _announce_large_snapshot(self) -> None:
        """Show that the database answers, and log its return."""
        if self._database.away_since is not None:
            log.info("database_back", dropped=self._unstored)
        refused = self._broker.statistics.refused_revision
        self._set(away_since=None)
        if self._database.policy == "disk" and refused is not None:
            self._show(self._from_disk(OperatorError.from_dict(refused.code, refused.message, refused.fix)))
        elif self._database.code != "policy_not_stored":
            self._show(None)

    def _show(self, problem: OperatorError | None) -> None:
        """Show a problem in the status; None removes it."""
        if problem is None:
            self._set(code=DatabaseEntry().code, message="", fix="")
        else:
            self._set(code=problem.code, message=problem.sentence, fix=problem.fix)

    def _show_database(self) -> None:
        """Update the `database` entry of the status.

        A call that doesn't return counts as a database that is away.
        """
        if self._thread.waited_s > ANSWER_TIMEOUT_S:
            self._note_away(_NO_ANSWER)
        lacks, entry = self._broker.lacks_stored_policy, self._database
        if lacks and not entry.code:
            self._show(_NOT_STORED)
        elif not lacks and entry.code == _NOT_STORED.code:
            self._show(None)
        stored_at = self._broker.policy_stored_at or None
        dropped = self._unstored
        if dropped > entry.dropped:
            self._set(dropped_at=time.time_ns() // 1_000_000)
        self._set(policy_stored_at=stored_at, waiting=self._waiting, dropped=dropped)

    def _set(self, **changes: Any) -> None:
        self._database = msgspec.structs.replace(self._database, **changes)
        self._broker.statistics.database = self._database

    async def _store_refused(self, minute: int) -> None:
        """Store the refused logons of complete minutes. An error puts them back."""
        refusals, instance = self._broker.engine.logons.refusals, self._broker.engine.instance
        if refused := refusals.take(minute):
            try:
                await self._thread.run(record_refused_logons, refused, instance)
            except Exception:
                refusals.restore(refused)
                raise

    async def _reconcile(self) -> None:
        """Apply the database's newest revision if the broker missed it in an outage or by a lost message."""
        engine, guard = self._broker.engine, self._broker.engine.guard
        orders = await self._thread.run(policies.policy_orders, engine.instance)
        policy = PolicyDocument.from_dict(orders["policy"])
        stage = parse_stage(orders["staged"], self._broker.member)
        # Compare whole documents: another database may have another policy under the same number. A
        # database that lacks the policy in force isn't followed, because an operator must decide.
        if engine.policy != policy or not guard.follows(stage):
            shown = guard.stage.document if guard.stage is not None else engine.policy
            if not await self._thread.run(policies.has_policy, engine.instance, shown.to_dict()):
                await self._broker.retain_policy(
                    stage.document.revision if stage is not None else policy.revision
                )
                self._set(policy="disk")
                return
            try:
                await self._broker.apply(policy, stage)
            except SluiceError as problem:  # shown in the status (`refused`); reports continue
                log.warning(
                    "policy_refused", revision=policy.revision, code=problem.code, why=problem.sentence
                )
                return
        await self._broker.follow_database()
        if self._database.policy == "disk":
            log.info("policy_from_database", revision=policy.revision)
            self._set(policy="database")

    async def close(self) -> None:
        """Store the last decisions, within `CLOSE_TIMEOUT_S`."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                if self._stored is not None:
                    await asyncio.wait([self._stored])
                snapshot = self._broker.statistics.collect_snapshot()
                await self._store(snapshot)
                with suppress(Exception):  # `_store` has logged it if the database is away
                    await self._store_refused(snapshot.at // MINUTE_MS + 1)
        except TimeoutError:
            if self._stored is not None:
                self._stored.cancel()
        if self._waiting:
            log.warning(
                "not_in_the_database",
                number=self._waiting,
                why="the database was unavailable when the broker stopped",
            )
        self._thread.close()
