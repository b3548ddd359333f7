"""A broker that notes when a batch passes each of its stations: `python -m bench.traced_broker HOME`, for `bench.latency --trace`.

Prints its ports, and after each line on its standard input the medians and 99th percentiles between the stations, in ms, of what came since.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import uvloop

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
_at: dict[str, int] = {}


def trace() -> None:
    """Note the moments, around the functions that stand at the stations. One group of batches is under way at a time."""
    from broker_core.engine.dispatch import Dispatch
    from broker_core.journal.commit_log import LocalLog
    from broker_core.journal.journal import Journal
    from broker_core.transports.tcp import TcpProtocol

    _note(TcpProtocol, "buffer_updated", before=STATIONS[0])
    _note(LocalLog, "append", before=STATIONS[1])
    _note(LocalLog, "_stamp", before=STATIONS[2], group=True)
    _note(LocalLog, "_write", before=STATIONS[3])
    _note(Journal, "write", after=STATIONS[4])
    _note(Journal, "sync", after=STATIONS[5])
    _note(Dispatch, "applied", before=STATIONS[6], after=STATIONS[7], ends=True)


def _note(
    owner: Any, name: str, *, before: str = "", after: str = "", group: bool = False, ends: bool = False
) -> None:
    real: Callable[..., Any] = getattr(owner, name)

    def noted(*arguments: Any) -> Any:
        if before:
            _at[before] = time.monotonic_ns()
        if group:  # what comes from here on belongs to the next one
            for station in STATIONS[:2]:
                _at[f"group {station}"] = _at.get(station, 0)
        result = real(*arguments)
        if after:
            _at[after] = time.monotonic_ns()
        if ends and len(_at) == len(STATIONS) + 2:
            _passed.append([_at.get(f"group {one}", _at[one]) for one in STATIONS])
        return result

    setattr(owner, name, noted)


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
