"""Clients of a tortured broker: publishers, subscribers, and an operator of its journal."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from broker_core.client import MOST_RECENT, AsyncClient, FileBookmarkStore, FilePublishStore, ReconnectPolicy
from broker_core.client.publish_store import MemoryPublishStore, PublishStore
from broker_core.client.subscription import Subscription
from broker_core.errors import SluiceError
from broker_core.journal.segment_copies import compress_segment, copy_segment
from tests.torture.broker import INSTANCE
from tests.torture.history import FaultKind, History, HistoryFault, Interval, ReaderHistory, body_of, topic_of

QUICK = ReconnectPolicy(first_delay=0.01, longest_delay=0.1, first_connect_timeout=60)
TOPICS = "t.>"
PATIENCE_S = 60.0


class Clients:
    """All clients of a run. `home` has their stores, on a disk that never loses power."""

    def __init__(self, history: History, home: Path, port: int, chance: random.Random) -> None:
        self.history = history
        self._home, self._port, self._chance = home, port, chance
        self._stack = AsyncExitStack()
        self._publishing: list[tuple[AsyncClient, PublishStore, str]] = []
        self._reading: list[tuple[ReaderHistory, Subscription]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._loads: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Connect all clients and start publishing."""
        stores: dict[str, PublishStore] = {
            "memory": MemoryPublishStore(),
            "file": FilePublishStore(self._home / "unsent"),
            "synced": FilePublishStore(self._home / "unsent.synced", sync=True),
        }
        for name, store in stores.items():
            self.history.published[name] = self.history.acknowledged[name] = 0
            client = await self._client(name, publish_store=store)
            self._publishing.append((client, store, name))
            self._loads.append(asyncio.create_task(self._publish(client, store, name)))
        # Readers with a bookmark store, without one, with a durable subscription, and with neither.
        marks = FileBookmarkStore(self._home / "marks")
        await self._reader("stored", {"bookmark": MOST_RECENT}, bookmark_store=marks)
        await self._reader("from-epoch", {"bookmark": "0"})
        await self._reader("durable", {"durable": "d", "ack": "client", "bookmark": "0"}, again=True)
        await self._reader("managed", {"managed": "m", "bookmark": "0", "rate": "2MB"}, again=True)
        await self._reader("live", {}, live=True, slow=True)

    async def _client(self, name: str, **options: Any) -> AsyncClient:
        client = AsyncClient(f"tcp://127.0.0.1:{self._port}", name, reconnect=QUICK, **options)
        return await self._stack.enter_async_context(client)

    async def _reader(
        self,
        name: str,
        how: dict[str, Any],
        *,
        again: bool = False,
        live: bool = False,
        slow: bool = False,
        **options: Any,
    ) -> None:
        client = await self._client(name, max_unread_bytes=16 * 1024 if slow else 4 * 1024 * 1024, **options)
        reader = self.history.reader(name)
        reader.complete = not live
        subscription = await client.subscribe(TOPICS, **how)
        if not live:
            self._reading.append((reader, subscription))
        self._tasks.append(
            asyncio.create_task(self._read(reader, client, subscription, again=again, live=live, slow=slow))
        )

    async def _publish(self, client: AsyncClient, store: PublishStore, name: str) -> None:
        history, chance = self.history, random.Random(self._chance.random())
        while True:
            for _ in range(chance.randint(1, 20)):
                number = history.published[name] + 1
                history.published[name] = number
                await client.publish(topic_of(number), body_of(name, number))
            self._note(store, name)
            await asyncio.sleep(chance.uniform(0, 0.03))
            self._note(store, name)

    def _note(self, store: PublishStore, name: str) -> None:
        """Record the acknowledged sequence: records before the store's oldest are acknowledged."""
        oldest = store.oldest_sequence()
        done = oldest - 1 if oldest else store.last_sequence
        self.history.acknowledged[name] = max(done, self.history.acknowledged[name])

    async def _read(
        self,
        reader: ReaderHistory,
        client: AsyncClient,
        subscription: Subscription,
        *,
        again: bool,
        live: bool,
        slow: bool,
    ) -> None:
        chance = random.Random(self._chance.random())
        try:
            async for batch in subscription.batches():
                topics, sequences = list(batch.names()), batch.sequences().tolist()
                for topic, body, sequence in zip(topics, batch.bodies(), sequences, strict=True):
                    record = self.history.record(sequence, topic, bytes(body), batch.accepted_at)
                    if record is not None:
                        reader.records.append(record)
                subscription.done(batch)
                if again:
                    reader.back = client.connections - 1
                    if subscription._acknowledger is not None and chance.random() < 0.8:
                        subscription.ack()
                if live:
                    reader.missed = client.connections
                self._note_gaps(reader, subscription)
                if slow and chance.random() < 0.3:
                    await asyncio.sleep(chance.uniform(0, 0.2))
        except SluiceError as problem:
            self.history.faults.append(
                HistoryFault(FaultKind.UNEXPLAINED, f"{reader.name} was ended: {problem}")
            )

    def _note_gaps(self, reader: ReaderHistory, subscription: Subscription) -> None:
        for gap in subscription.gaps[len(reader.gaps) :]:
            reader.gaps.append(Interval(_sequence(gap.first), _sequence(gap.last)))

    async def finish(self) -> None:
        """Stop publishing, let all readers catch up, and read the whole log."""
        for load in self._loads:
            load.cancel()
        await asyncio.wait(self._loads)
        try:
            async with asyncio.timeout(PATIENCE_S):
                for client, store, name in self._publishing:
                    await client.flush()
                    self._note(store, name)
                await self._read_all()
                end = self.history.log[-1].sequence if self.history.log else 0
                for reader, subscription in self._reading:
                    while not reader.records or reader.records[-1].sequence < end:
                        await asyncio.sleep(0.01)
                    self._note_gaps(reader, subscription)
        except TimeoutError:
            self.history.faults.append(
                HistoryFault(FaultKind.UNEXPLAINED, f"not everybody came to the end in {PATIENCE_S:.0f} s")
            )
        except SluiceError as problem:
            self.history.faults.append(
                HistoryFault(FaultKind.UNEXPLAINED, f"a publisher was refused: {problem}")
            )
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        with suppress(TimeoutError):
            async with asyncio.timeout(10):
                await self._stack.aclose()

    async def _read_all(self) -> None:
        client = await self._client("checker")
        subscription = await client.subscribe(TOPICS, bookmark="0")
        async for batch in subscription.batches(until_completed=True):
            for topic, body, sequence in zip(
                list(batch.names()), batch.bodies(), batch.sequences().tolist(), strict=True
            ):
                record = self.history.record(sequence, topic, bytes(body), batch.accepted_at)
                if record is not None:
                    self.history.log.append(record)
        for gap in subscription.gaps:
            self.history.gaps.append(Interval(_sequence(gap.first), _sequence(gap.last)))


class JournalOperator:
    """An operator that archives, compresses and removes sealed segments and offlines slow readers, all at
    random.
    """

    def __init__(self, history: History, home: Path, chance: random.Random, done: Counter[str]) -> None:
        self._history, self._home, self._chance, self._done = history, home, chance, done
        self._made = 0

    async def run(self) -> None:
        """Perform random actions until cancelled; an unreachable broker is tried again."""
        while True:
            await asyncio.sleep(self._chance.uniform(0.01, 0.1))
            act = self._chance.choice(
                (self._archive, self._compress, self._compress, self._offline, self._steer)
            )
            if self._chance.random() < 0.05:
                act = self._remove
            with suppress(OSError, ValueError, SluiceError, asyncio.IncompleteReadError):
                await act()

    async def let_go(self) -> None:
        """Resume the replay, in case the task was cancelled between pause and resume."""
        await self._ask("replay_resume", name="m")

    async def _ask(self, do: str, **fields: Any) -> Any:
        reader, writer = await asyncio.open_unix_connection(
            str(self._home / "run" / f"{INSTANCE}.sock"), limit=1 << 24
        )
        try:
            writer.write(json.dumps({"do": do, **fields}).encode() + b"\n")
            answer = json.loads(await reader.readline())
        finally:
            writer.close()
        name = do if answer["ok"] else f"{do}: {answer['error']['code']}"
        self._done[f"{name} {fields['action']}" if do == "journal_swap" else name] += 1
        return answer["result"] if answer["ok"] else []

    async def _archive(self) -> None:
        await self._swap("archive", [s for s in await self._segments() if s["state"] == "sealed"])

    async def _compress(self) -> None:
        await self._swap("compress", [s for s in await self._segments() if not s["compressed"]])

    async def _segments(self) -> list[dict[str, Any]]:
        return [one for one in await self._ask("journals") if one["state"] != "current"]

    async def _swap(self, action: str, some: list[dict[str, Any]]) -> None:
        if not some:
            return
        chosen, self._made = self._chance.choice(some), self._made + 1
        source = Path(chosen["path"])
        place = self._home / "archive" if action == "archive" else source.parent
        folder = place / f"{INSTANCE}.prepared" / str(self._made)
        folder.mkdir(parents=True, exist_ok=True)
        prepared = folder / (f"{source.name}.gz" if action == "compress" else source.name)
        make = compress_segment if action == "compress" else copy_segment
        await asyncio.to_thread(make, source, prepared)
        await self._ask("journal_swap", action=action, name=chosen["name"], prepared=str(prepared))

    async def _remove(self) -> None:
        plan = await self._ask("journal_plan", action="remove", age_s=0.0)
        if plan and plan["segments"]:
            some = plan["segments"][: self._chance.randint(1, 2)]
            # Record the removal on request, because the broker may stop before it replies.
            self._history.removed_upto = max(self._history.removed_upto, some[-1]["last_sequence"])
            await self._ask("journal_remove", names=[one["name"] for one in some], age_s=0.0)

    async def _offline(self) -> None:
        await self._ask("offline", name=self._chance.choice(("live", "stored", "durable")))

    async def _steer(self) -> None:
        await self._ask("replay_pause", name="m")
        await asyncio.sleep(self._chance.uniform(0, 0.05))
        await self._ask("replay_resume", name="m")


def _sequence(bookmark: str) -> int:
    return int(bookmark.split("|")[1])
