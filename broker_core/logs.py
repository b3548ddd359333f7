"""The process's log, so that it never costs anything else: a pipe that nobody reads, or a fault that lasts.

* What is written to stdout and stderr goes into a queue of 1 MiB each, and a thread writes it on. When the queue is full, lines
  are dropped and counted, and the count is said as soon as there is room. The loop never waits for a reader.
* A traceback has no values: among them are passwords and what messages say, and of a client with a thousand subscriptions
  they are thousands of lines.
* Of one kind of line 20 are written a minute. Those over it are counted, and the next one that is written says how many.

`logging.handlers.QueueListener` holds its handler's lock while it writes, and joins its thread at the end: with a pipe that
nobody reads the process would never end. Here the end waits a second.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections import deque
from collections.abc import MutableMapping
from select import select
from threading import Condition, Thread
from typing import Any, Final, TextIO, cast

import structlog

from broker_core.clock import SYSTEM, Clock
from broker_core.safe_text import escape_block, escape_event

MAX_BYTES: Final = 1024 * 1024
"""Of lines that wait for the reader of one pipe."""
MAX_ALIKE: Final = 20
WINDOW_S: Final = 60.0
MAX_KINDS: Final = 1_000
END_S: Final = 1.0
_LEFT_OUT: Final = "left_out"


class LogPipe(io.TextIOBase):
    """A text file whose `write` never waits: a thread passes it on to the descriptor."""

    def __init__(self, fd: int, most_bytes: int = MAX_BYTES) -> None:
        self._fd = fd
        self._most_bytes = most_bytes
        self._waiting: deque[bytes] = deque()
        self._nbytes = 0
        self._untold = 0
        self._changed = Condition()
        self.dropped = 0
        """Lines, since the start."""
        Thread(target=self._run, name=f"log {fd}", daemon=True).start()

    def write(self, text: str) -> int:
        """Take a line, or drop it: there is no error, as nobody could be told."""
        line = text.encode(errors="replace")
        with self._changed:
            if self._nbytes + len(line) > self._most_bytes:
                self.dropped += 1
                self._untold += 1
            else:
                self._put(line)
        return len(text)

    def _put(self, line: bytes) -> None:
        self._waiting.append(line)
        self._nbytes += len(line)
        self._changed.notify_all()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def flush_within(self, seconds: float = END_S) -> bool:
        """Wait until all is written, at most so long; whether it is. For the end of the process."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._nbytes, seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                line = self._waiting.popleft()
            self._write_on(line)
            with self._changed:
                self._nbytes -= len(line)
                if self._untold:
                    untold, self._untold = self._untold, 0
                    self._put(f"log_lines_dropped count={untold}: nobody read them in time\n".encode())
                self._changed.notify_all()

    def _write_on(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:
                select([], [self._fd], [])
            except OSError:  # the reader has gone, or the disk is full
                with self._changed:
                    self.dropped += 1
                return


class RepeatedLineFilter:
    """Lets 20 lines of a kind through in a minute, and counts the others. A kind is what the code says, without its values."""

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._kinds: dict[str, tuple[float, int]] = {}
        """Of each kind, when its minute began, and how many there were in it."""

    def report_suppressed(self, kind: str) -> int | None:
        """How many of its kind were left out before this line; None when it is left out itself."""
        now = self._clock.seconds()
        since, number = self._kinds.get(kind, (now, 0))
        before = 0
        if now >= since + WINDOW_S:
            since, number, before = now, 0, max(number - MAX_ALIKE, 0)
        if kind not in self._kinds and len(self._kinds) >= MAX_KINDS:
            self._kinds.clear()
        self._kinds[kind] = since, number + 1
        return before if number < MAX_ALIKE else None

    def __call__(
        self, logger: object, method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        """As a processor of structlog."""
        before = self.report_suppressed(str(event["event"]))
        if before is None:
            raise structlog.DropEvent
        return {**event, _LEFT_OUT: before} if before else event

    def filter(self, record: logging.LogRecord) -> bool:
        """As a filter of the standard library's handlers: asyncio, Twisted and Django log by that."""
        # Without arguments the text may have its values in it already.
        before = self.report_suppressed(f"{record.name} {record.msg if record.args else record.lineno}")
        if before:
            record.msg = f"{record.msg} ({_LEFT_OUT}={before})"
        return before is not None


def install_logging() -> None:
    """For the process of a broker, before it logs anything: stdout, stderr, structlog and the root's handlers."""
    before = sys.stdout, sys.stderr
    sys.stdout = output = LogPipe(1)
    sys.stderr = LogPipe(2)
    repeats = RepeatedLineFilter()
    for handler in logging.getLogger().handlers:
        handler.addFilter(repeats.filter)
        if isinstance(handler, logging.StreamHandler) and handler.stream in before:
            handler.setStream(sys.stdout if handler.stream is before[0] else sys.stderr)
    *processors, _ = structlog.get_config()["processors"]
    renderer = structlog.dev.ConsoleRenderer(colors=before[0].isatty(), exception_formatter=_write_traceback)
    structlog.configure(
        processors=[repeats, *processors, escape_event, renderer],
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", output)),
    )


def _write_traceback(stream: TextIO, problem: Any) -> None:
    """Write a traceback as indented lines: the text of an exception may hold anything."""
    text = io.StringIO()
    structlog.dev.plain_traceback(text, problem)
    stream.write(escape_block(text.getvalue()))


def flush_logs() -> None:
    """Before the process ends: what was logged is written, if somebody reads it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, LogPipe):
            stream.flush_within()
