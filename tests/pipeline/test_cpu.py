"""CPU time of child processes is known after they end, if it was recorded while they ran."""

from __future__ import annotations

import subprocess
import sys

from pipeline.cpu import cpu_seconds, record_child_cpu

BUSY = """
import sys, time
while time.process_time() < 0.4:
    pass
print("done", flush=True)
sys.stdin.read()
"""


def test_a_process_that_was_noted_and_has_ended_counts_once() -> None:
    record_child_cpu()  # processes that other tests have left running
    before = cpu_seconds()
    with subprocess.Popen(
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as busy:
        assert busy.stdout is not None
        assert busy.stdout.readline() == b"done\n"
        record_child_cpu()
        record_child_cpu()
        assert busy.stdin is not None
        busy.stdin.close()
    spent = cpu_seconds() - before
    assert 0.39 <= spent < 0.8
    record_child_cpu()
    assert cpu_seconds() - before - spent < 0.2
