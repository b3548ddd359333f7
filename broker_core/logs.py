"""Log of a broker process. Neither a stalled reader nor a repeated failure can block or flood it.

* Lines to stdout and stderr enter a queue of 1 MiB each, and a thread writes them. If the queue is full,
  lines are dropped and counted, and the count is logged when there is room. The event loop never waits for a
  reader.
* A traceback has no values of variables: they could contain passwords and message bodies, and thousands of
  lines for a client with a thousand subscriptions.
* At most 20 lines of one kind are written per minute. Further ones are counted, and the next written line has
  the count.

`logging.handlers.QueueListener` is not used: it holds its handler's lock while it writes, and joins its
thread at the end. With a stalled reader the process would never end. Here the end waits for one second.
"""

from __future__ import annotations

import atexit
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
"""Maximum bytes of lines that wait for the reader of one pipe."""
MAX_SIMILAR_LINES: Final = 20
"""Maximum number of lines of one kind per window."""
WINDOW_S: Final = 60.0
"""Length of the window in seconds."""
MAX_KINDS: Final = 1_000
"""Maximum number of kinds that are counted. All counters are cleared when there are more."""
FLUSH_TIMEOUT_S: Final = 1.0
"""Seconds that the end of the process waits for the reader."""
_OMITTED_FIELD: Final = "left_out"


class LogPipe(io.TextIOBase):
    """Text file whose `write` never waits: a thread writes the text to the file descriptor."""

    def __init__(self, fd: int, max_bytes: int = MAX_BYTES) -> None:
        self._fd = fd
        self._max_bytes = max_bytes
        self._lines: deque[bytes] = deque()
        self._nbytes = 0
        self._unreported = 0
        self._changed = Condition()
        self.dropped = 0
        """Number of lines dropped since the start."""
        Thread(target=self._run, name=f"log {fd}", daemon=True).start()

    def write(self, text: str) -> int:
        """Queue a line, or drop it if the queue is full. Raises no error, because no log could report it."""
        line = text.encode(errors="replace")
        with self._changed:
            if self._nbytes + len(line) > self._max_bytes:
                self.dropped += 1
                self._unreported += 1
            else:
                self._add_line(line)
        return len(text)

    def _add_line(self, line: bytes) -> None:
        self._lines.append(line)
        self._nbytes += len(line)
        self._changed.notify_all()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def flush_within(self, seconds: float = FLUSH_TIMEOUT_S) -> bool:
        """Wait until all lines are written, at most `seconds`.

        Returns whether they are. Call it when the process ends.
        """
        with self._changed:
            return self._changed.wait_for(lambda: not self._nbytes, seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                line = self._lines.popleft()
            self._write_line(line)
            with self._changed:
                self._nbytes -= len(line)
                if self._unreported:
                    unreported, self._unreported = self._unreported, 0
                    self._add_line(
                        f"log_lines_dropped count={unreported}: nobody read them in time\n".encode()
                    )
                self._changed.notify_all()

    def _write_line(self, line: bytes) -> None:
        remaining = memoryview(line)
        while remaining:
            try:
                remaining = remaining[os.write(self._fd, remaining) :]
            except BlockingIOError:
                select([], [self._fd], [])
            except OSError:  # the reader closed the pipe, or the disk is full
                with self._changed:
                    self.dropped += 1
                return


class RepeatedLineFilter:
    """Filter that passes at most 20 lines of a kind per minute and counts the others.

    The kind of a line is its text in the source, without values.
    """

    def __init__(self, clock: Clock = SYSTEM) -> None:
        self._clock = clock
        self._kinds: dict[str, tuple[float, int]] = {}
        """Start of the current minute and number of lines in it, by kind."""

    def report_suppressed(self, kind: str) -> int | None:
        """Return how many lines of this kind were suppressed before this one.

        None: suppress this line, too.
        """
        now = self._clock.seconds()
        since, number = self._kinds.get(kind, (now, 0))
        before = 0
        if now >= since + WINDOW_S:
            since, number, before = now, 0, max(number - MAX_SIMILAR_LINES, 0)
        if kind not in self._kinds and len(self._kinds) >= MAX_KINDS:
            self._kinds.clear()
        self._kinds[kind] = since, number + 1
        return before if number < MAX_SIMILAR_LINES else None

    def __call__(
        self, logger: object, method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        """Filter an event, as a processor of structlog."""
        before = self.report_suppressed(str(event["event"]))
        if before is None:
            raise structlog.DropEvent
        return {**event, _OMITTED_FIELD: before} if before else event

    def filter(self, record: logging.LogRecord) -> bool:
        """Filter a record of the standard library's logging, which asyncio, Twisted and Django use."""
        # Without arguments, the text may already contain values, so the line number identifies the kind.
        before = self.report_suppressed(f"{record.name} {record.msg if record.args else record.lineno}")
        if before:
            record.msg = f"{record.msg} ({_OMITTED_FIELD}={before})"
        return before is not None


def install_logging() -> None:
    """Install non-blocking, rate-limited logging in a broker process.

    Replaces stdout, stderr and the configuration of structlog, and adds a filter to the root's handlers. Call
    it before the first log line. The interpreter flushes the streams at its end, after a last traceback.
    """
    atexit.register(flush_logs)
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
    """Write a traceback as indented, escaped lines: an exception's text may contain any characters."""
    text = io.StringIO()
    structlog.dev.plain_traceback(text, problem)
    stream.write(escape_block(text.getvalue()))


def flush_logs() -> None:
    """Wait for the log's reader before the process ends, at most one second per stream."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, LogPipe):
            stream.flush_within()
