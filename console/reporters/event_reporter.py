"""Brings what happens in a running broker to the actions that wait for it. Runs in the broker's process.

The broker is asked to hear only what enabled actions want; the list is read every few seconds. Events become runs in a
thread, some at a time; while the database is away they wait in the broker's bounded queue.
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

LOOK_EVERY = 5
"""Ticks between two looks at which actions there are, and at file systems."""
EVENTS_AT_ONCE = 200
CLOSE_TIMEOUT_S = 5.0
"""How long a broker that ends waits for the database to take the last events."""
CLOSE_ATTEMPTS = 20
log = structlog.get_logger("sluice.events")


class EventReporter:
    """Called once a second by whoever runs the broker."""

    def __init__(self, broker: Broker) -> None:
        self._engine, self._member = broker.engine, broker.member
        self._watch = EventWatch(broker.engine, shared=bool(broker.member))
        self._waiting: list[BrokerEvent] = []
        self._working: asyncio.Task[None] | None = None
        self._thread = DatabaseThread("database-events")
        self._begun = False
        """Whether actions on the broker's start have their runs."""
        self._ticks = 0
        self._told_dropped = 0
        self._segments = self._sealed()
        self._above: dict[tuple[str, str], bool] = {}
        self._wanted = event_interest.EventInterest()

    async def on_broker_started(self) -> None:
        """Start the runs of actions on the broker's start. While the database is away, `tick` tries again."""
        await self._guarded(self._start())

    def begin(self) -> None:
        """Do the same beside the loop."""
        self._working = asyncio.create_task(self._guarded(self._start()), name="events")

    @property
    def waiting(self) -> int:
        """Events in memory that aren't runs yet."""
        return len(self._waiting) + self._watch.capacity - self._watch.free_slots

    @property
    def dropped(self) -> int:
        """Events that the queue had no room for, since the start."""
        return self._watch.dropped

    def tick(self) -> None:
        """Do what is due, beside the loop; one piece of work at a time."""
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._guarded(self._work()), name="events")

    async def close(self) -> None:
        """Start the runs of waiting events and of actions on the broker's end; CLOSE_TIMEOUT_S at most."""
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
            log.warning("events_lost", number=self.waiting, why="the database was away when the broker ended")
        self._thread.close()

    async def _start(self) -> None:
        self._wanted = await self._thread.run(
            event_interest.on_broker_started, self._engine.instance, self._member
        )
        self._begun = True
        self._listen()

    async def _work(self) -> None:
        if not self._begun:
            await self._start()
        self._ticks += 1
        if self._ticks % LOOK_EVERY == 0:
            self._wanted = await self._thread.run(event_interest.event_interest, self._engine.instance)
            self._listen()
            self._look_at_segments()
            await self._look_at_file_systems()
        await self._flush()

    def _listen(self) -> None:
        messages = (MessageWatch(*one) for one in self._wanted.messages)
        self._watch.set_interest(self._wanted.kinds, messages)

    async def _flush(self) -> None:
        self._waiting = self._waiting or self._watch.drain()
        while self._waiting:
            # Taken out first: what is under way must not be started again by whoever closes.
            part, self._waiting = self._waiting[:EVENTS_AT_ONCE], self._waiting[EVENTS_AT_ONCE:]
            try:
                await self._thread.run(
                    event_interest.start_runs_for_events, self._engine.instance, _events(part), self._member
                )
            except Exception:
                self._waiting = part + self._waiting
                raise
        if self._watch.dropped > self._told_dropped:
            log.warning("events_dropped", since_start=self._watch.dropped)
            self._told_dropped = self._watch.dropped

    def _look_at_segments(self) -> None:
        sealed = self._sealed()
        if "journal_roll" in self._wanted.kinds:
            for name in sorted(sealed.keys() - self._segments.keys()):
                self._watch.add_event("journal_roll", {"SLUICE_SEGMENT": sealed[name]})
        self._segments = sealed

    def _sealed(self) -> dict[int, str]:
        return {
            segment.first_sequence: segment.name
            for segment in self._engine.journal.segments()
            if segment.state != "current"
        }

    async def _look_at_file_systems(self) -> None:
        found = await asyncio.to_thread(event_interest.disk_usage_percent, self._wanted.file_systems)
        for (place, above), used in found.items():
            fires, self._above[place, above] = has_crossed(
                used, float(above), self._above.get((place, above), False)
            )
            if fires:
                told = {"SLUICE_PLACE": place, "SLUICE_PERCENT": f"{used:.1f}"}
                self._watch.add_event("file_system", told, {"place": place, "above": above})

    async def _guarded(self, work: Any) -> None:
        try:
            await work
        except Exception as problem:  # the database may be away; the next second tries again
            log.warning("events_not_stored", why=repr(problem))


def _events(happened: Iterable[BrokerEvent]) -> list[TriggerEvent]:
    return [TriggerEvent(*one) for one in happened]
