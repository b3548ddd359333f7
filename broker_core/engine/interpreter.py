"""What a process that has a loop to keep asks of Python's interpreter."""

from __future__ import annotations

import gc
import sys

THRESHOLDS = (5_000, 500, 100)
"""Objects made before the youngest are looked at, and how often older ones are. Python's own are (700, 10, 10): a full
collection walks everything that 10,000 clients are made of, and nothing is delivered meanwhile (270 ms, bench/clients.py). With
50,000 young ones each look took 20 to 35 ms while five clients began 5,000 subscriptions to queues; now 2 to 3."""

SWITCH_INTERVAL_S = 0.000_5
"""How long the loop may go on while the thread that commits waits for the interpreter. With Python's own 5 ms a publisher beside
ten clients that begin 10,000 subscriptions waited 200 to 335 ms for its message (p99), and so it waits 70 (bench/subscribing.py);
the rate at 1, 16 and 512 messages a batch didn't change."""


def spare_the_loop() -> None:
    """Collect seldom, never walk what is there now (it lives as long as the process), and let other threads in soon. Call once,
    after the start."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
