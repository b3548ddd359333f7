"""File `<instance>.removed.json`: receipts of removals, which explain the log's missing beginning.

One line: the CRC32C of the rest in eight hexadecimal digits, a space, and a JSON list of receipts, oldest
first. It is written durably before the first file of a removal is unlinked. So every removed record has a
receipt. A receipt that names stored records belongs to a removal under way, or to one that a crash
interrupted; then the broker withdraws it when it opens the log. By this file a reader without the control
plane's database, such as the pipeline, distinguishes a log cut by retention from a log whose files are
missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from broker_core.checksum import crc32c
from broker_core.errors import JournalError
from broker_core.journal.files import FileSystem, replace_durably

MAX_REMOVALS = 1_000
"""Maximum number of separate receipts; then the two oldest are merged. They adjoin, as removal starts at the
oldest."""


class RemovalRecord(NamedTuple):
    """Receipt of one removal: sequences `first` to `last`, with `records` records.

    Times are ns UTC, 0 if unknown.
    """

    first: int
    last: int
    records: int
    nbytes: int
    segments: int
    first_at: int
    last_at: int
    removed_at: int


def removals_path(directory: Path, instance: str) -> Path:
    """Return the path of an instance's file."""
    return directory / f"{instance}.removed.json"


def read_removals(directory: Path, instance: str) -> list[RemovalRecord]:
    """Return all receipts, oldest first; [] when nothing was ever removed.

    Raises JournalError journal_damaged.
    """
    path = removals_path(directory, instance)
    try:
        crc, _, text = path.read_bytes().partition(b" ")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _damaged(path, str(error)) from error
    try:
        if int(crc, 16) != crc32c(text):
            raise ValueError("its checksum doesn't fit")
        return [RemovalRecord(**document) for document in orjson.loads(text)]
    except (ValueError, TypeError) as error:
        raise _damaged(path, str(error)) from None


class RemovedInterval(NamedTuple):
    """Sequences `first` to `last` that a log had, accepted from `first_at` to `last_at` (ns UTC)."""

    first: int
    last: int
    first_at: int
    last_at: int


def removed_intervals(
    removals: Sequence[RemovalRecord], oldest: int, oldest_at: int
) -> list[RemovedInterval]:
    """Return the intervals of a log before its oldest record, oldest first.

    Args:
        removals: Receipts. They may name records that a crash has left in the log.
        oldest: First sequence of the log that was not removed.
        oldest_at: When the oldest record was accepted, ns UTC.

    Intervals without a receipt, such as those of a log that was copied without its receipts, may have been
    accepted at any time between their neighbours.
    """
    found, following, at = list[RemovedInterval](), 1, 0
    for one in [*removals, RemovalRecord(oldest, oldest, 0, 0, 0, oldest_at, 0, 0)]:
        first = min(one.first, oldest)
        if first > following:
            found.append(RemovedInterval(following, first - 1, at, one.first_at - 1))
        if first < oldest:
            found.append(RemovedInterval(first, min(one.last, oldest - 1), one.first_at, one.last_at))
        following, at = max(following, one.last + 1), max(at, one.last_at)
    return found


class RemovalReceipts:
    """Writer of an instance's receipts."""

    def __init__(self, files: FileSystem, directory: Path, instance: str) -> None:
        self._files, self._directory, self._instance = files, directory, instance
        self.known: Sequence[RemovalRecord] = ()
        """Receipts, oldest first; none if their file was damaged at the start."""
        with suppress(JournalError):
            self.known = self._read()

    def append(self, removal: RemovalRecord) -> None:
        """Add a receipt durably. It replaces one with the same first record.

        Raises JournalError journal_damaged; OSError.
        """
        known = [one for one in self._read() if one.first != removal.first]
        self._write(_limit_removals([*known, removal]))

    def withdraw_from(self, sequence: int) -> None:
        """Shorten the receipts to the records before `sequence`, because the later ones are stored.

        A shortened receipt keeps its counts, which include the stored records. Raises as `append` does.
        """
        known = self._read()
        if any(one.last >= sequence for one in known):
            self._write(
                [one._replace(last=min(one.last, sequence - 1)) for one in known if one.first < sequence]
            )

    def _read(self) -> list[RemovalRecord]:
        return read_removals(self._directory, self._instance)

    def _write(self, removals: Sequence[RemovalRecord]) -> None:
        text = orjson.dumps([removal._asdict() for removal in removals])
        path = removals_path(self._directory, self._instance)
        replace_durably(self._files, path, b"%08x %s" % (crc32c(text), text))
        self.known = removals


def _limit_removals(removals: Sequence[RemovalRecord]) -> list[RemovalRecord]:
    retained = sorted(removals)
    while len(retained) > MAX_REMOVALS:
        one, two = retained[:2]
        retained[:2] = [
            RemovalRecord(
                one.first,
                max(one.last, two.last),
                one.records + two.records,
                one.nbytes + two.nbytes,
                one.segments + two.segments,
                one.first_at,
                max(one.last_at, two.last_at),
                two.removed_at,
            )
        ]
    return retained


def _damaged(path: Path, reason: str) -> JournalError:
    details: dict[str, Any] = {"file": path.name, "offset": 0}
    return JournalError(
        "journal_damaged",
        f"{path.name}, the record of removals, isn't readable: {reason}.",
        "Move the file away: missing records at the log's beginning then count as lost, and "
        "removal works again.",
        **details,
    )
