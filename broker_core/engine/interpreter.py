"""What a process that has a loop to keep asks of Python's interpreter."""

from __future__ import annotations

import gc
import sys

THRESHOLDS = (5_000, 500, 100)
"""Objects made before the youngest are looked at, and how often older ones are. Python's own are (700, 10, 10): a full
collection walks everything that 10,000 clients are made of, and nothing is delivered meanwhile (270 ms, bench/clients.py). With
50,000 young ones each look took 20 to 35 ms while five clients began 5,000 subscriptions to queues; now 2 to 3."""

SWITCH_INTERVAL_S = 0.000_05
"""How long the loop may go on while the thread that commits waits for the interpreter. The wait begins anew each time that the loop
lets go of it for a system call and takes it back at once, so it must be shorter than what lies between two of these: with Python's
own 5 ms a thread that wants it beside a busy loop may never be due. Beside eight clients whose commands keep the loop busy another's
message took 64 ms (p99 189) with 0.5 ms, 13 (44) with 0.1 and 6 (39) with 0.02 (`bench.hostile --only commands`); rates and
latencies at rest didn't change."""


def spare_the_loop() -> None:
    """Collect seldom, never walk what is there now (it lives as long as the process), and let other threads in soon. Call once,
    after the start."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
