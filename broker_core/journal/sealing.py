"""Closing full segments: sync, cut to the content, note the publishers, write the sidecar. Then they may be moved."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from broker_core.journal import sidecar
from broker_core.journal.acks import acks_path, write_acks
from broker_core.journal.appender import Tail
from broker_core.journal.files import Files, journal_error, replace_durably
from broker_core.journal.publishers import Publishers
from broker_core.journal.segment import index_path


class Full(NamedTuple):
    """A full segment, still open, with the publishers as they were when it got full."""

    tail: Tail
    publishers: Publishers


class Sealer:
    """The full segments that aren't closed yet, oldest first."""

    def __init__(self, files: Files, directory: Path, instance: str) -> None:
        self._files = files
        self._acks = acks_path(directory, instance)
        self._full: list[Full] = []
        self._one_at_a_time = Lock()

    def __len__(self) -> int:
        return len(self._full)

    def add(self, tail: Tail, publishers: Publishers) -> None:
        """Take a segment that is full; `publishers` is copied."""
        self._full.append(Full(tail, Publishers(publishers)))

    def tails(self) -> list[Tail]:
        """Those a sync has to include."""
        return [one.tail for one in self._full]

    def finish(self) -> None:
        """Close all that are full. JournalError when the disk refuses; the next call goes on with the same one."""
        with self._one_at_a_time:
            while self._full:
                self._seal(self._full[0])
                del self._full[0]

    def _seal(self, one: Full) -> None:
        segment, fd = one.tail.segment, one.tail.file.fd
        try:
            self._files.fdatasync(fd)
            self._files.truncate(fd, segment.index.end)
            self._files.fsync(fd)
        except OSError as error:
            raise journal_error(error, f"closing {segment.path.name}", final=True) from error
        with suppress(OSError):
            # Both can be rebuilt from the segments; without room for them the journal goes on.
            self.write_acks(segment.index.last_sequence, one.publishers)
            replace_durably(self._files, index_path(segment.path), sidecar.encode(segment.index))
            segment.index.set_entries(None)
        # The descriptor closes itself when a sync that may be using it has let go of the tail.
        segment.sealed = True

    def write_acks(self, upto: int, publishers: Publishers) -> None:
        """Note the publishers of the log up to a sequence."""
        write_acks(self._files, self._acks, upto, publishers)
