"""A broker that records when a batch passes each station, for `bench.latency --trace`.

    python -m bench.traced_broker HOME

Prints its ports. After each line on standard input it prints medians and 99th percentiles of the times
between stations, in ms, since the last line.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import uvloop

if TYPE_CHECKING:
    from broker_core.batch import Batch
    from broker_core.engine.publisher_numbers import PendingAck
    from broker_core.journal.segment import BatchPosition

STATIONS: Final = (
    "read from the socket",
    "parsed, taken by the log",
    "stamped, at the end of the turn",
    "in the journal's thread",
    "written",
    "synced",
    "back on the loop",
    "matched, queued, handed to the socket",
)
_passed: list[list[int]] = []


def trace() -> None:
    """Wrap the functions at the stations, to record the times.

    Of a group that is written together the newest batch counts.
    """
    from broker_core.engine.dispatch import Dispatcher
    from broker_core.journal.commit_log import LocalCommitLog, PendingBatch
    from broker_core.journal.journal import Journal
    from broker_core.transports.tcp import TcpProtocol

    read = 0
    parsed: dict[int, list[int]] = {}
    """Times read, parsed and stamped, by batch."""
    written: dict[int, list[int]] = {}
    """Times up to synced, by the newest batch of a group."""
    under_way: list[int] = []
    """Times of the group that the journal's thread is writing."""
    buffer_updated, append, take = (
        TcpProtocol.buffer_updated,
        LocalCommitLog.append,
        LocalCommitLog._queue_gathered,
    )
    write, sync, applied = Journal.write, Journal.sync, Dispatcher.on_durable

    def noted_read(self: TcpProtocol, nbytes: int) -> None:
        nonlocal read
        read = time.monotonic_ns()
        buffer_updated(self, nbytes)

    def noted_append(self: LocalCommitLog[Any], *batches: PendingBatch[Any]) -> None:
        for pending in batches:
            parsed[id(pending.batch)] = [read, time.monotonic_ns()]
        append(self, *batches)

    def noted_take(self: LocalCommitLog[Any]) -> None:
        now = time.monotonic_ns()
        for pending in self._gathered:
            parsed[id(pending.batch)].append(now)
        take(self)

    def noted_write(self: Journal, batches: Sequence[Batch]) -> list[BatchPosition]:
        nonlocal under_way
        began = time.monotonic_ns()
        moments = [parsed.pop(id(batch)) for batch in batches]
        positions = write(self, batches)
        under_way = written[id(batches[-1])] = [*moments[-1], began, time.monotonic_ns()]
        return positions

    def noted_sync(self: Journal, on_durable: Callable[[], object] | None = None) -> None:
        def note_synced() -> None:
            under_way.append(time.monotonic_ns())
            if on_durable is not None:
                on_durable()

        sync(self, note_synced)

    def noted_applied(
        self: Dispatcher, group: Sequence[PendingBatch[PendingAck]], positions: Sequence[BatchPosition]
    ) -> None:
        moments = [*written.pop(id(group[-1].batch)), time.monotonic_ns()]
        applied(self, group, positions)
        _passed.append([*moments, time.monotonic_ns()])

    TcpProtocol.buffer_updated = noted_read  # type: ignore[method-assign]
    LocalCommitLog.append, LocalCommitLog._queue_gathered = noted_append, noted_take  # type: ignore[method-assign]
    Journal.write, Journal.sync = noted_write, noted_sync  # type: ignore[method-assign]
    Dispatcher.on_durable = noted_applied  # type: ignore[method-assign]


def _answer() -> None:
    for _ in sys.stdin:
        steps = np.diff(np.array(_passed), axis=1) / 1e6
        found = {
            station: {"p50": float(np.percentile(step, 50)), "p99": float(np.percentile(step, 99))}
            for station, step in zip(STATIONS[1:], steps.T, strict=True)
        }
        _passed.clear()
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    from api.broker_websocket import reactor

    reactor.install(loop)
    from bench.broker import main
    from bench.processes import BIG

    trace()
    threading.Thread(target=_answer, daemon=True).start()
    loop.run_until_complete(main(Path(sys.argv[1]), BIG))
