"""Reporter of a broker's events to the actions that wait for them. Runs in the broker's process.

The broker only records events that enabled actions wait for; this list is read from the database every few
seconds. A thread turns events into runs. While the database is away, events wait in the broker's bounded
queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import structlog

from broker_core.broker import Broker
from broker_core.control.event_watch import BrokerEvent, EventWatch, MessageWatch
from console.reporters.database_thread import DatabaseThread
from console.services.actions import event_interest
from console.services.actions.triggers import TriggerEvent, has_crossed

CHECK_TICKS = 5
"""Ticks between two reads of the actions, and between two checks of segments and file systems."""
EVENTS_AT_ONCE = 200
"""Maximum events that become runs in one transaction."""
CLOSE_TIMEOUT_S = 5.0
"""Seconds that a stopping broker waits for the database to store its last events."""
CLOSE_ATTEMPTS = 20
"""Maximum tries to store the last events."""
log = structlog.get_logger("sluice.events")


class EventReporter:
    """Reporter of events. The broker's runner calls `tick` once a second."""

    def __init__(self, broker: Broker) -> None:
        self._engine, self._member = broker.engine, broker.member
        self._watch = EventWatch(broker.engine, shared=bool(broker.member))
        self._waiting: list[BrokerEvent] = []
        self._working: asyncio.Task[None] | None = None
        self._thread = DatabaseThread("database-events")
        self._is_started = False
        """Whether runs for the broker's start exist."""
        self._ticks = 0
        self._reported_dropped = 0
        self._segments = self._sealed()
        self._above: dict[tuple[str, str], bool] = {}
        self._interest = event_interest.EventInterest()

    async def on_broker_started(self) -> None:
        """Start the runs of actions on the broker's start. While the database is away, `tick` retries."""
        await self._guarded(self._start())

    def begin(self) -> None:
        """Start the runs of actions on the broker's start in a background task."""
        self._working = asyncio.create_task(self._guarded(self._start()), name="events")

    @property
    def waiting(self) -> int:
        """Number of events in memory that aren't runs yet."""
        return len(self._waiting) + self._watch.capacity - self._watch.free_slots

    @property
    def dropped(self) -> int:
        """Number of events lost since the start because the queue was full."""
        return self._watch.dropped

    def tick(self) -> None:
        """Do the due work in a background task, unless the previous one still runs."""
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._guarded(self._work()), name="events")

    async def close(self) -> None:
        """Start the runs of waiting events and of actions on the broker's end, within `CLOSE_TIMEOUT_S`."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                if self._working is not None:
                    await asyncio.wait([self._working])
                self._watch.add_event("shutdown", {})
                for _ in range(CLOSE_ATTEMPTS):
                    await self._guarded(self._flush())
                    if not self.waiting:
                        break
        except TimeoutError:
            pass
        if self.waiting:
            log.warning(
                "events_lost", number=self.waiting, why="the database was unavailable when the broker stopped"
            )
        self._thread.close()

    async def _start(self) -> None:
        self._interest = await self._thread.run(
            event_interest.on_broker_started, self._engine.instance, self._member
        )
        self._is_started = True
        self._listen()

    async def _work(self) -> None:
        if not self._is_started:
            await self._start()
        self._ticks += 1
        if self._ticks % CHECK_TICKS == 0:
            self._interest = await self._thread.run(event_interest.event_interest, self._engine.instance)
            self._listen()
            self._check_segments()
            await self._check_file_systems()
        await self._flush()

    def _listen(self) -> None:
        """Set the kinds of events and the messages that the broker records."""
        messages = (MessageWatch(*one) for one in self._interest.messages)
        self._watch.set_interest(self._interest.kinds, messages)

    async def _flush(self) -> None:
        """Turn all waiting events into runs. An error leaves the unstored events waiting."""
        self._waiting = self._waiting or self._watch.drain()
        while self._waiting:
            # Take events out before the call: `close` may run meanwhile and must not start them twice.
            part, self._waiting = self._waiting[:EVENTS_AT_ONCE], self._waiting[EVENTS_AT_ONCE:]
            try:
                await self._thread.run(
                    event_interest.start_runs_for_events, self._engine.instance, _events(part), self._member
                )
            except Exception:
                self._waiting = part + self._waiting
                raise
        if self._watch.dropped > self._reported_dropped:
            log.warning("events_dropped", since_start=self._watch.dropped)
            self._reported_dropped = self._watch.dropped

    def _check_segments(self) -> None:
        """Raise an event for each segment sealed since the last check, if an action waits for that."""
        sealed = self._sealed()
        if "journal_roll" in self._interest.kinds:
            for name in sorted(sealed.keys() - self._segments.keys()):
                self._watch.add_event("journal_roll", {"SLUICE_SEGMENT": sealed[name]})
        self._segments = sealed

    def _sealed(self) -> dict[int, str]:
        """Return the names of the sealed segments by their first sequence."""
        return {
            segment.first_sequence: segment.name
            for segment in self._engine.journal.segments()
            if segment.state != "current"
        }

    async def _check_file_systems(self) -> None:
        """Raise an event for each file system that has filled above an action's limit."""
        found = await asyncio.to_thread(event_interest.disk_usage_percent, self._interest.file_systems)
        for (file_system, above), used in found.items():
            fires, self._above[file_system, above] = has_crossed(
                used, float(above), self._above.get((file_system, above), False)
            )
            if fires:
                variables = {"SLUICE_PLACE": file_system, "SLUICE_PERCENT": f"{used:.1f}"}
                self._watch.add_event("file_system", variables, {"place": file_system, "above": above})

    async def _guarded(self, work: Any) -> None:
        """Run a coroutine, and log any error it raises."""
        try:
            await work
        except Exception as problem:  # the database may be away; the next tick retries
            log.warning("events_not_stored", why=repr(problem))


def _events(happened: Iterable[BrokerEvent]) -> list[TriggerEvent]:
    return [TriggerEvent(*one) for one in happened]
