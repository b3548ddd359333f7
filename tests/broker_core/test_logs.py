"""Logging does not slow down the broker: no code waits for the log's reader, and a lasting fault does not
fill the log.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest
import structlog

from broker_core.logs import MAX_SIMILAR_LINES, LogPipe, RepeatedLineFilter
from tests.support.broker_process import full_pipe
from tests.support.manual_clock import ManualClock


def test_unread_log_lines_are_dropped_and_counted_and_the_rest_stays_in_order():
    reading, writing = full_pipe()
    pipe = LogPipe(writing, max_bytes=1_000)
    for number in range(30):
        assert pipe.write(f"{number:99d}\n") == 100
    assert pipe.dropped == 20
    assert not pipe.flush_within(0), "the end of the process doesn't wait for a reader"
    said = b""
    while b"dropped" not in said:
        said += os.read(reading, 100_000)
    lines = said.lstrip(b"x").splitlines()
    assert [int(line) for line in lines[:10]] == list(range(10))
    assert lines[10].startswith(b"log_lines_dropped count=20:")
    pipe.write("again\n")
    assert os.read(reading, 100) == b"again\n"
    assert pipe.flush_within()
    os.close(reading)
    pipe.write("into nothing\n")
    assert pipe.flush_within() and pipe.dropped == 21
    os.close(writing)


def test_of_a_kind_so_many_are_said_in_a_minute_and_the_others_counted():
    clock = ManualClock()
    repeats = RepeatedLineFilter(clock)

    def said(event: str) -> list[object]:
        made = []
        for number in range(50):
            try:
                made.append(repeats(None, "warning", {"event": event, "number": number}).get("left_out"))
            except structlog.DropEvent:
                continue
        return made

    assert said("spool_failed") == [None] * MAX_SIMILAR_LINES
    assert said("spool_failed") == []
    assert said("logon_refused") == [None] * MAX_SIMILAR_LINES, "another kind has its own number"
    clock.advance(60)
    assert said("spool_failed") == [80, *[None] * (MAX_SIMILAR_LINES - 1)]
    clock.advance(600)
    assert said("spool_failed") == [30, *[None] * (MAX_SIMILAR_LINES - 1)]


def test_the_last_traceback_is_written_to_its_end() -> None:
    text = (
        "from broker_core import logs; logs.install_logging()\n"
        "def fails(depth):\n    raise OSError('the reason') if not depth else fails(depth - 1)\n"
        "fails(200)"
    )
    for _ in range(5):
        ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
        assert ended.returncode == 1 and ended.stderr.rstrip().endswith("OSError: the reason")


def test_a_traceback_has_no_values(capfd: pytest.CaptureFixture[str]):
    """A password is in the locals of many a function."""
    script = (
        "from broker_core import logs; logs.install_logging(); import structlog\n"
        "def fails(password):\n    raise ValueError('of the command')\n"
        "try: fails('se' + 'cret')\n"
        "except ValueError: structlog.get_logger().exception('command_failed', client='x')\n"
        "logs.flush_logs()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    said = capfd.readouterr().out
    assert "command_failed" in said and "ValueError: of the command" in said and "in fails" in said
    assert "secret" not in said


def test_libraries_lines_are_of_a_kind_by_their_text_without_its_values():
    repeats = RepeatedLineFilter(ManualClock())

    def passes(text: str, *values: object, line: int = 1) -> bool:
        return repeats.filter(logging.LogRecord("asyncio", logging.ERROR, "x.py", line, text, values, None))

    assert [passes("accept: %s", number) for number in range(30)].count(True) == MAX_SIMILAR_LINES
    assert [passes(f"made before {number}", line=7) for number in range(30)].count(True) == MAX_SIMILAR_LINES
    assert passes("made before 1", line=8)
