"""Log of a child's output: a file of bounded size, and the last lines in memory for reports of its death."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path

MAX_BYTES = 8 * 1024 * 1024
LAST_LINES = 15
LONGEST_LINE = 4096


class ChildLog:
    """Log file of a child.

    Past `most_bytes` it becomes `path.1` and a new file begins; also after a rename from outside.

    echo    called with each complete line, to show it in the terminal
    """

    def __init__(
        self, path: Path, echo: Callable[[str], None] | None = None, max_bytes: int = MAX_BYTES
    ) -> None:
        self.path = path
        self._echo = echo
        self._max_bytes = max_bytes
        self._partial = b""
        self._last: deque[str] = deque(maxlen=LAST_LINES)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)

    def write(self, chunk: bytes) -> None:
        """Append output. Errors of the disk lose text of the log, but never stop the child."""
        try:
            if self._renamed():
                self._reopen()
            if self._file.tell() + len(chunk) > self._max_bytes:
                self._rotate()
            self._file.write(chunk)
        except OSError:
            pass
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        if len(self._partial) > LONGEST_LINE:
            lines, self._partial = [*lines, self._partial], b""
        for line in lines:
            self._line(line)

    def last_lines(self) -> list[str]:
        """Return the newest lines, oldest first."""
        return list(self._last)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _line(self, line: bytes) -> None:
        text = line[:LONGEST_LINE].decode("utf-8", "replace").rstrip()
        if not text:
            return
        self._last.append(text)
        if self._echo is not None:
            self._echo(text)

    def _renamed(self) -> bool:
        """Whether an action rotated the log, so that the path names another file or none."""
        try:
            return not os.path.samestat(os.fstat(self._file.fileno()), self.path.stat())
        except FileNotFoundError:
            return True

    def _reopen(self) -> None:
        self._file.close()
        self._file = self.path.open("ab", buffering=0)

    def _rotate(self) -> None:
        self._file.close()
        try:
            self.path.replace(self.path.with_name(self.path.name + ".1"))
        finally:
            self._file = self.path.open("ab", buffering=0)
