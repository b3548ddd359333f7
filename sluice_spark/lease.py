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
from sluice_spark.log import LogSnapshot, examine_leased_log, examine_log

TERM_S = 120.0
RENEW_S = 20.0


class LeaseHolder:
    """Lease that its owner renews. `advance` releases records before a sequence."""

    def __init__(self, location: LogLocation, name: str, owner: str, sequence: int, term_s: float) -> None:
        self._location = location
        self._name = name
        self._owner = owner
        self._sequence = sequence
        self._term_ns = int(term_s * 1e9)
        self._lock = threading.Lock()

    def renew(self) -> None:
        """Write the lease with a new term. Raises OSError."""
        with self._lock:
            lease = ReaderLease(self._owner, self._sequence, time.time_ns() + self._term_ns)
            write_lease(FileSystem(), self._location.directory, self._location.instance, self._name, lease)

    def advance(self, sequence: int) -> None:
        """Release the records before `sequence`, with the next renewal."""
        with self._lock:
            self._sequence = max(self._sequence, sequence)

    def release(self) -> None:
        """Remove the lease. Raises OSError."""
        with self._lock:
            release_lease(self._location.directory, self._location.instance, self._name)


@contextmanager
def maintain_lease(
    location: LogLocation, purpose: str, sequence: int, note: Callable[[str], None], renew_s: float = RENEW_S
) -> Iterator[LeaseHolder]:
    """Hold a lease from `sequence` on within the block. A thread renews it.

    If the journal isn't writable, `note` reports it and the job runs without a lease. Retention may then
    remove records that the job still has to read, which raises a named error.
    """
    host = socket.gethostname()
    holder = LeaseHolder(
        location,
        f"{purpose}.{host[:30]}.{os.getpid()}",
        f"{purpose} on {host} (process {os.getpid()})",
        sequence,
        TERM_S,
    )
    remove_expired_leases(location.directory, location.instance, time.time_ns())
    try:
        holder.renew()
    except OSError as error:
        note(f"The job can't create a lease on the log ({error}). Don't remove segments until it has ended.")
        yield holder
        return
    stopped = threading.Event()

    def renew_periodically() -> None:
        while not stopped.wait(renew_s):
            try:
                holder.renew()
            except OSError as error:
                note(f"The lease on the log couldn't be renewed: {error}.")

    thread = threading.Thread(target=renew_periodically, name="lease", daemon=True)
    thread.start()
    try:
        yield holder
    finally:
        stopped.set()
        thread.join()
        try:
            holder.release()
        except OSError as error:
            note(f"The lease on the log couldn't be released. It expires automatically: {error}.")


@contextmanager
def pin_log(
    location: LogLocation, purpose: str, note: Callable[[str], None], durable: int | None = None
) -> Iterator[tuple[LogSnapshot, LeaseHolder]]:
    """Pin a log for a job within the block: yield a snapshot of the log, and the lease that protects it.

    The snapshot is taken after the lease was written, so no segment of it is removed within the block. The
    lease covers all records until the caller releases those that it doesn't read (`LeaseHolder.advance`).
    Parameters are those of `maintain_lease` and `examine_log`. Raises OperatorError no_journal, other_log
    before anything is written.
    """
    log = examine_log(location, durable)
    with maintain_lease(log.location, purpose, log.first, note) as lease:
        # Segments may have been removed between the first snapshot and the lease.
        yield examine_leased_log(log.location, durable), lease
