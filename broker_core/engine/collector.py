"""Python's garbage collector in a process that has a loop to keep."""

from __future__ import annotations

import gc

THRESHOLDS = (50_000, 50, 100)
"""Objects made before the youngest are looked at, and how often older ones are. Python's own are (700, 10, 10): a full
collection walks everything that 10,000 clients are made of, and nothing is delivered meanwhile (270 ms, bench/clients.py)."""


def spare_the_loop() -> None:
    """Collect seldom, and never walk what is there now: it lives as long as the process. Call once, after the start."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
