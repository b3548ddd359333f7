"""Leases that keep a log from being removed while a job reads it.

A lease is a file in the journal's directory that the broker respects (`broker_core.journal.reader_leases`).
After a job was killed, its lease expires within two minutes.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from broker_core.journal.files import FileSystem
from broker_core.journal.reader_leases import ReaderLease, release_lease, remove_expired_leases, write_lease
from sluice_spark.location import LogLocation

TERM_S = 120.0
RENEW_S = 20.0


class LeaseHolder:
    """A lease that its owner renews. `advance` releases records before a sequence."""

    def __init__(self, place: LogLocation, name: str, owner: str, sequence: int, term_s: float) -> None:
        self._place = place
        self._name = name
        self._owner = owner
        self._sequence = sequence
        self._term_ns = int(term_s * 1e9)
        self._lock = threading.Lock()

    def renew(self) -> None:
        """Write the lease with a new term. Raises OSError."""
        with self._lock:
            lease = ReaderLease(self._owner, self._sequence, time.time_ns() + self._term_ns)
            write_lease(FileSystem(), self._place.directory, self._place.instance, self._name, lease)

    def advance(self, sequence: int) -> None:
        """Release the records before `sequence`. Raises OSError."""
        if sequence > self._sequence:
            self._sequence = sequence
            self.renew()

    def release(self) -> None:
        """Remove the lease. Raises OSError."""
        with self._lock:
            release_lease(self._place.directory, self._place.instance, self._name)


@contextmanager
def hold_lease(
    place: LogLocation, what: str, sequence: int, note: Callable[[str], None], renew_s: float = RENEW_S
) -> Iterator[LeaseHolder]:
    """Hold a lease from `sequence` on within the block. A thread renews it.

    If the journal isn't writable, `note` reports it and the job runs without a lease. Retention may then
    remove records that the job still has to read, which raises a named error.
    """
    host = socket.gethostname()
    hold = LeaseHolder(
        place,
        f"{what}.{host[:30]}.{os.getpid()}",
        f"{what} on {host} (process {os.getpid()})",
        sequence,
        TERM_S,
    )
    remove_expired_leases(place.directory, place.instance, time.time_ns())
    try:
        hold.renew()
    except OSError as error:
        note(f"The log can't be held while it is read ({error}): don't remove segments meanwhile.")
        yield hold
        return
    ended = threading.Event()

    def keep() -> None:
        while not ended.wait(renew_s):
            try:
                hold.renew()
            except OSError as error:
                note(f"The lease on the log couldn't be renewed: {error}.")

    keeper = threading.Thread(target=keep, name="lease", daemon=True)
    keeper.start()
    try:
        yield hold
    finally:
        ended.set()
        keeper.join()
        try:
            hold.release()
        except OSError as error:
            note(f"The lease on the log couldn't be dropped, and runs out by itself: {error}.")
